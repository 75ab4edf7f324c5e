"""Whether the server process of a run is alive.

A killed server cannot record its end, so the store still lists its run as running. A server therefore records
its process: its place (boot id of the machine and namespace of process ids), its process id, and its start
time, since ids are reused. A reader in the same place sees at once whether that process exists and, until its
parent has reaped it, how it ended. Elsewhere only the time since the last record is known, by two clocks:
that of the server, and that of the reader. A record from the future says that they differ, and not that the
server is alive.
"""

import json
import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedgc.store.engine import runs_folder
from fedgc.store.views import Run

ALIVE_S: Final = 60.0  # a run without a record for so long has probably died, if its process is not visible
SERVER: Final = "server"  # its key in the state of a run
SUPERLINK: Final = "superlink"  # the key of the SuperLink whose clients it asks
CRASHED: Final = "crashed"
LOCK: Final = "lock"  # in the folder of a run on this machine: held by the command that has started it
SUPERLINK_ENDED: Final = "its SuperLink has ended"  # the reason of a run that its user has not stopped
_BEGAN, _EXIT_CODE = 19, 49  # fields of /proc/PID/stat behind the program's name; the first is the state


@dataclass(frozen=True, slots=True)
class Process:
    """One process, uniquely identified; `where` is empty if that is not possible."""

    where: str
    pid: int
    began: int

    def words(self) -> dict[str, str | int]:
        """Return it as the store keeps it."""
        return {"where": self.where, "pid": self.pid, "began": self.began}


def this_process() -> Process:
    """Return the current process."""
    stat = _stat_of(os.getpid())
    return Process(_here() if stat else "", os.getpid(), int(stat[_BEGAN]) if stat else 0)


def ended(process: Mapping[str, Any]) -> str | None:
    """Return how a process ended, "" if it runs, None if that is not visible from here.

    >>> ended(this_process().words())
    ''
    """
    here, pid = _here(), process.get("pid")
    if not here or process.get("where") != here or type(pid) is not int:
        return None
    stat = _stat_of(pid)
    if not stat or int(stat[_BEGAN]) != process.get("began"):
        return "is gone"
    if stat[0] not in ("Z", "X", "x"):
        return ""
    return _ending(int(stat[_EXIT_CODE]))


def lost(run: Run) -> str | None:
    """Return how the server of a running run has ended; "" if it is alive, None: unknown."""
    if run.state != "running":
        return ""
    process = run.present.get(SERVER)
    return ended(process) if isinstance(process, Mapping) else None


def alive(run: Run, now: float) -> bool:
    """Return whether a run is alive, as far as it is visible from here."""
    gone = lost(run)
    if gone is None:
        return abs(now - run.heard) < ALIVE_S
    return run.state == "running" and not gone


def busy_with(runs: Iterable[Run], own: str, superlink: object, now: float) -> tuple[str, ...]:
    """Return the other runs that are alive on a SuperLink: its SuperNodes serve one run at a time.

    Without a SuperLink there are none: it is not known which clients they have. Runs of stock clients keep no
    SuperNode for themselves.
    """
    same = (
        each
        for each in runs
        if superlink
        and each.present.get(SUPERLINK) == superlink
        and each.settings.get("client.app") != "stock"
    )
    return tuple(each.run for each in same if each.run != own and alive(each, now))


def state_of(run: Run) -> str:
    """Return the state of a run; "crashed" if its server is gone."""
    return CRASHED if lost(run) else run.state


def reason_of(run: Run) -> str:
    """Return why a run is over: its recorded reason, or that its server is gone."""
    gone = lost(run)
    if not gone:
        return run.reason
    since = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(run.heard))
    return f"the server process {gone}{_where(run)}, last heard of at {since}"


def advice_for(run: Run) -> str:
    """Return how to resume a run whose server is gone; empty for others, and without a model."""
    if not run.models or not lost(run):
        return ""
    command = read_process(runs_folder("", os.environ) / run.first_start / LOCK)
    if ended(command) == "":
        return f"process {command['pid']} has started it and still runs; `fedgc serve` resumes it by itself"
    return f"`fedgc run --resume {run.first_start}` goes on"


def read_process(path: Path) -> Mapping[str, Any]:
    """Return the process whose `words` are in a file; empty if there are none."""
    with suppress(OSError, ValueError):
        words = json.loads(path.read_text())
        return words if isinstance(words, dict) else {}
    return {}


def _where(run: Run) -> str:
    number = run.present.get("round")
    if type(number) is not int or not number:
        return ""
    return f" {'in' if number > (run.last_round or 0) else 'after'} round {number}"


def _ending(status: int) -> str:
    """Return a wait status in words; other users than the owner see 0.

    >>> _ending(9), _ending(1 << 8), _ending(0)
    ('was killed by SIGKILL', 'ended with exit code 1', 'is gone')
    """
    if not status:
        return "is gone"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = number in set(signal.Signals)
        return f"was killed by {signal.Signals(number).name if known else f'signal {number}'}"
    return f"ended with exit code {os.waitstatus_to_exitcode(status)}"


def _stat_of(pid: int) -> list[str]:
    """Return the /proc/PID/stat fields of a process, from its state on; empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _here() -> str:
    """Return the boot id of this machine and its namespace of process ids; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
