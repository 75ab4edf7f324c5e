"""`python -m benchmarks accuracy`: simulated seconds and bytes to a target accuracy, under models and traces.

With label skew, fedgc on private data is compared with BSP; FedAvg, FedAvgM and FedCM that wait for six of
eight clients and drop the rest; FedAvg, FedCM and DiLoCo that wait for all; FedProx, whose server counts
partial steps, as published; SCAFFOLD; TimelyFL; a grace window; FedBuff; SelSync (relative change); and
gradient coding with one step a round. Each is tuned as in `trial`.

The targets are fixed first: `SHARES` of the accuracy of BSP, tuned without stragglers, on the tuning seeds.
Every arm is tuned to reach the last one soonest. An arm that never does has infinite time. The shipped digits
need two or three exchanges, so ratios are coarse; harder data gives finer ones.

fedgc exchanges at FedAvg's period. A drift budget is measured too: it saves syncs for the end of a run and
optimizes the final model, which is the wrong choice for a run that stops half-way.

Figures, each the least favorable of all scenarios and targets:

    best_baseline_time_over_ours   the quickest baseline's seconds over ours: median over seeds, and the least
    by_scenario                    the same for each scenario and target, with the quickest baseline there
    best_baseline_time_over_drift  the same over those of a drift budget of as many syncs
    drift_time_over_ours           seconds of the drift budget over ours, a fixed period; median
    fedavg_time_over_ours          FedAvg's over ours, median
    bytes_over_fedavg              ours over FedAvg's, median
    bytes_over_bsp                 ours over BSP's, median
    final_points_over_best         our final accuracy less that of the best baseline, mean over seeds
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Final

from benchmarks.arms import BSP, Arm, named
from benchmarks.grid import Modelled, Recorded, Source, sources
from benchmarks.report import Report, Value, machine
from benchmarks.scene import Scene
from benchmarks.trial import Care, Measured, Trial, play

SHARES: Final = (0.65, 0.75)  # of BSP: reachable by local work on skewed data within the steps of the run
OURS: Final = "ours, fixed 32"
DRIFT: Final = "ours, drift 0.25"
FEDAVG: Final = "FedAvg 32"
ARMS: Final = named(
    OURS, DRIFT, "BSP", FEDAVG, "FedAvg 32, wait", "FedAvgM", "FedCM, drop", "FedCM, wait", "grace window",
    "DiLoCo", "FedProx 0.01", "FedProx 0.1", "FedProx 1", "SCAFFOLD, drop", "SCAFFOLD, wait", "TimelyFL",
    "FedBuff", "relative change 0.1", "relative change 0.3", "gradient code",
)  # fmt: skip
MODELS: Final = ("bimodal-persistent", "shifted-exponential")


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the benchmark."""

    steps: int
    care: Care
    models: Sequence[str]
    arms: Sequence[Arm]


QUICK: Final = Size(256, Care(2, 2), MODELS[:1], named(OURS, DRIFT, "BSP", FEDAVG, "FedAvgM"))
USUAL: Final = Size(768, Care(5, 3), MODELS, ARMS)
FULL: Final = Size(3072, Care(5, 5), (*MODELS, "bimodal", "homogeneous"), ARMS)


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
    trials = [Trial(scene, arm, size.care, targets[-1]) for scene in scenes for arm in size.arms]
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
    best, drift, fedavg, slower, final = [], [], [], [], []
    by_scenario: dict[str, float | None] = {}
    megabytes: dict[str, list[float]] = {FEDAVG: [], BSP.name: []}
    for scene, target in cases:
        here = [race for race in races if (race.run.scene, race.target) == (scene, target)]
        best.append(_ratios(here, None, "seconds"))
        name = f"{scene.straggler}, {target:.1f}, over {_quickest(here)}"
        by_scenario |= {name: _least(best[-1:], median), f"{name}, least": _least(best[-1:], min)}
        final += _final_gains(here)
        drift.append(_ratios(here, None, "seconds", ours=DRIFT))
        fedavg.append(_ratios(here, FEDAVG, "seconds"))
        slower.append(_drift_ratios(here))
        for name, found in megabytes.items():
            found += [median(each) for each in [_ratios(here, name, "megabytes")] if each]
    return {
        "best_baseline_time_over_ours": {"median": _least(best, median), "lower": _least(best, min)},
        "by_scenario": by_scenario,
        "best_baseline_time_over_drift": {"median": _least(drift, median), "lower": _least(drift, min)},
        "drift_time_over_ours": max((median(each) for each in slower if each), default=None),
        "fedavg_time_over_ours": _least(fedavg, median),
        "bytes_over_fedavg": _inverse(megabytes[FEDAVG]),
        "bytes_over_bsp": _inverse(megabytes[BSP.name]),
        "final_points_over_best": min(final, default=None),
    }


def _ratios(here: Sequence[Race], other: str | None, cost: str, ours: str = OURS) -> list[float]:
    """Return the other's cost over ours for every seed; without a name, that of the quickest baseline."""
    ratios = []
    for race_of_ours in (race for race in here if race.run.arm.name == ours):
        seed = race_of_ours.run.seed
        theirs = [
            getattr(race, cost)
            for race in here
            if race.run.seed == seed and not race.run.arm.ours and other in (None, race.run.arm.name)
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
    return [_ratio(seconds[DRIFT, seed], seconds[OURS, seed]) for seed in seeds if (OURS, seed) in seconds]


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


def _inverse(ratios: Sequence[float]) -> float | None:
    """Return ours over theirs, from the least of theirs over ours."""
    least = min(ratios, default=None)
    if least is None:
        return None
    return math.inf if least == 0 else 1.0 / least


def text_lines(of: Report) -> Iterator[str]:
    """Yield lines of text: every arm in every scenario, the quickest first."""
    head = " ".join(f"{name:>9}" for name in ("seconds", "MB", "target", "at end"))
    yield f"{'scenario':22} {'arm':24} {'seed':>4} {head}"
    order = sorted(of.rows, key=lambda row: (str(row["straggler"]), _number(row["seconds_to_target"])))
    for row in order:
        names = ("seconds_to_target", "megabytes_to_target", "target", "points")
        numbers = " ".join(f"{_number(row[name]):9.4g}" for name in names)
        yield f"{row['straggler']!s:22} {row['arm']!s:24} {row['seed']!s:>4} {numbers}"


def _number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
