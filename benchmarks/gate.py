"""`python -m benchmarks gate`: the choice of rounds to exchange, with partial steps and shared momentum.

Every arm (`arms`) is run in every scene (`scene`), tuned on separate seeds (`trial`), and measured as
accuracy against syncs, bytes and simulated seconds. Arms are compared seed by seed: a difference is a mean of
pairs with its 95% interval (Student's t). Rows of differences come first, losses before gains.

Figures, in points of accuracy unless named otherwise; None if their scenes were not played:

    tenth_bytes_loss_points      iid, no stragglers: BSP less drift at a tenth of BSP's bytes
    budget_error                 largest miss of a drift budget, as a share of it; a mean over seeds
    equal_syncs_gain_points      drift less the fixed period of as many syncs, same momentum: least
                                 over columns
    skew_syncs_gain_points       the same under label skew
    drift_over_blind_points, loss_change_over_blind_points
                                 a gate less the better of pace and fixed period at as many syncs, by scene
                                 and budget: drift at the end, loss-change in the mean over the run
    ..._over_blind_lower         the lower end of the 95% interval of the same
    skew_pair_gain_points        the same for each kind of straggler and period, each with its interval (+-)
    server_momentum_gain_points  momentum of 0.5 on the server in place of the shared one, fixed periods: by
                                 scene and period
    slow_syncs_gain_points       the same over kinds of stragglers and periods, the least and the most
    private_partial_gain_points  skew: partial steps less dropping, both with shared momentum: least over
                                 persistent, transient and dead
    movable_syncs_to_bsp         skew: fewest syncs of scattered data within 0.3 points of BSP, over BSP's
    movable_bytes_to_bsp         its bytes over BSP's in that scene, placement counted
    over_best_baseline_points    ours less the best of FedAvgM, FedCM with drop and the grace window, private
                                 data, at our seconds: least over scenes
    over_best_movable_points     the same with scattered data, and shuffle once with drop among the baselines;
                                 in the long run it is the only one

They are of the MLP with SGD; `by_model` holds over_best_baseline_points of the others.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

from benchmarks.arms import ARMS, BSP, Arm, named
from benchmarks.report import Report, Value, machine
from benchmarks.scene import COLUMNS, MODELS, OPTIMIZERS, STRAGGLERS, Scene, has, read
from benchmarks.streams import STREAMS
from benchmarks.trial import Care, Measured, Trial, play

CLOSE: Final = 0.3  # points: as good as BSP
PRIVATE: Final = ("FedAvgM", "FedCM, drop", "grace window")
OURS: Final = "ours, drift 0.25"
PARTIAL: Final = "ours, fixed 32"
SCATTERED: Final = "ours, scattered, drift 0.25"
MOMENTUM: Final = tuple(
    (f"ours, server momentum, fixed {period}", f"ours, fixed {period}") for period in (32, 64)
)
BLIND: Final = {0.25: ("ours, pace 0.25", "ours, fixed 32"), 0.125: ("ours, pace 0.125", "ours, fixed 64")}
MEASURED: Final = {"drift": "points", "loss-change": "mean_points"}  # what each is for
GATES: Final = named(
    *(name for arms in BLIND.values() for name in arms),
    *(f"ours, {gate} {budget:g}" for budget in BLIND for gate in MEASURED),
)
PAIRS: Final = (("ours, drift 0.25", "ours, fixed 32"), ("ours, drift 0.125", "ours, fixed 64"))
TENTH: Final = "ours, drift, a tenth of BSP's bytes"
CORE: Final = named(
    "BSP", *PRIVATE, "shuffle once, drop", PARTIAL, "ours, server momentum, fixed 32", OURS, SCATTERED
)
FEW: Final = named("BSP", "FedAvgM", "FedCM, drop", PARTIAL, OURS)
MOVABLE: Final = named("BSP", "shuffle once, drop", "ours, scattered, drift 0.08", SCATTERED)
T_95: Final = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}

Cell = tuple[Scene, Sequence[Arm]]


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the benchmark."""

    steps: int
    care: Care
    kind: str  # quick, usual, full


