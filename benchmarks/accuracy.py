"""`python -m benchmarks accuracy`: simulated seconds and bytes to a target accuracy, under models and traces.

With label skew, fedgc on private data is compared with BSP; FedAvg, FedAvgM and FedCM that wait for six of
eight clients and drop the rest; FedAvg, FedCM and DiLoCo that wait for all; FedProx, whose server counts
partial steps, as published; SCAFFOLD; TimelyFL; a grace window; FedBuff; SelSync (relative change); and
gradient coding with one step a round. Each is tuned as in `trial`, on four seeds. Arms with several local
steps are also tuned over `LOCAL_STEPS` between two exchanges. BSP exchanges after each step, and SelSync
decides after each step.

The targets are fixed first: `SHARES` of the accuracy of BSP, tuned without stragglers, on the tuning seeds.
Every arm is tuned to reach the last one soonest. An arm that never does has infinite time. The shipped digits
need few exchanges, so ratios are coarse; harder data gives finer ones.

fedgc has the quorum that `fedgc plan` names for these clients, and counts late updates if it says so. It
sends updates and models in 8 bits; rivals send float32, as published. It is measured in float32 too. A drift
budget is measured beside a fixed period of as many exchanges: it saves exchanges for the end of a run and
optimizes the final model, which is the wrong choice for a run that stops half-way.

Figures, each the least favorable of all scenarios and targets:

    best_baseline_time_over_ours   the quickest baseline's seconds over ours: median over seeds, and the least
    by_scenario                    the same for each scenario and target, with the quickest baseline there
    best_baseline_time_over_float32  the same over fedgc's in float32
    float32_by_scenario            the same for each scenario and target
    best_baseline_time_over_drift  the same over those of a drift budget
    drift_time_over_fixed          seconds of the drift budget over those of a fixed period; median
    fedavg_time_over_ours          those of FedAvg over ours, waiting or dropping stragglers: the less; median
    bytes_over_fedavg              ours over FedAvg's, waiting or dropping stragglers: the less; median
    final_points_over_best         our final accuracy less that of the best baseline, mean over seeds
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Final

from benchmarks.arms import BSP, Arm, named
from benchmarks.grid import Modelled, Recorded, Source, sources
from benchmarks.report import Report, Value, machine, number_or_nan
from benchmarks.scene import Scene
from benchmarks.trial import MORE_TUNING_SEEDS, Care, Measured, Trial, play

SHARES: Final = (0.65, 0.75)  # of BSP: reachable by local work on skewed data within the steps of the run
LOCAL_STEPS: Final = (16, 32, 8)
OURS: Final = "ours, planned"
FLOAT32: Final = "ours, planned, float32"
DRIFT: Final = "ours, drift 0.25"
FIXED: Final = "ours, fixed 32"
FEDAVG_NAMES: Final = ("FedAvg, drop", "FedAvg, wait")
FEDAVG_ARMS: Final = tuple(
    replace(arm, name=name)
    for arm, name in zip(named("FedAvg 32", "FedAvg 32, wait"), FEDAVG_NAMES, strict=True)
)
TUNED: Final = (
    *named(OURS, FLOAT32),
    *FEDAVG_ARMS,
    *named(
        "FedAvgM", "FedCM, drop", "FedCM, wait", "grace window", "DiLoCo", "FedProx 0.01", "FedProx 0.1",
        "FedProx 1", "SCAFFOLD, drop", "SCAFFOLD, wait", "TimelyFL", "FedBuff",
    ),
)  # fmt: skip
OTHERS: Final = named(DRIFT, FIXED, "BSP", "relative change 0.1", "relative change 0.3", "gradient code")
MODELS: Final = ("bimodal-persistent", "shifted-exponential")


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the benchmark."""

    steps: int
    care: Care
    models: Sequence[str]
    tuned: Sequence[Arm] = TUNED  # also over `LOCAL_STEPS`
    others: Sequence[Arm] = OTHERS


