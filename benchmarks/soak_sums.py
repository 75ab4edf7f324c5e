"""The sums of a run, recomputed with numpy from its history, and what its clients wrote down.

The updates of the tasks in `benchmarks.counting` are known: the change from one model to the next tells which
steps or chunks are in the sum, and how often. Every model is read from its checkpoint. A sum is wrong if the
model is not the one before plus the weighted mean of the work that the history says was counted, or if more
steps of a client are counted than it has done from that model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.counting import CHUNKS, LOCAL_SAMPLES, SMALL, STEP, STEPS
from fedgc.history import RoundRow
from fedgc.messages import SUMMED
from fedgc.store import checkpoint
from fedgc.store.database import Store

Model = NDArray[np.float32]
TOLERANCE: Final = 0.1  # steps: far from another one
ULP: Final = float(np.finfo(np.float32).eps)
ROUNDINGS: Final = 4  # of an update, its weight, the mean and the step, beside one for each local step


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the history says of an exchanged round: the work in the sum that made version + 1."""

    round: int
    version: int
    outcome: str
    ended: float  # seconds since 1970
    counted: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))  # by part: local steps


@dataclass(frozen=True, slots=True)
class Steps:
    """The local steps of one client: when, from which version, and how many with this one."""

    at: NDArray[np.float64]
    version: NDArray[np.int64]  # -1: from a model that the run has abandoned
    reached: NDArray[np.int64]

    def done(self, version: int, until: float = np.inf) -> int:
        """Return how many steps from this version were done by then; steps done again count once."""
        return int(self.reached[(self.version == version) & (self.at <= until)].max(initial=0))

    def again(self, version: int, after: float) -> int:
        """Return how many steps from this version were done after that moment."""
        return int(((self.version == version) & (self.at > after)).sum())

    def last(self, until: float) -> int:
        """Return the version from which the last step by then was done, or -1."""
        before = self.version[self.at <= until]
        return int(before[-1]) if before.size else -1


# ---- what was recorded


def exchanges(store: Store, run: str) -> list[Exchange]:
    """Return the exchanged rounds of a run with the steps of each client, in order."""
    parts = {each.client: int(each.name.removeprefix("client-")) for each in store.clients()}
    rows = [each.row for each in store.rounds(run) if each.row.outcome in SUMMED]
    return [
        Exchange(
            row.round,
            row.version,
            row.outcome,
            row.started + row.working_s + row.collecting_s,
            {parts[each.client]: each.counted for each in store.client_rows(run, row.round) if each.counted},
        )
        for row in rows
    ]


def models(folder: Path) -> dict[int, Model]:
    """Return the model of every version that has a checkpoint, and the first one, which has none."""
    saved = {version: checkpoint.load(folder, version).model for version in checkpoint.versions(folder)}
    return {0: np.zeros(SMALL, np.float32), **saved}


def steps_of(path: Path, part: int, models: Mapping[int, Model]) -> Steps:
    """Return the steps that a client wrote down, each with the version from which it was done."""
    raw = path.read_bytes() if path.exists() else b""
    told = np.frombuffer(raw[: len(raw) - len(raw) % STEP.itemsize], STEP)
    known: dict[bytes, list[tuple[int, float]]] = {}
    for version, model in models.items():
        firsts = model.reshape(CHUNKS, -1)[:, 0]
        known.setdefault(np.delete(firsts, part).tobytes(), []).append((version, float(firsts[part])))
    placed = [_placed(firsts, part, known) for firsts in told["firsts"]]
    version, reached = np.array(placed or np.zeros((0, 2)), np.int64).T
    return Steps(told["at"].astype(np.float64), version, reached)


