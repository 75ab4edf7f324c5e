"""One arm in one scene: tuned on seeds of its own, then measured, by `run` under the clock of `replay`.

Every arm gets the same budget: it is trained once at each of its rates on the tuning seed, and the rate with
the best accuracy at the end is taken. A run that leaves the finite numbers counts as nothing learnt.

Bytes are all that moves: models down, updates up as they are packed, a report and a command for each device
and look, samples that a step takes from other devices (but not those that it takes twice), and what a
placement sends before the run (every copy that it deals, whoever had it before).

May import: sim and below; arms, scene.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from multiprocessing import get_context
from typing import Final

from fedgc.bench.arms import COPIES, PIECES, Arm
from fedgc.bench.report import Value
from fedgc.bench.scene import DEVICES, Scene, read, shared_samples, task_of, weather_of
from fedgc.config import RunConfig
from fedgc.errors import FedgcError
from fedgc.plan import injected
from fedgc.run import CHECK_BYTES
from fedgc.sim.training import Job, Point, Trained, train
from fedgc.train import CommonModel

TUNING_SEED: Final = 1000


@dataclass(frozen=True, slots=True)
class Length:
    """How long a run is, how many rates are tried, how many seeds are reported."""

    steps: int
    rates: int
    seeds: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A run as it is judged: after each evaluation, seconds, megabytes and accuracy in points."""

    seconds: tuple[float, ...]
    megabytes: tuple[float, ...]
    points: tuple[float, ...]

    def at(self, seconds: float) -> float:
        """Return the accuracy that is known by then.

        >>> Trace((1.0, 2.0), (0.0, 0.0), (50.0, 60.0)).at(1.5)
        50.0
        """
        known = [p for s, p in zip(self.seconds, self.points, strict=True) if s <= seconds]
        return known[-1] if known else 0.0

    def reach(self, target: float) -> tuple[float, float] | None:
        """Return the seconds and megabytes after which it first had that accuracy.

        >>> Trace((1.0, 2.0), (3.0, 4.0), (50.0, 60.0)).reach(55.0)
        (2.0, 4.0)
        """
        there = zip(self.seconds, self.megabytes, self.points, strict=True)
        return next(((s, m) for s, m, p in there if p >= target), None)


WORDS: Final = ("scene", "arm", "trace")  # what a row has in other words
NOTHING: Final = Trace((), (), ())


@dataclass(frozen=True, slots=True)
class Measured:
    """What one seed of one arm in one scene gave."""

    scene: Scene
    arm: Arm
    seed: int
    rate: float
    points: float = 0.0  # accuracy at the end, in points
    syncs: int = 0
    looks: int = 0
    megabytes: float = 0.0
    up_mb: float = 0.0
    down_mb: float = 0.0
    control_mb: float = 0.0
    injected_mb: float = 0.0
    placement_mb: float = 0.0
    seconds: float = 0.0
    budget_error: float | None = None
    trace: Trace = NOTHING
    tuned: float = 0.0  # points at this rate on the tuning seed
    failed: str = ""

    def row(self) -> dict[str, Value]:
        """Return it as a row of the report."""
        numbers = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in WORDS}
        scene = {name: getattr(self.scene, name) for name in ("column", "straggler", "model", "optimiser")}
        names = {"task": read(self.scene.data).name, **scene, "arm": self.arm.name, "ours": self.arm.ours}
        return {**names, **numbers}


@dataclass(frozen=True, slots=True)
class Trial:
    """What one process does at a time."""

    scene: Scene
    arm: Arm
    length: Length

    def run(self) -> list[Measured]:
        """Tune, then measure every seed."""
        rates = self.arm.rates(self.scene.optimiser)[: self.length.rates]
        tried = [measure(self.scene, self.arm, self.length.steps, rate, TUNING_SEED) for rate in rates]
        best = max(tried, key=lambda each: each.points)
        found = [
            measure(self.scene, self.arm, self.length.steps, best.rate, seed)
            for seed in range(self.length.seeds)
        ]
        return [replace(each, tuned=best.points) for each in found]