QUICK: Final = Size(256, Care(2, 2), MODELS[:1], TUNED[:4], named(DRIFT, FIXED, "BSP"))
USUAL: Final = Size(768, Care(5, 5), MODELS)
FULL: Final = Size(3072, Care(5, 5), (*MODELS, "bimodal", "homogeneous"))


def bench_accuracy(
    size: Size = USUAL,
    data: Path | None = None,
    traces: Path | None = None,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> Report:
    """Run the benchmark; `progress` receives the number of finished trials and the total."""
    found: list[Source] = [Modelled(name) for name in size.models]
    if traces is not None:
        found += [source for source in sources(traces) if isinstance(source, Recorded)]
    scenes = [Scene("skew", source.name, data=data, source=source, steps=size.steps) for source in found]
    bsp = Trial(Scene("skew", data=data, steps=size.steps), BSP, size.care).tune()[1]
    targets = tuple(share * bsp for share in SHARES)
    arms = [(arm, LOCAL_STEPS) for arm in size.tuned] + [(arm, ()) for arm in size.others]
    trials = [
        Trial(scene, arm, size.care, targets[-1], local_steps, MORE_TUNING_SEEDS)
        for scene in scenes
        for arm, local_steps in arms
    ]
    return report(play(trials, progress), targets)


def report(measured: Sequence[Measured], targets: Sequence[float]) -> Report:
    """Return figures and rows, a row for each target and seed of each arm."""
    races = [_race(each, target) for target in targets for each in measured]
    seeds = sorted({each.seed for each in measured})
    return Report(figures(races), [race.row() for race in races], machine(), seeds)


@dataclass(frozen=True, slots=True)
class Race:
    """The time and bytes that one arm took to the target on one seed."""

    run: Measured
    target: float
    seconds: float
    megabytes: float

    def row(self) -> Mapping[str, Value]:
        """Return a row of the report."""
        to_target = {
            "target": self.target, "seconds_to_target": self.seconds, "megabytes_to_target": self.megabytes,
        }  # fmt: skip
        return {**self.run.row(), **to_target}


def _race(run: Measured, target: float) -> Race:
    seconds, megabytes = run.trace.reach(target) or (math.inf, math.inf)
    return Race(run, target, seconds, megabytes)


def figures(races: Sequence[Race]) -> dict[str, float | Mapping[str, float | None] | None]:
    """Return the figures."""
    cases = dict.fromkeys((race.run.scene, race.target) for race in races)
    best, float32, drift, fedavg, slower, final = [], [], [], [], [], []
    over_fedavg = []
    by_scenario: dict[str, float | None] = {}
    float32_by_scenario: dict[str, float | None] = {}
    for scene, target in cases:
        here = [race for race in races if (race.run.scene, race.target) == (scene, target)]
        best.append(_ratios(here, None, "seconds"))
        name = f"{scene.straggler}, {target:.1f}, over {_quickest(here)}"
        by_scenario |= {name: _least(best[-1:], median), f"{name}, least": _least(best[-1:], min)}
        final += _final_gains(here)
        float32.append(_ratios(here, None, "seconds", ours=FLOAT32))
        name = f"{scene.straggler}, {target:.1f}"
        float32_by_scenario |= {
            name: _least(float32[-1:], median),
            f"{name}, least": _least(float32[-1:], min),
        }
        drift.append(_ratios(here, None, "seconds", ours=DRIFT))
        fedavg.append(_ratios(here, FEDAVG_NAMES, "seconds"))
        slower.append(_drift_ratios(here))
        over_fedavg.append(_ratios(here, FEDAVG_NAMES, "megabytes"))
    return {
        "best_baseline_time_over_ours": {"median": _least(best, median), "lower": _least(best, min)},
        "by_scenario": by_scenario,
        "best_baseline_time_over_float32": {"median": _least(float32, median), "lower": _least(float32, min)},
        "float32_by_scenario": float32_by_scenario,
        "best_baseline_time_over_drift": {"median": _least(drift, median), "lower": _least(drift, min)},
        "drift_time_over_fixed": max((median(each) for each in slower if each), default=None),
        "fedavg_time_over_ours": _least(fedavg, median),
        "bytes_over_fedavg": _inverse(_least(over_fedavg, median)),
        "final_points_over_best": min(final, default=None),
    }


def _ratios(here: Sequence[Race], others: Sequence[str] | None, cost: str, ours: str = OURS) -> list[float]:
    """Return the others' least cost over ours for every seed; without names, that of all baselines."""
    ratios = []
    for race_of_ours in (race for race in here if race.run.arm.name == ours):
        seed = race_of_ours.run.seed
        theirs = [
            getattr(race, cost)
            for race in here
            if race.run.seed == seed
            and not race.run.arm.ours
            and (others is None or race.run.arm.name in others)
        ]
        if theirs:
            ratios.append(_ratio(min(theirs), getattr(race_of_ours, cost)))
    return ratios


def _quickest(here: Sequence[Race]) -> str:
    """Return the baseline with the least median time."""
    seconds: dict[str, list[float]] = {}
    for race in here:
        if not race.run.arm.ours:
            seconds.setdefault(race.run.arm.name, []).append(race.seconds)
    return min(seconds, key=lambda name: median(seconds[name]), default="")


def _final_gains(here: Sequence[Race]) -> list[float]:
    """Return our mean final accuracy less that of the best baseline, or nothing without both."""
    points: dict[tuple[str, bool], list[float]] = {}
    for race in here:
        points.setdefault((race.run.arm.name, race.run.arm.ours), []).append(race.run.points)
    mine = [fmean(each) for (name, _), each in points.items() if name == OURS]
    theirs = [fmean(each) for (_, ours), each in points.items() if not ours]
    return [mine[0] - max(theirs)] if mine and theirs else []


def _drift_ratios(here: Sequence[Race]) -> list[float]:
    """Return the seconds of the drift budget over those of the fixed period, for every seed."""
    seconds = {(race.run.arm.name, race.run.seed): race.seconds for race in here}
    seeds = [race.run.seed for race in here if race.run.arm.name == DRIFT]
    return [_ratio(seconds[DRIFT, seed], seconds[FIXED, seed]) for seed in seeds if (FIXED, seed) in seconds]


def _ratio(theirs: float, ours: float) -> float:
    """Return a ratio of times; an arm that never arrives loses, and two of them tie.

    >>> _ratio(math.inf, 2.0), _ratio(2.0, math.inf), _ratio(math.inf, math.inf)
    (inf, 0.0, 1.0)
    """
    if math.isinf(ours):
        return 1.0 if math.isinf(theirs) else 0.0
    return theirs / ours


def _least(ratios: Sequence[Sequence[float]], of: Callable[[Sequence[float]], float]) -> float | None:
    return min((of(each) for each in ratios if each), default=None)


def _inverse(least: float | None) -> float | None:
    """Return ours over theirs, from the least of theirs over ours."""
    if least is None:
        return None
    return math.inf if least == 0 else 1.0 / least


def text_lines(of: Report) -> Iterator[str]:
    """Yield lines of text: every arm in every scenario, the quickest first."""
    head = " ".join(f"{name:>9}" for name in ("seconds", "MB", "target", "at end"))
    yield f"{'scenario':22} {'arm':24} {'seed':>4} {head}"
    order = sorted(of.rows, key=lambda row: (str(row["straggler"]), number_or_nan(row["seconds_to_target"])))
    for row in order:
        names = ("seconds_to_target", "megabytes_to_target", "target", "points")
        numbers = " ".join(f"{number_or_nan(row[name]):9.4g}" for name in names)
        yield f"{row['straggler']!s:22} {row['arm']!s:24} {row['seed']!s:>4} {numbers}"