QUICK: Final = Size(128, Care(2, 2), "quick")
USUAL: Final = Size(768, Care(5, 5), "usual")
FULL: Final = Size(3072, Care(5, 5), "full")
SHORT: Final = 512  # steps of convolutions and Adam in the usual size
STREAM: Final = 1536  # steps with data that change
LONG: Final = 3072  # steps with scattered data; a hundredth of BSP's syncs needs a long run


def bench_gate(
    size: Size = USUAL,
    data: Path | None = None,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> tuple[Report, list[Measured]]:
    """Run the benchmark; `progress` receives the number of finished trials. The runs are for the picture."""
    trials = [
        Trial(scene, arm, size.care)
        for scene, arms in cells(size, data)
        if has(scene.column, read(data))
        for arm in arms
    ]
    measured = play(trials, progress)
    rows = [*differences(measured), *(each.row() for each in measured)]
    return Report(figures(measured), rows, machine(), range(size.care.seeds)), measured


def cells(size: Size, data: Path | None) -> list[Cell]:
    """Return the matrix of scenes and arms to play."""
    usual = partial(Scene, data=data, steps=size.steps)
    if size.kind == "quick":
        return [
            (usual("iid"), named("BSP", TENTH, *PAIRS[0])),
            (usual("skew", "persistent"), CORE),
            (usual("shift", steps=2 * size.steps), GATES),
        ]
    if size.kind == "full":
        return [
            (usual(column, straggler, model, optimizer), ARMS)
            for column in COLUMNS
            for straggler in STRAGGLERS
            for model in MODELS
            for optimizer in OPTIMIZERS
        ]
    straggling = [(usual("skew", each), CORE) for each in STRAGGLERS[1:]]
    others = [
        (usual("skew", "persistent", model, optimizer, steps=SHORT), FEW)
        for model, optimizer in (("cnn", "sgd"), ("mlp", "adam"))
    ]
    long = (usual("skew", steps=LONG), MOVABLE)
    streams = [(usual(column, steps=STREAM), GATES) for column in STREAMS]
    return [long, *streams, *((usual(column), ARMS) for column in COLUMNS), *straggling, *others]


# ---- comparing


@dataclass(frozen=True, slots=True)
class Paired:
    """Differences of two arms over the seeds that they share."""

    mean: float
    half: float | None  # of the 95% interval; None with a single seed

    @classmethod
    def of(cls, differences: Sequence[float]) -> "Paired":
        """Return mean and interval.

        >>> Paired.of([1.0, 2.0, 3.0]).mean, round(Paired.of([1.0, 2.0, 3.0]).half, 2)
        (2.0, 2.48)
        """
        count = len(differences)
        if count < 2:
            return cls(differences[0], None)
        return cls(fmean(differences), T_95.get(count - 1, 2.0) * stdev(differences) / count**0.5)


class Results:
    """The measured runs by scene and arm."""

    def __init__(self, measured: Iterable[Measured]) -> None:
        self._runs: defaultdict[Scene, dict[str, dict[int, Measured]]] = defaultdict(dict)
        for each in measured:
            self._runs[each.scene].setdefault(each.arm.name, {})[each.seed] = each

    def scenes(self, *, model: str = "mlp", optimizer: str = "sgd") -> list[Scene]:
        """Return the scenes of these models."""
        return [each for each in self._runs if (each.model, each.optimizer) == (model, optimizer)]

    def all_scenes(self) -> list[Scene]:
        """Return every scene."""
        return list(self._runs)

    def runs(self, scene: Scene, arm: str) -> dict[int, Measured]:
        """Return an arm's runs by seed, empty if it was not played."""
        return self._runs[scene].get(arm, {})

    def arms(self, scene: Scene) -> list[str]:
        """Return the arms that were played."""
        return list(self._runs[scene])

    def gain(self, scene: Scene, ours: str, other: str, *, same_seconds: bool = False) -> Paired | None:
        """Return our accuracy less the other's, at the end or at our final time; None without both."""
        mine, theirs = self.runs(scene, ours), self.runs(scene, other)
        pairs = [(mine[seed], theirs[seed]) for seed in mine if seed in theirs]
        if not pairs:
            return None
        return Paired.of(
            [own.points - (it.trace.at(own.seconds) if same_seconds else it.points) for own, it in pairs]
        )

    def over_blind(self, scene: Scene, gate: str, budget: float) -> Paired | None:
        """Return a gate's accuracy less that of the better schedule without a measure, at equal syncs.

        Drift is for the final accuracy, loss-change for the mean accuracy over the run.
        """
        accuracy = attrgetter(MEASURED[gate])
        mine = self.runs(scene, f"ours, {gate} {budget:g}")
        gains = []
        for other in BLIND[budget]:
            theirs = self.runs(scene, other)
            pairs = [(mine[seed], theirs[seed]) for seed in mine if seed in theirs]
            if pairs:
                gains.append(Paired.of([accuracy(own) - accuracy(it) for own, it in pairs]))
        return min(gains, key=lambda gain: gain.mean, default=None)

    def over_best(self, scene: Scene, ours: str, baselines: Sequence[str]) -> float | None:
        """Return our gain over the best baseline at our seconds."""
        gains = [self.gain(scene, ours, each, same_seconds=True) for each in baselines]
        return min((gain.mean for gain in gains if gain is not None), default=None)


def differences(measured: Sequence[Measured]) -> list[Mapping[str, Value]]:
    """Return ours against every baseline in every scene, losses first."""
    results = Results(measured)
    rows: list[Mapping[str, Value]] = []
    for scene in results.all_scenes():
        for other in results.arms(scene):
            gain = results.gain(scene, OURS, other, same_seconds=True) if other != OURS else None
            if gain is not None:
                rows.append(
                    {"scene": scene.name, "ours": OURS, "other": other, "gain": gain.mean, "half": gain.half}
                )
    return sorted(rows, key=lambda row: _number(row["gain"]))


def figures(measured: Sequence[Measured]) -> dict[str, float | Mapping[str, float | None] | None]:
    """Return the figures."""
    results = Results(measured)
    scenes = results.scenes()
    calm = [scene for scene in scenes if scene.straggler == "none"]
    skewed = [scene for scene in scenes if scene.column == "skew"]
    slow = [scene for scene in skewed if scene.straggler != "none"]
    none: tuple[float | None, float | None] = (None, None)
    movable = min(filter(None, (_movable(results, scene) for scene in skewed)), default=none)
    tenth = [results.gain(scene, BSP.name, TENTH) for scene in calm if scene.column == "iid"]
    gain, skew_gain, slow_gain = (
        [results.gain(scene, *pair) for scene in chosen for pair in PAIRS]
        for chosen in (scenes, skewed, slow)
    )
    over_blind = {gate: _over_blind(results, gate) for gate in MEASURED}
    others = [(model, optimizer) for model in MODELS for optimizer in OPTIMIZERS][1:]
    return {
        "tenth_bytes_loss_points": _extreme(max, tenth),
        "budget_error": _budget_error(results),
        "equal_syncs_gain_points": _extreme(min, gain),
        "skew_syncs_gain_points": _extreme(min, skew_gain),
        **{f"{_name(gate)}_over_blind_points": _each(gains, 0.0) for gate, gains in over_blind.items()},
        **{f"{_name(gate)}_over_blind_lower": _each(gains, 1.0) for gate, gains in over_blind.items()},
        "skew_pair_gain_points": dict(_pair_gains(results, skewed)),
        "server_momentum_gain_points": _momentum_gains(results) or None,
        "slow_syncs_gain_points": {"least": _extreme(min, slow_gain), "most": _extreme(max, slow_gain)},
        "private_partial_gain_points": _extreme(
            min, [results.gain(scene, PARTIAL, "FedCM, drop") for scene in slow]
        ),
        "movable_syncs_to_bsp": movable[0],
        "movable_bytes_to_bsp": movable[1],
        "over_best_baseline_points": _least(results.over_best(scene, OURS, PRIVATE) for scene in scenes),
        "over_best_movable_points": _least(
            results.over_best(scene, SCATTERED, (*PRIVATE, "shuffle once, drop")) for scene in scenes
        ),
        "by_model": {
            f"{model}, {optimizer}": _least(
                results.over_best(scene, OURS, PRIVATE)
                for scene in results.scenes(model=model, optimizer=optimizer)
            )
            for model, optimizer in others
        },
    }


def _name(gate: str) -> str:
    return gate.replace("-", "_")


def _over_blind(results: Results, gate: str) -> Mapping[str, Paired]:
    """Return the gains of a gate over blind schedules, by scene and budget."""
    gains = {
        f"{scene.column}, {scene.straggler}, {budget:g}": results.over_blind(scene, gate, budget)
        for scene in results.scenes()
        for budget in BLIND
    }
    return {name: gain for name, gain in gains.items() if gain is not None}


def _each(gains: Mapping[str, Paired], halves: float) -> Mapping[str, float | None] | None:
    """Return each gain less so many halves of its 95% interval, the least first; None without any."""
    found = {name: gain.mean - halves * (gain.half or 0.0) for name, gain in gains.items()}
    return dict(sorted(found.items(), key=lambda each: each[1])) or None


def _pair_gains(results: Results, scenes: Iterable[Scene]) -> Iterator[tuple[str, float | None]]:
    """Yield the gain of drift over the fixed period of as many syncs, and its interval."""
    for scene in scenes:
        for ours, other in PAIRS:
            gain = results.gain(scene, ours, other)
            if gain is not None:
                name = f"{scene.straggler}, {other.split()[-1]}"
                yield from ((name, gain.mean), (f"{name} +-", gain.half))


def _momentum_gains(results: Results) -> Mapping[str, float]:
    """Return the gains of momentum on the server over shared momentum, the least first."""
    gains = {
        f"{scene.column}, {scene.straggler}, {other.split()[-1]}": results.gain(scene, ours, other)
        for scene in results.scenes()
        for ours, other in MOMENTUM
    }
    found = {name: gain.mean for name, gain in gains.items() if gain is not None}
    return dict(sorted(found.items(), key=lambda each: each[1]))


def _movable(results: Results, scene: Scene) -> tuple[float, float] | None:
    """Return the shares of BSP's syncs and bytes with which scattered data is as accurate as BSP."""
    bsp = results.runs(scene, BSP.name)
    if not bsp:
        return None
    syncs, megabytes = (fmean(getattr(run, name) for run in bsp.values()) for name in ("syncs", "megabytes"))
    found = []
    for arm in results.arms(scene):
        loss = results.gain(scene, BSP.name, arm)
        if "scattered" in arm and loss is not None and loss.mean <= CLOSE:
            runs = results.runs(scene, arm).values()
            found.append(
                (fmean(run.syncs for run in runs) / syncs, fmean(run.megabytes for run in runs) / megabytes)
            )
    return min(found, default=None)


def _budget_error(results: Results) -> float | None:
    """Return the worst mean over seeds."""
    means = []
    for scene in results.all_scenes():
        for arm in results.arms(scene):
            errors = [run.budget_error for run in results.runs(scene, arm).values()]
            known = [error for error in errors if error is not None]
            means += [fmean(known)] if known else []
    return max(means, default=None)


def _extreme(choose: Callable[..., float], gains: Iterable[Paired | None]) -> float | None:
    means = [gain.mean for gain in gains if gain is not None]
    return choose(means) if means else None


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


# ---- showing


def text_lines(measured: Sequence[Measured]) -> Iterator[str]:
    """Yield lines of text: for each scene every arm, the best first, with its cost and our gain."""
    results = Results(measured)
    for scene in results.all_scenes():
        yield f"{scene.name} ({read(scene.data).name})"
        head = " ".join(f"{name:>9}" for name in ("accuracy", "syncs", "MB", "of it pl.", "seconds", "rate"))
        yield f"  {'arm':36} {head}   ours less it, same seconds"
        means = {arm: _means(results.runs(scene, arm)) for arm in results.arms(scene)}
        for arm, mean in sorted(means.items(), key=lambda each: -each[1][0]):
            gain = results.gain(scene, OURS, arm, same_seconds=True) if arm != OURS else None
            numbers = " ".join(f"{each:9.4g}" for each in mean)
            yield f"  {arm:36} {numbers}   {_words(gain)}"


def _means(runs: Mapping[int, Measured]) -> list[float]:
    names = ("points", "syncs", "megabytes", "placement_mb", "seconds", "rate")
    return [fmean(getattr(run, name) for run in runs.values()) for name in names]


def _words(gain: Paired | None) -> str:
    if gain is None:
        return ""
    interval = "" if gain.half is None else f" +- {gain.half:.2f}"
    return f"{gain.mean:+.2f}{interval}"