def play(trials: Sequence[Trial], progress: Callable[[int, int], object]) -> list[Measured]:
    """Run the trials on two processes; `progress` hears how many of how many are done."""
    measured: list[Measured] = []
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
        for done, future in enumerate([pool.submit(trial.run) for trial in trials], start=1):
            measured += future.result()
            progress(done, len(trials))
    return measured


def measure(scene: Scene, arm: Arm, steps: int, rate: float, seed: int) -> Measured:
    """Train once."""
    task = task_of(scene, seed, pieces=1 if arm.coded or not arm.moves else PIECES, shared=arm.shared)
    common = CommonModel(task, RunConfig(seed=seed, device="cpu"))
    model_bytes = 4 * common.size
    config = arm.config(steps, rate, seed, model_bytes)
    weather = weather_of(scene, config.rounds, config.round_steps, seed)
    placement_mb = _placement_mb(scene, arm)
    job = Job(task, config, weather, stacked=not arm.coded, partial=arm.partial)
    try:
        trained = train(job)
    except FedgcError as error:
        return Measured(scene, arm, seed, rate, failed=str(error), placement_mb=placement_mb)
    last = 100.0 * common.evaluate(trained.model)["accuracy"]
    return _judged(
        Measured(scene, arm, seed, rate, last, placement_mb=placement_mb), job, trained, model_bytes
    )


def _judged(bare: Measured, job: Job, trained: Trained, model_bytes: int) -> Measured:
    """Return it with what the run cost."""
    points = trained.points
    up_mb = [point.sent * model_bytes / 1e6 for point in points]
    down_mb = [each * model_bytes / 1e6 for each in accumulate(_down(points))]
    control_mb = list(accumulate(CHECK_BYTES * len(point.row.devices) / 1e6 for point in points))
    injected_mb = list(accumulate(_injected_mb(bare.scene, job.config, point) for point in points))
    moved = zip(up_mb, down_mb, control_mb, injected_mb, strict=True)
    spent = [sum(each) + bare.placement_mb for each in moved]
    seconds, syncs = [point.seconds for point in points], sum(map(_synced, points))
    known = [at for at, point in enumerate(points[:-1]) if point.metrics and _synced(point)]
    at_end = len(points) - 1
    return replace(
        bare,
        syncs=syncs,
        looks=len(points),
        megabytes=spent[-1],
        up_mb=up_mb[-1],
        down_mb=down_mb[-1],
        control_mb=control_mb[-1],
        injected_mb=injected_mb[-1],
        seconds=seconds[-1],
        budget_error=_budget_error(bare, syncs / len(points), spent[-1], job.config.gate_budget),
        trace=Trace(
            tuple(seconds[at] for at in (*known, at_end)),
            tuple(spent[at] for at in (*known, at_end)),
            (*(100.0 * points[at].metrics["accuracy"] for at in known), bare.points),
        ),
    )


def _synced(point: Point) -> bool:
    return point.row.outcome in ("synced", "approximate")


def _down(points: Sequence[Point]) -> Iterator[int]:
    """Yield how many models went down for each round; the first goes to everybody, the last to nobody."""
    fresh, asked = True, DEVICES
    for point in points:
        yield asked if fresh else 0
        fresh = _synced(point)
        asked = len(point.row.devices)


def _injected_mb(scene: Scene, config: RunConfig, point: Point) -> float:
    """Return what the gifts of a round's steps take: of each, all but the giver's own."""
    givers, given = injected(config, DEVICES)
    samples = givers * given * (DEVICES - 1) / DEVICES * sum(each.steps for each in point.row.devices)
    return samples * read(scene.data).sample_bytes / 1e6


def _placement_mb(scene: Scene, arm: Arm) -> float:
    table, copies = read(scene.data), 0
    if arm.moves:
        copies = 1 if arm.settings.get("placement") == "shuffled-once" else COPIES
    samples = copies * len(table.labels) + shared_samples(scene, arm.shared)
    return samples * table.sample_bytes / 1e6


def _budget_error(of: Measured, share: float, megabytes: float, budget: float) -> float | None:
    """Return how far a budget was missed, as a share of it; a placement is in none."""
    if of.arm.settings.get("gate") != "drift":
        return None
    return abs((megabytes - of.placement_mb if of.arm.tenth else share) / budget - 1.0)