def _placed(
    firsts: NDArray[Any], part: int, known: Mapping[bytes, Sequence[tuple[int, float]]]
) -> tuple[int, int]:
    """Return the version that a step was done from, and the number of the step; (-1, 0) if none fits."""
    own = float(firsts[part])
    for version, base in reversed(known.get(np.delete(firsts, part).tobytes(), ())):
        before = round(own - base)
        if before >= 0 and abs(own - base - before) < TOLERANCE:
            return version, before + 1
    return -1, 0


# ---- the check


def rounds_twice(rows: Sequence[RoundRow]) -> int:
    """Return how many exchanged rounds began from a version that another one began from."""
    begun = [row.version for row in rows if row.outcome in SUMMED]
    return len(begun) - len(set(begun))


def rounds_lost(rows: Sequence[RoundRow], models: Mapping[int, Model]) -> int:
    """Return how many rounds the history lacks, and how many of the versions that it names have no model."""
    lacking = set(range(1, max((row.round for row in rows), default=0) + 1)) - {row.round for row in rows}
    made = max((row.version + 1 for row in rows if row.outcome in SUMMED), default=0)
    begun = {row.version for row in rows if row.outcome in SUMMED}
    return len(lacking) + len(set(range(made)) - begun) + len(set(range(1, made + 1)) - models.keys())


def wrong_local_sums(
    told: Sequence[Exchange], models: Mapping[int, Model], steps: Mapping[int, Steps]
) -> Iterator[str]:
    """Yield what is wrong with each wrong sum of local work."""
    for each in told:
        if {each.version, each.version + 1} <= models.keys():
            before, after = models[each.version], models[each.version + 1]
            more = [
                f"part {part}: {count} steps are counted, {steps[part].done(each.version)} were done"
                for part, count in each.counted.items()
                if count > steps[part].done(each.version)
            ]
            mean, most = local_mean(each.counted, before.size), max(each.counted.values(), default=0)
            if wrong := _difference(before, after, mean, most) + more:
                yield f"round {each.round}, version {each.version + 1}: {'; '.join(wrong)}"


def wrong_coded_sums(told: Sequence[Exchange], models: Mapping[int, Model]) -> Iterator[str]:
    """Yield what is wrong with each wrong sum of coded work that is not marked as approximate."""
    for each in told:
        if each.outcome == "synced" and {each.version, each.version + 1} <= models.keys():
            before, after = models[each.version], models[each.version + 1]
            if wrong := _difference(before, after, np.tile(_pattern(before.size), CHUNKS), STEPS):
                yield f"round {each.round}, version {each.version + 1}: {'; '.join(wrong)}"


def local_mean(counted: Mapping[int, int], size: int) -> NDArray[np.float64]:
    """Return the mean of the counted steps, weighted by samples, as a change of the model.

    >>> local_mean({0: 3, 5: 1}, 8).round(2).tolist()
    [0.67, 0.0, 0.0, 0.0, 0.0, 0.78, 0.0, 0.0]
    """
    mean = np.zeros((CHUNKS, size // CHUNKS))
    total = sum(LOCAL_SAMPLES[part] for part in counted)
    for part, count in counted.items():
        mean[part] = LOCAL_SAMPLES[part] * count / total * _pattern(size)
    return mean.ravel()


def _pattern(size: int) -> NDArray[np.float64]:
    return 1.0 + np.arange(size // CHUNKS, dtype=np.float64) % 7


def _difference(before: Model, after: Model, needed: NDArray[np.float64], steps: int) -> list[str]:
    """Return where the change of the model is another one, beyond what float32 rounds."""
    moved = after.astype(np.float64) - before
    rounding = (ROUNDINGS + steps) * ULP * np.maximum(np.abs(before), np.abs(after))
    wrong = (np.abs(moved - needed) > rounding).reshape(CHUNKS, -1).any(axis=1)
    firsts, wanted = (each.reshape(CHUNKS, -1)[:, 0] for each in (moved, needed))
    return [
        f"part {part} moved by {firsts[part]:.4g}, needed {wanted[part]:.4g}"
        for part in np.flatnonzero(wrong).tolist()
    ]
