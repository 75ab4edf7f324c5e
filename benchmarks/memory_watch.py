"""The memory and the processor time of processes while they run.

The memory is what the system cannot take back, which is all but mapped files.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

LOOK_S: Final = 0.02
SEARCH_S: Final = 0.25  # between two searches for a process that is not there yet
OWN: Final = ("RssAnon",)
FIELDS: Final = (*OWN, "RssShmem")

Find = Callable[[], int | None]


def resident_bytes(pid: int, fields: Sequence[str] = FIELDS) -> int:
    """Return the memory of a process in bytes, without mapped files; 0 if it has ended.

    With the fields `OWN`, also without shared memory, where arrays are only while memory is plentiful.
    """
    with suppress(OSError, KeyError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        return sum(1024 * int(status[name].split()[0]) for name in fields)
    return 0


def processor_s(pid: int) -> float:
    """Return the processor time of a process in seconds; 0 if it has ended."""
    return _spent_s(Path(f"/proc/{pid}/stat"))


def thread_s(pid: int, thread: int) -> float:
    """Return the processor time of a thread in seconds, by its number in the system; 0 if it has ended."""
    return _spent_s(Path(f"/proc/{pid}/task/{thread}/stat"))


def _spent_s(stat: Path) -> float:
    with suppress(OSError):
        ticks = stat.read_text().rpartition(")")[2].split()
        return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


@dataclass(slots=True)
class MemoryWatch:
    """The least and the largest memory that was seen of each process, by its name here."""

    first: dict[str, int] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    own: dict[str, int] = field(default_factory=dict)  # the largest memory, without shared memory
    _pids: dict[str, int] = field(default_factory=dict)
    _searched: float = 0.0

    def look(self, finders: Mapping[str, Find]) -> None:
        """Sample all processes; search for those that are not known."""
        searches = time.monotonic() >= self._searched + SEARCH_S
        for name, find in finders.items():
            if name not in self._pids and searches:
                self._searched = time.monotonic()
                if (found := find()) is not None:
                    self._pids[name] = found
            if seen := resident_bytes(self._pids[name]) if name in self._pids else 0:
                self.first.setdefault(name, seen)
                self.peak[name] = max(self.peak.get(name, 0), seen)
                self.own[name] = max(self.own.get(name, 0), resident_bytes(self._pids[name], OWN))


@contextmanager
def watched(finders: Mapping[str, Find]) -> Iterator[MemoryWatch]:
    """Watch processes in a thread; each is found by a function, once it is there."""
    watch = MemoryWatch()
    with looking(lambda: watch.look(finders), LOOK_S):
        yield watch


@contextmanager
def looking(look: Callable[[], object], every_s: float) -> Iterator[None]:
    """Call `look` again and again in a thread while the block runs."""
    over = threading.Event()

    def keep() -> None:
        while not over.wait(every_s):
            look()

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
