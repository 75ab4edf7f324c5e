"""The faults that buttons make: kill, leave, stop, cut off, fill the disk, restart; and what the page shows.

The signals are those of `python -m benchmarks soak`. Some buttons begin a fault, and end it if they are
pressed again.
"""

import resource
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from benchmarks.served import SERVER, SUPERLINK, SUPERNODE, Served, eventually
from benchmarks.soak_faults import Fault, Kind, go_on, halt, make
from examples.federation import rows_by_name
from examples.plugs.scene import GATEWAY, NAMES, Scene
from fedgc.errors import FedgcError, Unusable
from fedgc.messages import SUMMED

KILL, LEAVE, STOP, CUT, FILL, RESTART = "kill", "leave", "stop", "cut off", "fill disk", "restart"
BUTTONS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(NAMES, (KILL, LEAVE, STOP, CUT)),
    "server": (KILL, STOP, FILL),
    "superlink": (RESTART, STOP),
}
AGAIN: Mapping[str, str] = {STOP: "go on", CUT: "connect", FILL: "free disk"}  # those that are pressed twice
KINDS = {
    **{(name, KILL): Kind.KILL for name in NAMES},
    **{(name, LEAVE): Kind.LEAVE for name in NAMES},
    ("server", KILL): Kind.SERVER,
    ("superlink", RESTART): Kind.SUPERLINK,
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


@dataclass
class Fleet:
    """The processes of a served run, and what was pressed."""

    scene: Scene
    presses: list[Press] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _begun: dict[tuple[str, str], Callable[[], object]] = field(default_factory=dict)  # how faults end

    @property
    def served(self) -> Served:
        """The run."""
        return self.scene.served

    def press(self, name: str, button: str) -> Press:
        """Make the fault of a button in a thread of its own, as it may wait for a process to appear.

        Raises:
            Unusable: There is no such process or button.
        """
        if button not in BUTTONS.get(name, ()):
            known = ", ".join(f"{each} ({', '.join(buttons)})" for each, buttons in BUTTONS.items())
            raise Unusable(f"button: saw {button!r} of {name!r}, needed one of {known}")
        made = Press(time.time(), name, button, self.served.last())
        self.presses.append(made)
        threading.Thread(target=self._make, args=(made,), daemon=True).start()
        return made

    def _make(self, made: Press) -> None:
        with self.lock:
            try:
                made.outcome = self.fault(made.name, made.button)
            except (FedgcError, OSError) as error:
                made.outcome = str(error)

    def fault(self, name: str, button: str) -> str:
        """Make the fault of a button, or end it if it has begun; return what was done."""
        if button in AGAIN:
            if (end := self._begun.pop((name, button), None)) is not None:
                end()
                return AGAIN[button]
            self._begun[name, button] = self._begin(name, button)
            return button
        if (end := self._begun.pop((name, STOP), None)) is not None:
            end()  # a stopped process hears no signal but SIGKILL
        kind = KINDS[name, button]
        make(Fault(kind, 0.0, name, 0.0), self.served)
        return kind.value.partition(": ")[2]

    def _begin(self, name: str, button: str) -> Callable[[], object]:
        """Begin a fault; return how it ends."""
        if button == STOP:
            stopped = halt(self.served, PROGRAMS.get(name, name))
            return lambda: go_on(stopped)
        if button == CUT:
            self.scene.relay.cut(name)
            return lambda: self.scene.relay.mend(name)
        return fill_disk(self.served)

    def close(self) -> None:
        """End all faults that have begun."""
        for end in self._begun.values():
            end()

    # ---- what the page shows

    def state(self) -> dict:
        """Return the processes, the run and the presses as JSON can hold them."""
        run = self.served.run()
        rounds = self.served.history() if run else ()
        metrics = [each.row.metrics["accuracy"] for each in rounds if "accuracy" in each.row.metrics]
        begun = list(self._begun)
        return {
            "processes": [
                {
                    "name": name,
                    "buttons": {each: AGAIN[each] if (name, each) in begun else each for each in buttons},
                    "faults": [each for of, each in begun if of == name],
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


def fill_disk(served: Served) -> Callable[[], None]:
    """Let no file of the ServerApp grow, as on a full disk; return what ends that.

    The limit is of the process: a server that is started again has none.
    """
    eventually(lambda: served.programs(SERVER))
    pids = served.programs(SERVER)
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids}
    for pid, (_, most) in before.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))

    def free() -> None:
        for pid, limits in before.items():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)

    return free


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
        """Return by client the steps that are in a sum; those of a site's clients are in sums of the site."""
        with self.served.store() as store:
            rows = rows_by_name(store, self.served.name)
            with suppress(Unusable):  # the run of the site has not begun
                of_site = rows_by_name(store, f"{self.served.name}-{GATEWAY}").values()
                rows[GATEWAY] = [row for each in of_site for row in each]
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
