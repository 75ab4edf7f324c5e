"""One arm in one scene: tuned on seeds of its own, then measured by `run`, or by a server without rounds.

Every arm gets the same budget: it is trained once at each of its rates on the first tuning seed, then at the
best two on the second, as one seed alone may favour a rate at which others fail; the better mean of both is
taken. The better is who is more accurate at the end, or, where there is a target, who comes to it sooner. A
run that leaves the finite numbers counts as nothing learnt.

Bytes are all that moves: models down, updates up as they are packed, a report and a command for each client
and look (without rounds: for each update), samples that a step takes from other clients (but not those that
it takes twice), and what a placement sends before the run (every copy that it deals, whoever had it before).
Everything runs under the clock of `replay`, or that of `sim.asynchronous`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from statistics import fmean
from typing import Final

from benchmarks.arms import COPIES, PIECES, Arm
from benchmarks.asynchronous import Moment, train_freely
from benchmarks.report import Value
from benchmarks.scene import CLIENTS, Scene, read, scenario_of, shared_samples, task_of
from benchmarks.stacked import stacked
from fedgc.config import RunConfig
from fedgc.errors import FedgcError
from fedgc.round.plan import injected
from fedgc.run.machine import CHECK_BYTES
from fedgc.sim.owned import processes
from fedgc.sim.training import Job, Point, train
from fedgc.training import CommonModel, Vector
from fedgc.tuner import Tuner

TUNING_SEEDS: Final = (1000, 1001)
AGAIN: Final = 2  # rates that are tried on the second as well


@dataclass(frozen=True, slots=True)
class Care:
    """How many rates are tried, how many seeds are reported."""

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
    tuned: float = 0.0  # points at this rate, mean of the tuning seeds
    failed: str = ""

    def worth(self, target: float | None) -> tuple[float, float]:
        """Return what is better the greater it is: how soon it comes to the target, then its accuracy.

        Who never comes there takes for ever, as all do where there is no target.
        """
        reached = None if target is None else self.trace.reach(target)
        return (-reached[0] if reached else -math.inf), self.points

    def row(self) -> dict[str, Value]:
        """Return it as a row of the report."""
        numbers = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in WORDS}
        scene = {
            name: getattr(self.scene, name) for name in ("column", "straggler", "model", "optimizer", "steps")
        }
        names = {"task": read(self.scene.data).name, **scene, "arm": self.arm.name, "ours": self.arm.ours}
        return {**names, **numbers}


@dataclass(frozen=True, slots=True)
class Trial:
    """What one process does at a time."""

    scene: Scene
    arm: Arm
    care: Care
    target: float | None = None  # points

    def run(self) -> list[Measured]:
        """Tune, then measure every seed."""
        rate, tuned = self.tune()
        found = [self._at(rate, seed) for seed in range(self.care.seeds)]
        return [replace(each, tuned=tuned) for each in found]

    def tune(self) -> tuple[float, float]:
        """Return the best rate, and the points that it came to on the tuning seeds."""
        first, second = TUNING_SEEDS
        tried = [self._at(rate, first) for rate in self.arm.rates(self.scene.optimizer)[: self.care.rates]]
        close = sorted(tried, key=lambda each: each.worth(self.target), reverse=True)[:AGAIN]
        both = [(each, self._at(each.rate, second)) for each in close]
        best = max(both, key=lambda pair: _mean([each.worth(self.target) for each in pair]))
        return best[0].rate, fmean(each.points for each in best)

    def _at(self, rate: float, seed: int) -> Measured:
        return measure(self.scene, self.arm, rate, seed)


def _mean(worths: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    return tuple(fmean(each) for each in zip(*worths, strict=True))


def play(trials: Sequence[Trial], progress: Callable[[int, int], object]) -> list[Measured]:
    """Run the trials on two processes; `progress` hears how many of how many are done."""
    measured: list[Measured] = []
    with processes() as pool:
        for done, future in enumerate([pool.submit(trial.run) for trial in trials], start=1):
            measured += future.result()
            progress(done, len(trials))
    return measured


def measure(scene: Scene, arm: Arm, rate: float, seed: int) -> Measured:
    """Train once."""
    task = task_of(scene, seed, pieces=1 if arm.coded or not arm.moves else PIECES, shared=arm.shared)
    common = CommonModel(task, RunConfig(seed=seed, device="cpu", work="coded"))
    model_bytes = 4 * common.size
    config = arm.config(scene.steps, rate, seed, model_bytes)
    scenario = scenario_of(scene, config.rounds, config.round_steps, seed)
    placement_mb = _placement_mb(scene, arm)
    job = Job(
        task,
        config,
        scenario,
        engines=None if arm.coded else stacked,
        partial=arm.partial,
        planner=Tuner(config),
    )
    try:
        way, model = _way(job, arm, model_bytes / 1e6)
    except FedgcError as error:
        return Measured(scene, arm, seed, rate, failed=str(error), placement_mb=placement_mb)
    last = 100.0 * common.evaluate(model)["accuracy"]
    return _judged(Measured(scene, arm, seed, rate, last, placement_mb=placement_mb), job, way)


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a run stands at the end of a round: all sums since its beginning, but for what moved before."""

    seconds: float
    syncs: int  # or what as many updates come to
    up_mb: float
    down_mb: float
    messages: int
    steps: int  # of all clients together
    accuracy: float | None  # where it was evaluated


