"""One arm in one scene: tuned on separate seeds, then measured with `run` or an asynchronous server.

Every arm has the same tuning budget: it is trained once at each of its rates on the first tuning seed, then
at the best two on the others, since one seed may favor a rate that fails on others; the better mean wins.
Better means more accurate at the end (where data change: in the mean over the run) or, with a target, sooner
at the target. Numbers of local steps between exchanges are tuned in the same way, if there are several. A run
that diverges counts as accuracy 0.

Bytes count all traffic: models down, updates up as encoded, a report and a command for each client and check
(asynchronous: for each update), samples that a step takes from other clients (not those used twice), and the
data that a placement sends before the run (every replica, regardless of the original holder). Everything runs
under the virtual clock of `fedgc.sim.clock`, or that of `benchmarks.asynchronous`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import accumulate, product
from statistics import fmean
from typing import Final, TypeVar

from benchmarks.arm_fleet import ArmFleet, Extras
from benchmarks.arms import COPIES, PIECES, Arm
from benchmarks.asynchronous import Moment, train_asynchronously
from benchmarks.images import mlp_losses
from benchmarks.local_rules import parts_of, sending
from benchmarks.report import Value
from benchmarks.scene import (
    CLIENTS,
    Scene,
    figure_at,
    known_of,
    read,
    scenario_of,
    shared_samples,
    stream_for,
    task_of,
)
from benchmarks.streams import Stream
from fedgc.config import RunConfig
from fedgc.errors import FedgcError
from fedgc.messages import SUMMED
from fedgc.round.plan import injected
from fedgc.run.machine import CHECK_BYTES
from fedgc.sim.owned import Processes
from fedgc.sim.training import Job, Point, train
from fedgc.training import CommonModel, Vector
from fedgc.tuner import Tuner

TUNING_SEEDS: Final = (1000, 1001)
MORE_TUNING_SEEDS: Final = (*TUNING_SEEDS, 1002, 1003)  # where times to a target differ much between seeds
AGAIN: Final = 2  # rates tried on all tuning seeds


@dataclass(frozen=True, slots=True)
class Care:
    """The numbers of rates to try and of seeds to report."""

    rates: int
    seeds: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The course of a run: after each evaluation, seconds, megabytes and accuracy in points."""

    seconds: tuple[float, ...]
    megabytes: tuple[float, ...]
    points: tuple[float, ...]

    def at(self, seconds: float) -> float:
        """Return the latest accuracy at that time.

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


WORDS: Final = ("scene", "arm", "trace")  # columns with other names in a row
NOTHING: Final = Trace((), (), ())


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one seed of one arm in one scene."""

    scene: Scene
    arm: Arm
    seed: int
    rate: float
    points: float = 0.0  # accuracy at the end, in points
    mean_points: float = 0.0  # its mean over the rounds of the run
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
    tuned: float = 0.0  # points where runs at this rate ended in tuning, mean of the tuning seeds
    failed: str = ""

    def worth(self, target: float | None) -> tuple[float, float]:
        """Return a key for tuning, larger is better: time to the target, then accuracy.

        An arm that never reaches the target takes infinitely long, as do all without a target.
        """
        reached = None if target is None else self.trace.reach(target)
        return (-reached[0] if reached else -math.inf), self.used

    @property
    def used(self) -> float:
        """Return the accuracy that counts: at the end, or where data change, in the mean over the run."""
        return self.mean_points if self.scene.changes else self.points

    def row(self) -> dict[str, Value]:
        """Return a row of the report."""
        numbers = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in WORDS}
        scene = {
            name: getattr(self.scene, name) for name in ("column", "straggler", "model", "optimizer", "steps")
        }
        arm = {
            "arm": self.arm.name, "ours": self.arm.ours, "local_steps": self.arm.period,
            "quorum": self.arm.settings.get("quorum"), "late_updates": self.arm.settings.get("late_updates"),
        }  # fmt: skip
        names = {"task": read(self.scene.data).name, **scene, **arm}
        return {**names, **numbers}


