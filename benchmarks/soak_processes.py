"""Memory and open files of the processes of a soak: samples, and what grows within the life of a process."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.served import CLIENT, SERVER, SUPERLINK, SUPERNODE, Served

PROGRAMS: Final = (SERVER, SUPERLINK, SUPERNODE, CLIENT)
WARM_ROUNDS: Final = 10  # of the run in a process's life: it still loads, connects and allocates
SHORT_ROUNDS: Final = 20  # lives with fewer rounds after these are not judged
PART: Final = 5  # the level after the warm-up is that of the first fifth of the samples, the end the last one


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

    def write(self, path: Path) -> None:
        """Write all samples as a table."""
        lines = [
            f"{program},{pid},{each.at:.1f},{each.round},{each.memory:.0f},{each.files}"
            for (program, pid), samples in self.lives.items()
            for each in samples
        ]
        path.write_text("\n".join(["program,pid,at,round,memory,files", *lines, ""]))

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
        if not (warm := _warm(samples)):
            continue
        round_, memory = np.array([(each.round, each.memory) for each in warm]).T
        off = round_ - round_.mean()
        above += float(off @ memory)
        below += float(off @ off)
        means += memory.tolist()
    return 100.0 * 100.0 * above / below / (sum(means) / len(means)) if below else None


def leaked_files(lives: Iterable[Sequence[Sample]]) -> int:
    """Return how many files are always open at the ends of the lives above the most after the warm-up.

    >>> leaks = [Sample(0.0, number, 1.0, 20 + number // 10) for number in range(100)]
    >>> leaked_files([leaks]), leaked_files([leaks[:30]])
    (6, 0)
    """
    return sum(_leaked(_warm(samples)) for samples in lives)


def _leaked(warm: Sequence[Sample]) -> int:
    part = max(1, len(warm) // PART)
    level = max((each.files for each in warm[:part]), default=0)
    return max(0, min((each.files for each in warm[-part:]), default=0) - level)


def _warm(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples after the warm-up; none if there were too few rounds."""
    warm = [each for each in samples if each.round >= samples[0].round + WARM_ROUNDS]
    return warm if warm and warm[-1].round >= warm[0].round + SHORT_ROUNDS else ()


def by_program(watch: Watch) -> Mapping[str, int]:
    """Return the leaked files of the server's, SuperLink's and SuperNodes' processes."""
    return {program: leaked_files(watch.of(program)) for program in (SERVER, SUPERLINK, SUPERNODE)}
