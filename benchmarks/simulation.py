"""`python -m benchmarks simulation`: clients a second of simulated training, beside others' simulators.

100 clients a round, one local epoch each, the network and data of `femnist_like`, on all cores. Each
simulator runs alone, one after the other; the time is the median of the rounds after the first one, without
the start of processes. Flower's simulation engine (Ray) gives a client 2 cores, as in its quickstart, or 1;
the quicker way counts. pfl-research runs under torchrun with one process for each core.

The machine must be idle. torchrun gives each process a session of its own, and Linux shares out busy cores by
sessions (`kernel.sched_autogroup_enabled`): beside other work pfl-research gets more of them than the others.

A simulator whose packages are missing is skipped by name. They can be in an interpreter of their own
(`--flower-python`, `--pfl-python`): pfl-research needs another release of `dp-accounting` than our tests.

Figures:

    clients_per_s_over_flower   fedgc's clients a second over those of Flower's engine
    clients_per_s_over_pfl      over those of pfl-research
    memory_10000_over_100       peak memory of all processes with 10,000 clients over that with 100, with one
                                step of each client and a narrower network (the states of all clients of a
                                round are on the disk); without mapped files, which the system can take back.
                                The few clients train in ten times as many rounds, until the memory of the
                                processes grows no more
    stack_cpu                   fedgc's clients a second with all clients of a round as one batch of models,
                                over those of one process for each core
    stack_cpu_narrow            the same with the narrower network
    stack_cuda, _narrow         the same on a GPU (`--device cuda`), over one process or four that share it,
                                whichever is quicker
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.femnist_like import BATCH, SAMPLES, WIDTH
from benchmarks.memory_watch import resident_bytes
from benchmarks.report import Report, Value, machine
from fedgc.errors import EdgeFailed

ROOT: Final = Path(__file__).parents[1]
CORES: Final = os.cpu_count() or 1
NARROW: Final = 4
FEW_ROUNDS: Final = 20
ON_GPU: Final = 4  # processes that share one
LOOK_S: Final = 0.05
LIMIT_S: Final = 1200.0
QUIET: Final = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
NEEDS: Final = {"flower": "ray", "pfl": "pfl"}  # the package without which a simulator is skipped


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the benchmark."""

    clients: int
    rounds: int
    many: int  # clients of the measurement of memory


QUICK: Final = Size(10, 3, 100)
USUAL: Final = Size(100, 6, 10_000)