@dataclass(frozen=True, slots=True)
class Trial:
    """The unit of work of a process."""

    scene: Scene
    arm: Arm
    care: Care
    target: float | None = None  # points
    local_steps: tuple[int, ...] = ()  # to tune over; without any, those of the arm
    tuned_on: tuple[int, ...] = TUNING_SEEDS

    def run(self) -> list[Measured]:
        """Tune, then measure every seed."""
        (arm, rate), points = self.tune()
        return [
            replace(measure(self.scene, arm, rate, seed), tuned=points) for seed in range(self.care.seeds)
        ]

    def tune(self) -> tuple[tuple[Arm, float], float]:
        """Return the best arm and rate, and the accuracy where its tuning runs ended, in points."""
        rates = self.arm.rates(self.scene.optimizer)[: self.care.rates]
        arms = [self.arm.with_local_steps(each) for each in self.local_steps] or [self.arm]
        tried = list(product(range(len(arms)), rates))
        (at, rate), best = tuned(
            tried,
            lambda each, seed: measure(self.scene, arms[each[0]], each[1], seed, until=self.target),
            lambda each: each.worth(self.target),
            self.tuned_on,
        )
        return (arms[at], rate), fmean(each.points for each in best)


Tried = TypeVar("Tried")
Result = TypeVar("Result")


def tuned(
    to_try: Sequence[Tried],
    at: Callable[[Tried, int], Result],
    worth: Callable[[Result], tuple[float, float]],
    seeds: Sequence[int] = TUNING_SEEDS,
) -> tuple[Tried, Sequence[Result]]:
    """Return the best candidate, such as a rate, and its results on the seeds; `at` trains it on a seed."""
    first, *others = seeds
    tried = {each: at(each, first) for each in to_try}
    close = sorted(tried, key=lambda each: worth(tried[each]), reverse=True)[:AGAIN]
    on_all = {each: (tried[each], *(at(each, seed) for seed in others)) for each in close}
    best = max(on_all, key=lambda each: _mean([worth(result) for result in on_all[each]]))
    return best, on_all[best]


