"""Memory and open files of the processes of a soak: samples, and what grows within the life of a process."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from benchmarks.served import CLIENT, SERVER, SUPERLINK, SUPERNODE, Served

PROGRAMS: Final = (SERVER, SUPERLINK, SUPERNODE, CLIENT)
WARM_ROUNDS: Final = 10  # of a process's life: it still loads and allocates
SHORT_ROUNDS: Final = 20  # lives with fewer rounds after these do not enter a slope
WARM_S: Final = 20.0
SHORT_S: Final = 20.0  # the same for open files: SuperLinks and SuperNodes live through several runs
PART: Final = 5  # the level of open files is the median of a fifth of the samples


@dataclass(frozen=True, slots=True)
class Sample:
    """A process at one moment."""

    at: float
    round: int  # completed ones of the run
    memory: float  # resident bytes
    files: int  # open ones


@dataclass(slots=True)
class Watch:
    """Owns the samples of every process, by program and process id."""

    lives: dict[tuple[str, int], list[Sample]] = field(default_factory=dict)

    def look(self, served: Served, at: float, last_round: int) -> None:
        """Take a sample of every process."""
        for program in PROGRAMS:
            for pid in served.programs(program):
                with suppress(OSError, ValueError):  # it has just ended
                    taken = Sample(at, last_round, memory_of(pid), files_of(pid))
                    self.lives.setdefault((program, pid), []).append(taken)

    def of(self, *programs: str) -> list[Sequence[Sample]]:
        """Return the lives of these programs' processes."""
        return [samples for (program, _), samples in self.lives.items() if program in programs]


def memory_of(pid: int) -> float:
    """Return the resident bytes of a process."""
    words = Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()
    return 1024.0 * int(words[0]) if words else 0.0


def files_of(pid: int) -> int:
    """Return the number of open files of a process."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def slope_percent(lives: Iterable[Sequence[Sample]]) -> float | None:
    """Return the growth of memory in percent of its mean per 100 rounds; None if no life is long enough.

    Least squares with one slope for all lives, and an intercept for each.

    >>> grows = [Sample(0.0, number, 1000.0 + number, 5) for number in range(100)]
    >>> round(slope_percent([grows]), 2)
    9.48
    """
    above = below = 0.0
    means: list[float] = []
    for samples in lives:
        warm = [each for each in samples if each.round >= samples[0].round + WARM_ROUNDS]
        if not warm or warm[-1].round < warm[0].round + SHORT_ROUNDS:
            continue
        round_, memory = np.array([(each.round, each.memory) for each in warm]).T
        off = round_ - round_.mean()
        above += float(off @ memory)
        below += float(off @ off)
        means += memory.tolist()
    return 100.0 * 100.0 * above / below / (sum(means) / len(means)) if below else None


def leaked_files(lives: Iterable[Sequence[Sample]]) -> int:
    """Return how many files are open at the ends of the lives above the levels after the warm-up.

    >>> leaks = [Sample(float(second), 0, 1.0, 20 + second // 10) for second in range(100)]
    >>> leaked_files([leaks]), leaked_files([leaks[:30]])
    (7, 0)
    """
    return sum(_leaked(samples) for samples in lives)


def _leaked(samples: Sequence[Sample]) -> int:
    warm = [each for each in samples if each.at >= samples[0].at + WARM_S]
    if not warm or warm[-1].at < warm[0].at + SHORT_S:
        return 0
    part = max(1, len(warm) // PART)
    level, end = (median(each.files for each in some) for some in (warm[:part], warm[-part:]))
    return max(0, round(end - level))


def by_program(watch: Watch) -> Mapping[str, int]:
    """Return the leaked files of the server's, SuperLink's and SuperNodes' processes."""
    return {program: leaked_files(watch.of(program)) for program in (SERVER, SUPERLINK, SUPERNODE)}