def _way(job: Job, arm: Arm, model_mb: float) -> tuple[Sequence[Mark], Vector]:
    """Train; return the marks on the way, and the model."""
    if arm.rule is not None:
        went = train_freely(job, arm.rule)
        return [_mark(moment, model_mb) for moment in went.moments], went.model
    trained = train(job)
    points = trained.points
    sums = zip(
        accumulate(map(_synced, points)),
        accumulate(_down(points)),
        accumulate(len(point.row.clients) for point in points),
        accumulate(sum(each.steps for each in point.row.clients) for point in points),
        strict=True,
    )
    marks = [
        Mark(point.seconds, syncs, point.sent * model_mb, down * model_mb, looks, steps, _known(point))
        for point, (syncs, down, looks, steps) in zip(points, sums, strict=True)
    ]
    return marks, trained.model


def _mark(of: Moment, model_mb: float) -> Mark:
    up_mb, down_mb = of.pushed * model_mb, of.pulled * model_mb
    accuracy = of.metrics.get("accuracy")
    return Mark(of.seconds, of.pushed // CLIENTS, up_mb, down_mb, of.pushed, of.steps, accuracy)


def _judged(bare: Measured, job: Job, way: Sequence[Mark]) -> Measured:
    """Return it with what the run cost."""
    each_mb = _injected_mb(bare.scene, job.config)
    spent = [
        bare.placement_mb
        + mark.up_mb
        + mark.down_mb
        + CHECK_BYTES * mark.messages / 1e6
        + each_mb * mark.steps
        for mark in way
    ]
    last, end = way[-1], len(way) - 1
    known = [(at, 100.0 * mark.accuracy) for at, mark in enumerate(way[:-1]) if mark.accuracy is not None]
    known.append((end, bare.points))
    return replace(
        bare,
        syncs=last.syncs,
        looks=len(way),
        megabytes=spent[-1],
        up_mb=last.up_mb,
        down_mb=last.down_mb,
        control_mb=CHECK_BYTES * last.messages / 1e6,
        injected_mb=each_mb * last.steps,
        seconds=last.seconds,
        budget_error=_budget_error(bare, last.syncs / len(way), spent[-1], job.config.gate_budget),
        trace=Trace(
            tuple(way[at].seconds for at, _ in known),
            tuple(spent[at] for at, _ in known),
            tuple(points for _, points in known),
        ),
    )


def _synced(point: Point) -> bool:
    return point.row.outcome in ("synced", "approximate")


def _known(point: Point) -> float | None:
    """Return the accuracy of the model that this round made, where that is known."""
    return point.metrics.get("accuracy") if _synced(point) else None


def _down(points: Sequence[Point]) -> Iterator[int]:
    """Yield how many models went down for each round; the first goes to everybody, the last to nobody."""
    fresh, asked = True, CLIENTS
    for point in points:
        yield asked if fresh else 0
        fresh = _synced(point)
        asked = len(point.row.clients)


def _injected_mb(scene: Scene, config: RunConfig) -> float:
    """Return what the gifts take that come with one step of one client: of each, all but the giver's own."""
    givers, given = injected(config, CLIENTS)
    return givers * given * (CLIENTS - 1) / CLIENTS * read(scene.data).sample_bytes / 1e6


def _placement_mb(scene: Scene, arm: Arm) -> float:
    table, replicas = read(scene.data), 0
    if arm.moves:
        replicas = 1 if arm.settings.get("placement") == "shuffled-once" else COPIES
    samples = replicas * len(table.labels) + shared_samples(scene, arm.shared)
    return samples * table.sample_bytes / 1e6


def _budget_error(of: Measured, share: float, megabytes: float, budget: float | str) -> float | None:
    """Return how far a budget was missed, as a share of it; a placement is in none."""
    if of.arm.settings.get("gate") != "drift":
        return None
    return abs((megabytes - of.placement_mb if of.arm.tenth else share) / float(budget) - 1.0)