def _mean(worths: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    return tuple(fmean(each) for each in zip(*worths, strict=True))


def play(trials: Sequence[Trial], progress: Callable[[int, int], object]) -> list[Measured]:
    """Run the trials on two processes; `progress` receives the number of finished trials and the total."""
    measured: list[Measured] = []
    with Processes() as pool:
        for done, future in enumerate([pool.submit(trial.run) for trial in trials], start=1):
            measured += future.result()
            progress(done, len(trials))
    return measured


def measure(scene: Scene, arm: Arm, rate: float, seed: int, *, until: float | None = None) -> Measured:
    """Train once; stop at the accuracy `until`, in points."""
    stream = stream_for(scene, seed)
    if arm.planned:
        arm = arm.planned_for(known_of(scene, seed))
    task = task_of(scene, seed, pieces=1 if arm.coded or not arm.moves else PIECES, shared=arm.shared)
    common = CommonModel(task, RunConfig(seed=seed, device="cpu", work="coded"))
    model_bytes = 4 * common.size
    config = arm.config(scene.steps, rate, seed, model_bytes)
    scenario = scenario_of(scene, config.rounds, config.round_steps, seed)
    extras = Extras(stream, losses=mlp_losses if scene.model == "mlp" else None)
    if arm.local_rule is not None:
        extras = replace(extras, rule=arm.local_rule.steps(parts_of(task, rate), scenario))
        scenario = sending(arm.local_rule.scenario(scenario), arm.local_rule.vectors)
    placement_mb = _placement_mb(scene, arm)
    job = Job(
        task,
        config,
        scenario,
        engines=None if arm.coded else partial(ArmFleet, extras=extras),
        partial=arm.partial,
        planner=Tuner(config),
    )
    try:
        marks, model = _trained(job, arm, arm.vectors * model_bytes / 1e6, stream, until)
    except FedgcError as error:
        return Measured(scene, arm, seed, rate, failed=str(error), placement_mb=placement_mb)
    last = 100.0 * common.evaluate(model)[figure_at(stream, scene.steps)]
    return _judged(Measured(scene, arm, seed, rate, last, placement_mb=placement_mb), job, marks)


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of a run at the end of a round: all sums since its beginning, without earlier transfers."""

    seconds: float
    syncs: int  # or the equivalent number of updates
    up_mb: float
    down_mb: float
    messages: int
    steps: int  # of all clients together
    accuracy: float | None  # if it was evaluated
    current: float  # the latest known accuracy


def _trained(
    job: Job, arm: Arm, model_mb: float, stream: Stream | None, until: float | None
) -> tuple[Sequence[Mark], Vector]:
    """Train; return the marks of all rounds, and the model."""

    def ends(now: Point | Moment) -> bool:
        return until is not None and 100.0 * now.metrics.get("accuracy", 0.0) >= until

    if arm.rule is not None:
        result = train_asynchronously(job, arm.rule, until=ends)
        return [_mark(moment, model_mb) for moment in result.moments], result.model
    trained = train(job, until=ends)
    points = trained.points
    accuracies = [
        point.metrics.get(figure_at(stream, (point.row.round - 1) * job.config.round_steps))
        for point in points
    ]
    sums = zip(
        accumulate(map(_synced, points)),
        accumulate(len(point.row.clients) for point in points),
        accumulate(sum(each.steps for each in point.row.clients) for point in points),
        strict=True,
    )
    marks = [
        Mark(
            point.seconds, syncs, point.sent * model_mb, point.down * model_mb, looks, steps,
            accuracy if _synced(point) else None, accuracy or 0.0,
        )
        for point, accuracy, (syncs, looks, steps) in zip(points, accuracies, sums, strict=True)
    ]  # fmt: skip
    return marks, trained.model


def _mark(of: Moment, model_mb: float) -> Mark:
    up_mb, down_mb = of.pushed * model_mb, of.pulled * model_mb
    accuracy = of.metrics.get("accuracy")
    syncs = of.pushed // CLIENTS
    return Mark(of.seconds, syncs, up_mb, down_mb, of.pushed, of.steps, accuracy, accuracy or 0.0)


def _judged(bare: Measured, job: Job, marks: Sequence[Mark]) -> Measured:
    """Return the result with the cost of the run."""
    each_mb = _injected_mb(bare.scene, job.config)
    spent = [
        bare.placement_mb
        + mark.up_mb
        + mark.down_mb
        + CHECK_BYTES * mark.messages / 1e6
        + each_mb * mark.steps
        for mark in marks
    ]
    last, end = marks[-1], len(marks) - 1
    known = [(at, 100.0 * mark.accuracy) for at, mark in enumerate(marks[:-1]) if mark.accuracy is not None]
    known.append((end, bare.points))
    return replace(
        bare,
        mean_points=100.0 * fmean(mark.current for mark in marks),
        syncs=last.syncs,
        looks=len(marks),
        megabytes=spent[-1],
        up_mb=last.up_mb,
        down_mb=last.down_mb,
        control_mb=CHECK_BYTES * last.messages / 1e6,
        injected_mb=each_mb * last.steps,
        seconds=last.seconds,
        budget_error=_budget_error(bare, last.syncs / len(marks), spent[-1], job.config.gate_budget),
        trace=Trace(
            tuple(marks[at].seconds for at, _ in known),
            tuple(spent[at] for at, _ in known),
            tuple(points for _, points in known),
        ),
    )


def _synced(point: Point) -> bool:
    return point.row.outcome in SUMMED


def _injected_mb(scene: Scene, config: RunConfig) -> float:
    """Return the megabytes of injected samples for one step of one client, without the giver's own."""
    givers, given = injected(config, CLIENTS)
    return givers * given * (CLIENTS - 1) / CLIENTS * read(scene.data).sample_bytes / 1e6


def _placement_mb(scene: Scene, arm: Arm) -> float:
    table, replicas = read(scene.data), 0
    if arm.moves:
        replicas = 1 if arm.settings.get("placement") == "shuffled-once" else COPIES
    samples = replicas * len(table.labels) + shared_samples(scene, arm.shared)
    return samples * table.sample_bytes / 1e6


def _budget_error(of: Measured, share: float, megabytes: float, budget: float | str) -> float | None:
    """Return the miss of a budget as a share of it; the placement is not part of a budget."""
    if "gate_budget" not in of.arm.settings:
        return None
    return abs((megabytes - of.placement_mb if of.arm.tenth else share) / float(budget) - 1.0)