@dataclass(frozen=True, slots=True)
class Program:
    """One simulator with its arguments."""

    name: str
    words: Sequence[str]
    python: str = sys.executable
    settings: Mapping[str, str] = field(default_factory=dict)

    def command(self) -> list[str]:
        """Return the command line."""
        launcher = ("torch.distributed.run", "--standalone", f"--nproc-per-node={CORES}", "-m")
        before = launcher if self.name == "pfl" else ()
        return [self.python, "-m", *before, f"benchmarks.simulators.{self.name}", *self.words]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a program took: the seconds of each round, and the peak memory of all its processes."""

    rounds_s: Sequence[float]
    peak_bytes: int

    @property
    def round_s(self) -> float:
        """Return the median time of a round after the first one."""
        return median(self.rounds_s[1:])


def bench_simulation(size: Size, pythons: Mapping[str, str]) -> Report:
    """Run all simulators; `pythons` has the interpreter of each other one."""
    rows: list[Mapping[str, Value]] = []
    own = _timed(_own(size, CORES), size, rows)
    flower = []
    for cpus in (1, 2):
        words, threads = _words(size.clients, size.rounds, cpus), {"OMP_NUM_THREADS": str(cpus)}
        flower.append(_timed(Program("flower", words, pythons["flower"], threads), size, rows))
    pfl = _timed(Program("pfl", _words(size.clients, size.rounds), pythons["pfl"]), size, rows)
    few, many = (
        _timed(_own(alone, CORES, samples=BATCH, width=NARROW), alone, rows)
        for alone in (Size(size.clients, FEW_ROUNDS, 0), Size(size.many, 2, 0))
    )
    figures = {
        **_stacks(size, "cpu", rows, own),
        "clients_per_s_over_flower": _ratio(min(filter(None, flower), key=_round_s, default=None), own),
        "clients_per_s_over_pfl": _ratio(pfl, own),
        "memory_10000_over_100": many.peak_bytes / few.peak_bytes if many and few else None,
    }
    return Report(figures, rows, machine(), [0])


def bench_stack(size: Size, device: str) -> Report:
    """Run fedgc alone on a device."""
    rows: list[Mapping[str, Value]] = []
    return Report(_stacks(size, device, rows), rows, machine(), [0])


def _stacks(
    size: Size, device: str, rows: list[Mapping[str, Value]], own: Ran | None = None
) -> dict[str, float | None]:
    """Train all clients of a round as one batch of models, and one by one in processes; return the ratios.

    `own` is what the processes took for the wide network, if that was measured before.
    """
    figures = {}
    for name, width in (("", WIDTH), ("_narrow", NARROW)):
        counts = (CORES,) if device == "cpu" else (1, ON_GPU)
        processes = (
            [own]
            if own is not None and width == WIDTH
            else [_timed(_own(size, count, width=width, device=device), size, rows) for count in counts]
        )
        stack = _timed(_own(size, 1, width=width, stack=size.clients, device=device), size, rows)
        figures[f"stack_{device}{name}"] = _ratio(
            min(filter(None, processes), key=_round_s, default=None), stack
        )
    return figures


def _own(
    size: Size,
    processes: int,
    *,
    samples: int = SAMPLES,
    width: int = WIDTH,
    stack: int = 1,
    device: str = "cpu",
) -> Program:
    words = _words(size.clients, size.rounds, processes, samples, width)
    return Program("fedgc", words if (device, stack) == ("cpu", 1) else [*words, device, str(stack)])


def _round_s(ran: Ran) -> float:
    return ran.round_s


def _words(*numbers: int) -> list[str]:
    return [str(each) for each in numbers]


def _ratio(other: Ran | None, own: Ran | None) -> float | None:
    return other.round_s / own.round_s if other and own else None


def _timed(program: Program, size: Size, rows: list[Mapping[str, Value]]) -> Ran | None:
    """Run a program and add its row; None if its package is missing."""
    row: dict[str, Value] = {"simulator": program.name, "arguments": " ".join(program.words)}
    package = NEEDS.get(program.name)
    if package and not _has(program.python, package):
        rows.append({**row, "skipped": f"{package} cannot be imported by {program.python}"})
        return None
    ran = _run(program)
    per_s = size.clients / ran.round_s
    rows.append({**row, "round_s": ran.round_s, "clients_per_s": per_s, "peak_mb": ran.peak_bytes / 1e6})
    return ran


def _has(python: str, package: str) -> bool:
    try:
        return subprocess.run([python, "-c", f"import {package}"], capture_output=True).returncode == 0  # noqa: S603
    except OSError:
        return False


def _run(program: Program) -> Ran:
    settings = {**os.environ, **QUIET, **program.settings, "PYTHONPATH": str(ROOT)}
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(  # noqa: S603
            program.command(), cwd=ROOT, env=settings, stdout=out, stderr=log
        ) as process,
    ):
        peak, ends = 0, time.monotonic() + LIMIT_S
        while process.poll() is None:
            peak = max(peak, sum(map(resident_bytes, _family(process.pid))))
            if time.monotonic() > ends:
                process.kill()
            time.sleep(LOOK_S)
        out.seek(0), log.seek(0)
        found = [line for line in out.read().splitlines() if line.startswith('{"moments"')]
        if process.returncode or not found:
            last = log.read().strip().splitlines()[-1:]
            raise EdgeFailed(f"{program.name}: ended with {process.returncode}: {' '.join(last)}")
    moments = json.loads(found[0])["moments"]
    return Ran([after - before for before, after in pairwise(moments)], peak)


def _family(pid: int) -> Iterator[int]:
    """Yield a process and those that it started, directly or not."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    family = [pid]
    for each in family:
        family += [child for child, parent in parents.items() if parent == each]
    yield from family


def text_lines(report: Report) -> Iterator[str]:
    """Yield a line for each simulator."""
    for row in report.rows:
        name = f"{row['simulator']} {row['arguments']}"
        if "skipped" in row:
            yield f"{name:24} skipped: {row['skipped']}"
        else:
            yield f"{name:24} {row['clients_per_s']:8.1f} clients/s  {row['peak_mb']:8.0f} MB"
