"""`python -m benchmarks soak`: a real federation under random faults for minutes, every sum recomputed.

A SuperLink, a ServerApp under `fedgc serve` and six clients over sessions run on this machine, with local
work for most of the time and with coded work for the rest. Faults come at random moments, from a seed: a
client is killed, stopped for some seconds, or asked to end; the ServerApp is killed; the SuperLink is
restarted (`soak_faults`). At the end every sum is recomputed (`soak_sums`).

    wrong_sums                    models that differ from what the history says was counted, or clients did
    rounds_lost, rounds_twice     gaps in the rounds or versions; versions that two rounds made
    handle_leaks                  open files above the level after the warm-up: server, SuperLink, SuperNodes
    tracebacks                    in the logs of all processes
    memory_slope_percent_per_100  growth of resident memory per 100 rounds, within the lives of processes
    longest_gap_s                 longest time without a completed round
    steps_kept_per_kill           local work: steps of a client that was ended which were counted without
                                  being done again, by the signal
    steps_at_stake_per_kill       those that it had done since the last exchange
    approximate                   exchanges of coded work that lack a chunk: their sums are not checked

A row is one kind of fault in one kind of work.
"""

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Final

from benchmarks import counting
from benchmarks import soak_sums as sums
from benchmarks.memory_watch import looking
from benchmarks.report import Figure, Report, Value, machine
from benchmarks.served import CLIENT, SERVER, Served, eventually
from benchmarks.soak_faults import Fault, Happened, Kind, make, schedule
from benchmarks.soak_processes import Watch, by_program, slope_percent
from fedgc.cli.clients import ClientSettings
from fedgc.deploy.app_folder import Setting
from fedgc.history import RoundRow

CLIENTS: Final = len(counting.LOCAL_SAMPLES)
LOCAL_SHARE: Final = 0.7  # of the minutes
QUIET_S: Final = 30.0  # without a fault at the end, so that all processes are back
LOOK_S: Final = 1.0  # between two samples
PACE_S: Final = 0.05  # least time of a step: the machine has room for processes that start
COMMON: Final[dict[str, Setting]] = {
    "rounds": 10**6,
    "min-clients": 4,
    "timing.start-timeout-s": 600.0,
    "client.threads": 1,
    "links.kind": "session",
    "links.grace-s": 6.0,
    "history.keep-checkpoints": 10**6,
    "history.evaluate-every": 0,
}
SETTINGS: Final[Mapping[str, Mapping[str, Setting]]] = {
    "local": {
        **COMMON,
        "run": "soak-local",
        "task": "benchmarks.counting:by_client",
        "work": "local",
        "gate.name": "every",
        "local-steps": 16,
        "learning-rate": 1.0,
        "optimizer.shared-momentum": "off",
        "aggregation.rule": "weighted-mean",
        "aggregation.largest-share": 1.0,
    },
    "coded": {
        **COMMON,
        "run": "soak-coded",
        "task": "benchmarks.counting:small",
        "work": "coded",
        "data.chunks": counting.CHUNKS,
        "local-steps": counting.STEPS,
        "learning-rate": counting.CHUNKS / counting.STEPS,
        "code.blocks": 1,
        "code.replicas": 3,
    },
}
SIGNALS: Final = {Kind.LEAVE: "SIGTERM", Kind.KILL: "SIGKILL"}


@dataclass(frozen=True, slots=True)
class Kept:
    """The steps of a client that was ended: done since the last exchange, and counted."""

    fault: Happened
    at_stake: int
    kept: int


@dataclass(slots=True)
class Soaked:
    """What was seen of one kind of work."""

    work: str
    faults: list[Happened] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)
    completed: list[float] = field(default_factory=list)  # when a new round was seen
    rows: Sequence[RoundRow] = ()
    checked: Sequence[sums.Exchange] = ()
    wrong: Sequence[str] = ()
    lost: int = 0
    kept: Sequence[Kept] = ()
    tracebacks: int = 0

    @property
    def approximate(self) -> int:
        """The exchanges of coded work whose sum lacks a chunk."""
        return sum(row.outcome == "approximate" for row in self.rows) if self.work == "coded" else 0

    @property
    def longest_gap_s(self) -> float:
        """The longest time between two completed rounds."""
        return max((b - a for a, b in zip(self.completed, self.completed[1:], strict=False)), default=0.0)


def bench_soak(minutes: float, seed: int, folder: Path | None = None) -> Report:
    """Run the benchmark; `folder` keeps the stores, checkpoints and logs."""
    shares = {"local": LOCAL_SHARE, "coded": 1.0 - LOCAL_SHARE}
    where = tempfile.TemporaryDirectory(prefix="fedgc-bench-") if folder is None else nullcontext(str(folder))
    with where as name:
        found = [
            _soaked(work, Path(name) / work, 60.0 * minutes * share, seed) for work, share in shares.items()
        ]
    for each in found:
        for line in each.wrong:
            sys.stderr.write(f"{each.work}: {line}\n")
    return Report(figures(found), [row for each in found for row in rows(each)], machine())


def figures(found: Sequence[Soaked]) -> dict[str, Figure]:
    """Return the figures of all kinds of work."""
    lives = {
        program: [life for each in found for life in each.watch.of(program)] for program in (SERVER, CLIENT)
    }
    leaks: Counter[str] = Counter()
    for each in found:
        leaks.update(by_program(each.watch))
    kept = [each for part in found for each in part.kept]
    return {
        "wrong_sums": sum(len(each.wrong) for each in found),
        "rounds_lost": sum(each.lost for each in found),
        "rounds_twice": sum(sums.rounds_twice(each.rows) for each in found),
        "handle_leaks": sum(leaks.values()),
        "tracebacks": sum(each.tracebacks for each in found),
        "memory_slope_percent_per_100": {
            "server": slope_percent(lives[SERVER]),
            "client": slope_percent(lives[CLIENT]),
        },
        "longest_gap_s": max(each.longest_gap_s for each in found),
        "steps_kept_per_kill": _mean_by_signal(kept, "kept"),
        "steps_at_stake_per_kill": _mean_by_signal(kept, "at_stake"),
        "rounds": sum(len(each.rows) for each in found),
        "sums_checked": sum(len(each.checked) for each in found),
        "approximate": sum(each.approximate for each in found),
        "faults": sum(len(each.faults) for each in found),
        "handle_leaks_by_program": dict(leaks),
    }


