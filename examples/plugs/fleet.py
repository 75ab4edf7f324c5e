"""A run on real processes, and the faults that buttons make: kill, leave, stop, go on, restart.

`fedgc serve` keeps the run alive: it starts again what has ended, and resumes the run if its server has. The
faults are those of `python -m benchmarks soak`.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.served import SERVER, SUPERLINK, SUPERNODE, Served
from benchmarks.soak_faults import Fault, Kind, go_on, halt, make
from examples.federation import ROOT, rows_by_name
from examples.sites import SITES, STEPS
from fedgc.deploy.app_folder import Setting
from fedgc.errors import FedgcError, Unusable
from fedgc.messages import SUMMED

PACE_S = 0.03  # least time of a step: the machine has room for processes that start
NAMES = tuple(f"site-{number}" for number in range(SITES))
SETTINGS: Mapping[str, Setting] = {
    "task": "examples.sites:task",
    "work": "local",
    "local-steps": 20,
    "learning-rate": 0.2,
    "optimizer.shared-momentum": "off",
    "gate.name": "every",
    "min-clients": 3,
    "timing.start-timeout-s": 600.0,
    "client.threads": 1,
    "links.kind": "session",
    "links.grace-s": 4.0,
}
OF_CLIENTS = {"kill": Kind.KILL, "leave": Kind.LEAVE}
BUTTONS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(NAMES, ("kill", "leave", "stop")),
    "server": ("kill", "stop"),
    "superlink": ("restart", "stop"),
}
PROGRAMS = {"server": SERVER, "superlink": SUPERLINK}


@dataclass
class Press:
    """A button that was pressed; `outcome` is empty while its fault is being made."""

    at: float
    name: str
    button: str
    round: int
    outcome: str = ""


def started(folder: Path, run: str, rounds: int) -> Served:
    """Start the run under `fedgc serve`, with all files in a folder."""
    for each in ("tmp", "steps"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    environment = {
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))),
        "OMP_NUM_THREADS": "1",
        STEPS: str(folder / "steps"),
    }
    clients = {name: {"site": number, "pace-s": PACE_S} for number, name in enumerate(NAMES)}
    return Served(folder, {**SETTINGS, "run": run, "rounds": rounds}, clients, environment)


@dataclass
class Fleet:
    """The processes of a served run, and what was pressed."""

    served: Served
    presses: list[Press] = field(default_factory=list)
    stopped: dict[str, tuple[int, ...]] = field(default_factory=dict)  # process ids, by name
    lock: threading.Lock = field(default_factory=threading.Lock)

    def press(self, name: str, button: str) -> Press:
        """Make the fault of a button in a thread of its own, as it may wait for a process to appear.

        Raises:
            Unusable: There is no such process or button.
        """
        if button not in BUTTONS.get(name, ()):
            known = ", ".join(f"{each} ({' '.join(buttons)})" for each, buttons in BUTTONS.items())
            raise Unusable(f"button: saw {button!r} of {name!r}, needed one of {known}")
        made = Press(time.time(), name, button, self.served.last())
        self.presses.append(made)
        threading.Thread(target=self._make, args=(made,), daemon=True).start()
        return made

    def _make(self, made: Press) -> None:
        with self.lock:
            try:
                made.outcome = self._fault(made.name, made.button)
            except (FedgcError, OSError) as error:
                made.outcome = str(error)

    def _fault(self, name: str, button: str) -> str:
        if button == "stop":
            return self._stop_or_go_on(name)
        go_on(self.stopped.pop(name, ()))  # a stopped process hears no signal but SIGKILL
        kinds = {("server", "kill"): Kind.SERVER, ("superlink", "restart"): Kind.SUPERLINK}
        kind = kinds.get((name, button)) or OF_CLIENTS[button]
        make(Fault(kind, 0.0, name, 0.0), self.served)
        return kind.value.partition(": ")[2]

    def _stop_or_go_on(self, name: str) -> str:
        if name in self.stopped:
            go_on(self.stopped.pop(name))
            return "SIGCONT"
        self.stopped[name] = halt(self.served, PROGRAMS.get(name, name))
        return "SIGSTOP"

    def close(self) -> None:
        """Let all go on, and end the run."""
        for pids in self.stopped.values():
            go_on(pids)
        self.served.end()

    # ---- what the page shows

    def state(self) -> dict:
        """Return the processes, the run and the presses as JSON can hold them."""
        run = self.served.run()
        rounds = self.served.history() if run else ()
        metrics = [each.row.metrics["accuracy"] for each in rounds if "accuracy" in each.row.metrics]
        return {
            "processes": [
                {
                    "name": name,
                    "buttons": buttons,
                    "stopped": name in self.stopped,
                    "running": bool(self._pids(name)),
                }
                for name, buttons in BUTTONS.items()
            ],
            "serves": self.served.process.poll() is None,
            "phase": str(run.present.get("phase", "")) if run else "starting",
            "rounds": [[each.row.round, each.row.outcome] for each in rounds[-40:]],
            "counted": sum(each.counted for each in rounds),
            "exchanges": sum(each.row.outcome in SUMMED for each in rounds),
            "accuracy": metrics[-1] if metrics else None,
            "presses": [vars(each) for each in self.presses[-20:]],
        }

    def _pids(self, name: str) -> list[int]:
        if name in PROGRAMS:
            return self.served.programs(PROGRAMS[name])
        supervisor = self.served.supervisor(name)
        return self.served.programs(SUPERNODE, supervisor) if supervisor else []


@dataclass
class Steps:
    """The steps of each client: done, as it wrote down, and counted, as the history says."""

    served: Served
    unfinished: dict[str, int] = field(default_factory=dict)  # uncounted when a fault could take them

    def uncounted(self) -> dict[str, int]:
        """Return by client the steps that were done and that are in no sum so far."""
        done, counted = self.done(), self.counted()
        return {name: max(0, done[name] - counted[name]) for name in NAMES}

    def done(self) -> dict[str, int]:
        """Return by client the steps that were done."""
        files = {name: self.served.folder / "steps" / str(site) for site, name in enumerate(NAMES)}
        return {name: file.stat().st_size if file.exists() else 0 for name, file in files.items()}

    def counted(self) -> dict[str, int]:
        """Return by client the steps that are in a sum."""
        with self.served.store() as store:
            rows = rows_by_name(store, self.served.name)
        return {name: sum(row.counted for _, row in rows.get(name, ())) for name in NAMES}

    def note(self, name: str) -> None:
        """Note the steps that a client may lose by a fault now, with all that it has lost before."""
        self.unfinished[name] = self.uncounted()[name]

    def lost_beyond(self) -> int:
        """Return the steps that were lost beyond those that were unfinished at a fault of their client."""
        return sum(max(0, lost - self.unfinished.get(name, 0)) for name, lost in self.uncounted().items())


def eventually_over(served: Served, within_s: float, look: Callable[[], object] = lambda: None) -> bool:
    """Wait until `fedgc serve` ends by itself; return whether it did."""
    end = time.monotonic() + within_s
    while served.process.poll() is None and time.monotonic() < end:
        look()
        time.sleep(0.5)
    return served.process.poll() is not None
