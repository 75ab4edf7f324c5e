"""Whether a run that the store calls running does run: its server's process is looked for.

A server that is killed says nothing more, so the store goes on to call its run running. With how it stands a
server therefore tells which process it is: where (this boot of this machine, and its namespace of process
ids), the process id, and when the process began, since ids are used again. Who reads the store in the same
place sees at once whether that process is there, and, until somebody has collected it, what ended it.
Elsewhere only silence tells.
"""

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedgc.store.views import Run

ALIVE_S: Final = 60.0  # a run that said nothing for so long has probably died, where its process is not seen
SERVER: Final = "server"  # its place in how a run stands
STOPPED: Final = "stopped without a word"
_BEGAN, _EXIT_CODE = 19, 49  # fields of /proc/PID/stat behind the name of the program, its state the first


@dataclass(frozen=True, slots=True)
class Process:
    """One process, told apart from all others; where that cannot be, `where` is empty."""

    where: str
    pid: int
    began: int

    def words(self) -> dict[str, str | int]:
        """Return it as the store keeps it."""
        return {"where": self.where, "pid": self.pid, "began": self.began}


def this_process() -> Process:
    """Return the process that asks."""
    told = _told_of(os.getpid())
    return Process(_here() if told else "", os.getpid(), int(told[_BEGAN]) if told else 0)


def ended(process: Mapping[str, Any]) -> str | None:
    """Return how a process ended, "" where it runs, None where that is not to be seen from here.

    >>> ended(this_process().words())
    ''
    """
    here, pid = _here(), process.get("pid")
    if not here or process.get("where") != here or type(pid) is not int:
        return None
    told = _told_of(pid)
    if not told or int(told[_BEGAN]) != process.get("began"):
        return "is gone"
    if told[0] not in ("Z", "X", "x"):
        return ""
    return _ending(int(told[_EXIT_CODE]))


def lost(run: Run) -> str | None:
    """Return how the server of a run that is called running has ended; "" where it goes on, None: unknown."""
    if run.state != "running":
        return ""
    process = run.present.get(SERVER)
    return ended(process) if isinstance(process, Mapping) else None


def alive(run: Run, now: float) -> bool:
    """Return whether a run goes on, as far as can be known from here."""
    gone = lost(run)
    if gone is None:
        return now - run.heard < ALIVE_S
    return run.state == "running" and not gone


def state_of(run: Run) -> str:
    """Return the state of a run, which for one whose server is gone is not what the store says."""
    return STOPPED if lost(run) else run.state


def reason_of(run: Run) -> str:
    """Return why a run is over: its own word, or that its server is gone."""
    gone = lost(run)
    if not gone:
        return run.reason
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.heard))
    return f"the server process {gone}{_in_round(run)}, last heard of at {since}"


def advice_for(run: Run) -> str:
    """Return how to go on with a run whose server is gone; nothing for others."""
    return f"`fedgc run --resume {run.run}` goes on" if run.rounds and lost(run) else ""


def _in_round(run: Run) -> str:
    number = run.present.get("round")
    return f" in round {number}" if type(number) is int and number else ""


def _ending(status: int) -> str:
    """Return an exit status in words, as `wait` gives it; 0 is what others than its owner are told.

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


def _told_of(pid: int) -> list[str]:
    """Return what the system tells of a process, from its state on; nothing where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _here() -> str:
    """Return this boot of this machine and this namespace of process ids; nothing where that is not told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