def _mean_by_signal(kept: Sequence[Kept], name: str) -> dict[str, float | None]:
    by = {
        words: [getattr(each, name) for each in kept if each.fault.kind is kind]
        for kind, words in SIGNALS.items()
    }
    return {words: fmean(some) if some else None for words, some in by.items()}


def rows(found: Soaked) -> Iterator[dict[str, Value]]:
    """Yield a row for each kind of fault."""
    for kind in Kind:
        faults = [each for each in found.faults if each.kind is kind]
        kept = [each for each in found.kept if each.fault.kind is kind]
        measured = found.work == "local" and kind in SIGNALS
        yield {
            "fault": kind.value,
            "work": found.work,
            "times": len(faults),
            "longest_recovery_s": max((each.recovery_s for each in faults), default=None),
            "steps_at_stake": sum(each.at_stake for each in kept) if measured else None,
            "steps_kept": sum(each.kept for each in kept) if measured else None,
        }


# ---- the run


def _soaked(work: str, folder: Path, seconds: float, seed: int) -> Soaked:
    """Run one kind of work under faults, and check it."""
    for each in ("tmp", "logs", "steps"):
        (folder / each).mkdir(parents=True)
    environment = {
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": str(Path(counting.__file__).parents[1]),
        counting.STEPS_FOLDER: str(folder / "steps"),
    }
    found = Soaked(work)
    served = Served(folder, SETTINGS[work], _clients(), environment)
    try:
        eventually(lambda: served.last() >= 1 or served.process.poll() is not None)
        with _watched(served, found):
            found.faults += _faults(served, seconds, seed)
    finally:
        _link_logs(folder)
        served.end()
    _check(found, served)
    return found


def _clients() -> ClientSettings:
    return {f"client-{part}": {"part": part, "pace-s": PACE_S} for part in range(CLIENTS)}


def _faults(served: Served, seconds: float, seed: int) -> Iterator[Happened]:
    """Make faults until the time is over, each after a completed round."""
    end = time.monotonic() + seconds
    for fault in schedule(seed, list(served.clients)):
        if time.monotonic() + fault.after_s + QUIET_S > end:
            break
        time.sleep(fault.after_s)
        yield _made(fault, served)
    time.sleep(max(0.0, end - time.monotonic()))
    served.goes_on(1)


def _made(fault: Fault, served: Served) -> Happened:
    happened = make(fault, served)
    served.goes_on(1)
    return replace(happened, recovery_s=time.time() - happened.at)


@contextmanager
def _watched(served: Served, found: Soaked) -> Iterator[None]:
    """Take samples of the run and its processes in a thread while the block runs."""
    last = 0

    def look() -> None:
        nonlocal last
        now, reached = time.monotonic(), served.last()
        if reached > last:
            last = reached
            found.completed.append(now)
        found.watch.look(served, now, reached)

    with looking(look, LOOK_S):
        yield


def _link_logs(folder: Path) -> None:
    """Keep the logs of the federation, whose folder is removed when `fedgc serve` ends."""
    for log in (folder / "tmp").glob("fedgc-*/*.log"):
        with suppress(OSError):
            (folder / "logs" / log.name).hardlink_to(log)


# ---- the check


def _check(found: Soaked, served: Served) -> None:
    """Recompute all sums from the history, the checkpoints and what clients wrote down."""
    folder = served.folder
    found.watch.write(folder / "processes.csv")
    made = sums.models(folder / "state" / "fedgc" / "runs" / served.name)
    with served.store() as store:
        found.rows = [each.row for each in store.rounds(served.name)]
        told = sums.exchanges(store, served.name)
    steps = {part: sums.steps_of(folder / "steps" / f"part-{part}", part, made) for part in range(CLIENTS)}
    local = found.work == "local"
    found.checked = [each for each in told if local or each.outcome == "synced"]
    found.wrong = [
        *(sums.wrong_local_sums(told, made, steps) if local else sums.wrong_coded_sums(told, made))
    ]
    found.lost = sums.rounds_lost(found.rows, made)
    found.kept = list(kept_of(found.faults, told, steps)) if local else ()
    logs = [*(folder / "logs").glob("*.log"), folder / "serve.out"]
    found.tracebacks = sum(log.read_text(errors="replace").count("Traceback (most recent") for log in logs)


def kept_of(
    faults: Sequence[Happened], told: Sequence[sums.Exchange], steps: Mapping[int, sums.Steps]
) -> Iterator[Kept]:
    """Yield what a run kept of each client that was ended while it had steps that were not exchanged."""
    by_version = {each.version: each for each in told}
    for fault in faults:
        if fault.kind not in SIGNALS:
            continue
        part = int(fault.client.removeprefix("client-"))
        version = steps[part].last(fault.ended)
        exchange = by_version.get(version)
        if exchange is None or exchange.ended < fault.at:
            continue  # all that it had done was exchanged
        at_stake = steps[part].done(version, fault.ended)
        new = exchange.counted.get(part, 0) - steps[part].again(version, fault.ended)
        yield Kept(fault, at_stake, min(at_stake, max(0, new)))
