"""Every arm in the scene, on the same clock, bytes, seeds and tuning budget.

fedgc runs its serving code under simulated time (`fedgc.sim.training`); the others run the same machines with
their own settings and rules, or `benchmarks.asynchronous`. Training is real.

Each arm is tuned over the same number of learning rates on seeds that are not reported (`benchmarks.trial`):
first the null arm, for its final accuracy, which less one point is the target; then all others, for the time
to the target. Arms that wait for the slow site train for `HOURS`, the others for a fifth of that.

Figures, of which those that miss their reach come first:

    time_over_wait_all             hours of fedgc to the target over those of FedAvg that waits for all:
                                   median over seeds, and the most
    time_over_best_rival           the same over those of the quickest rival on each seed
    time_over_best_whole_work      the same over the quickest rival whose server takes whole work only
    slow_site_gap_points           accuracy on the slow site's data at the end, less that of waiting for all
    slow_site_over_dropping_points the same, less that of the best arm that drops or buffers late work
    bytes_over_deadline            gigabytes of fedgc to the target over those of FedAvg with a deadline: all
                                   that it sent if it never reached the target
    bytes_over_wait_all            the same over those of FedAvg that waits for all
    target_points                  the target
    coverage_by_data               share of the data in the mean model of a round, by arm: mean over rounds
    coverage_by_sites              share of the sites in it

A run that never reaches the target has infinite time, and counts in a ratio with all of its hours.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median
from typing import Final

import numpy as np

from benchmarks.arm_fleet import ArmFleet, Extras
from benchmarks.arms import Arm
from benchmarks.asynchronous import Moment, train_asynchronously
from benchmarks.images import mlp_losses
from benchmarks.local_rules import parts_of, sending
from benchmarks.report import Figure, Report, Value, machine
from benchmarks.trial import tuned
from examples.hospitals.arms import DROPS, ENTRIES, OURS, WAITS, Entry
from examples.hospitals.scene import (
    BIG,
    HOUR_S,
    MODEL_MB,
    SHARES,
    SITES,
    TRANSFER_S,
    Float,
    Sites,
    scenario_of,
    site_of,
    sites_of,
)
from fedgc.errors import FedgcError
from fedgc.history import RoundRow
from fedgc.run.machine import CHECK_BYTES
from fedgc.sim.owned import Processes
from fedgc.sim.training import Job, Point, train

LESS: Final = 1.0  # points below the null arm's accuracy
REACH: Final[Mapping[str, Callable[[float], bool]]] = {
    "time_over_wait_all": lambda most: most <= 1 / 3,
    "time_over_best_rival": lambda most: most <= 1 / 1.5,
    "slow_site_gap_points": lambda points: points >= -0.5,
    "slow_site_over_dropping_points": lambda points: points > 0,
    "bytes_over_deadline": lambda ratio: ratio <= 1 / 2,
}


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of a run at the end of a round."""

    hours: float
    gigabytes: float
    points: float
    site_points: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One arm on one seed."""

    entry: Entry
    seed: int
    rate: float
    marks: tuple[Mark, ...] = ()
    data: float = 0.0  # share of the samples in the mean model of a round
    sites: float = 0.0
    thrown: float = 0.0  # share of the training time that is in no model
    failed: str = ""

    @property
    def points(self) -> float:
        """Return the accuracy at the end, in points."""
        return self.marks[-1].points if self.marks else 0.0

    @property
    def slow_points(self) -> float:
        """Return the accuracy on the slow site's data at the end."""
        return self.marks[-1].site_points[BIG] if self.marks else 0.0

    def reach(self, target: float) -> Mark | None:
        """Return the first mark with this accuracy."""
        return next((mark for mark in self.marks if mark.points >= target), None)

    def cost(self, target: float, what: str) -> float:
        """Return hours or gigabytes to the target, or all of the run if it never got there."""
        mark = self.reach(target) or (self.marks[-1] if self.marks else None)
        return float(getattr(mark, what)) if mark else self.entry.hours

    def worth(self, target: float | None) -> tuple[float, float]:
        """Return a key for tuning, larger is better: time to the target, then accuracy."""
        reached = None if target is None else self.reach(target)
        return (-reached.hours if reached else -float("inf")), self.points

    def row(self, target: float) -> dict[str, Value]:
        """Return a row of the report."""
        reached = self.reach(target)
        last = self.marks[-1] if self.marks else Mark(0.0, 0.0, 0.0, (0.0,) * SITES)
        return {
            "arm": self.entry.name, "seed": self.seed, "rate": self.rate,
            "hours_to_target": reached.hours if reached else float("inf"),
            "gb_to_target": reached.gigabytes if reached else float("inf"),
            "hours": last.hours, "gb": last.gigabytes, "points": last.points,
            "slow_site_points": last.site_points[BIG], "worst_site_points": min(last.site_points),
            "site_points": ", ".join(f"{each:.1f}" for each in last.site_points),
            "coverage_by_data": self.data, "coverage_by_sites": self.sites, "thrown_away": self.thrown,
            "operator": self.entry.operator, "failed": self.failed,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Care:
    """How much is measured: learning rates for each arm, reported seeds, and arms."""

    rates: int = 5
    seeds: int = 5
    entries: Sequence[Entry] = ENTRIES


# ---- one run


def measure(entry: Entry, hours: float, rate: float, seed: int) -> Run:
    """Train one arm for this long."""
    sites, arm = sites_of(seed), entry.arm
    task, rounds = sites.task(), max(1, round(hours * HOUR_S / entry.round_s))
    config = arm.config(rounds * arm.look, rate, seed, 0)
    scenario = scenario_of(rounds, config.round_steps, entry.round_s)
    extras = Extras(losses=mlp_losses)
    if arm.local_rule is not None:
        extras = replace(extras, rule=arm.local_rule.steps(parts_of(task, rate), scenario))
        scenario = sending(arm.local_rule.scenario(scenario), arm.local_rule.vectors)
    job = Job(task, config, scenario, engines=partial(ArmFleet, extras=extras), partial=arm.partial)
    bare = Run(entry, seed, rate)
    try:
        if arm.rule is not None:
            return _asynchronous(bare, train_asynchronously(job, arm.rule).moments, sites)
        step_s_w = job.scenario[0].mean_pace_w / config.round_steps
        return _synchronous(bare, train(job).points, sites, step_s_w)
    except FedgcError as error:  # it diverged
        return replace(bare, failed=str(error))


def _synchronous(bare: Run, points: Sequence[Point], sites: Sites, step_s_w: Float) -> Run:
    marks: list[Mark] = []
    for point in points:
        vectors = bare.entry.arm.vectors * (point.sent + point.down)
        marks.append(_mark(point.seconds, vectors, 2 * SITES * len(marks), point.metrics, sites))
    rows = [point.row for point in points]
    return replace(
        bare,
        marks=tuple(mark for mark, point in zip(marks, points, strict=True) if point.metrics),
        data=fmean(row.coverage or 0.0 for row in rows),
        sites=fmean(sum(each.counted > 0 for each in row.clients) / SITES for row in rows),
        thrown=_thrown(bare.entry.arm, rows, step_s_w),
    )


def _asynchronous(bare: Run, moments: Sequence[Moment], sites: Sites) -> Run:
    marks = [
        _mark(each.seconds, each.pushed + each.pulled, each.pushed, each.metrics, sites)
        for each in moments
    ]  # fmt: skip
    came = [[site_of(client) for client in each.clients] for each in moments]
    return replace(
        bare,
        marks=tuple(marks),
        data=fmean(sum(SHARES[site] for site in each) for each in came),
        sites=fmean(len(each) / SITES for each in came),
    )


def _mark(seconds: float, vectors: float, messages: int, metrics: Mapping[str, float], sites: Sites) -> Mark:
    if not metrics:
        return Mark(seconds / HOUR_S, 0.0, 0.0, ())
    gigabytes = vectors * MODEL_MB / 1e3 + messages * CHECK_BYTES / 1e9
    points = tuple(sites.points(metrics).tolist())
    return Mark(seconds / HOUR_S, gigabytes, 100.0 * metrics["accuracy"], points)


def _thrown(arm: Arm, rows: Sequence[RoundRow], step_s_w: Float) -> float:
    """Return the share of the time in which sites trained, but whose steps are in no model."""
    trained_s = counted_s = 0.0
    for row in rows:
        there_s = max(0.0, row.working_s - TRANSFER_S * arm.vectors)  # with the model
        for each in row.clients:
            step_s = float(step_s_w[site_of(each.client)])
            whole_s = there_s if arm.ours else min(there_s, arm.look * step_s)  # others then rest
            trained_s += whole_s
            counted_s += min(whole_s, each.counted * step_s)
    return 1.0 - counted_s / trained_s if trained_s else 0.0


# ---- all runs


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best rate of an arm, and its runs on the tuning seeds."""

    entry: Entry
    rate: float
    runs: Sequence[Run]


def tune(entry: Entry, rates: int, target: float | None) -> Tuned:
    """Return the best of the first rates of an arm."""
    at = partial(measure, entry, entry.tuning_hours)
    rate, runs = tuned(entry.arm.rates("sgd")[:rates], at, lambda run: run.worth(target))
    return Tuned(entry, rate, runs)


def compare(care: Care, progress: Callable[[int, int], object] = lambda *_: None) -> Report:
    """Tune and measure all arms on two processes."""
    null = next(entry for entry in care.entries if entry.name == WAITS)
    others = sorted((each for each in care.entries if each is not null), key=lambda each: each.waits)
    with Processes() as pool:
        first = pool.submit(tune, null, care.rates, None).result()
        target = fmean(run.points for run in first.runs) - LESS
        tunings = [pool.submit(tune, entry, care.rates, target) for entry in others]
        found = [first, *(each.result() for each in tunings)]
        order = sorted(found, key=lambda each: each.entry.waits)
        futures = [
            pool.submit(measure, each.entry, each.entry.hours, each.rate, seed)
            for each in order
            for seed in range(care.seeds)
        ]
        runs = []
        for done, future in enumerate(futures, start=1):
            runs.append(future.result())
            progress(done, len(futures))
    return report(runs, target)


def report(runs: Sequence[Run], target: float) -> Report:
    """Return the figures, misses first, and a row for each arm and seed, the slowest first."""
    found = figures(runs, target)
    missed = {name: figure for name, figure in found.items() if _misses(name, figure)}
    rows = sorted((run.row(target) for run in runs), key=_slowest_first)
    seeds = sorted({run.seed for run in runs})
    return Report({**missed, **found}, rows, machine(), seeds)


def _misses(name: str, figure: Figure) -> bool:
    value = figure["most"] if isinstance(figure, Mapping) and "most" in figure else figure
    return name in REACH and (not isinstance(value, int | float) or not REACH[name](value))


def _slowest_first(row: Mapping[str, Value]) -> tuple[float, str, int]:
    hours, seed = row["hours_to_target"], row["seed"]
    return -float(hours or 0.0), str(row["arm"]), int(seed or 0)


def figures(runs: Sequence[Run], target: float) -> dict[str, Figure]:
    """Return the figures."""
    by_arm: dict[str, dict[int, Run]] = {}
    for run in runs:
        by_arm.setdefault(run.entry.name, {})[run.seed] = run
    ours, null = by_arm[OURS], by_arm[WAITS]
    rivals = [each for name, each in by_arm.items() if name != WAITS and not _any(each).entry.arm.ours]
    whole = [each for each in rivals if not _any(each).entry.arm.partial or _any(each).entry.arm.rule]
    late = [each for each in rivals if _any(each).entry.drops or _any(each).entry.arm.rule]
    slow = {seed: run.slow_points for seed, run in ours.items()}
    found: dict[str, Figure] = {
        "time_over_wait_all": _over(ours, [null], target, "hours"),
        "time_over_best_rival": _over(ours, rivals, target, "hours"),
        "time_over_best_whole_work": _over(ours, whole, target, "hours"),
        "slow_site_gap_points": fmean(slow[seed] - null[seed].slow_points for seed in slow),
        "slow_site_over_dropping_points": min(
            (fmean(slow[seed] - each[seed].slow_points for seed in slow) for each in late), default=None
        ),
        "bytes_over_wait_all": _over(ours, [null], target, "gigabytes"),
        "target_points": target,
    }
    if DROPS in by_arm:
        found["bytes_over_deadline"] = _over(ours, [by_arm[DROPS]], target, "gigabytes")
    for name in ("data", "sites"):
        means = {arm: fmean(getattr(run, name) for run in each.values()) for arm, each in by_arm.items()}
        found[f"coverage_by_{name}"] = means
    return found


def _any(runs: Mapping[int, Run]) -> Run:
    return next(iter(runs.values()))


def _over(ours: Mapping[int, Run], rivals: Sequence[Mapping[int, Run]], target: float, what: str) -> Figure:
    """Return our cost over that of the cheapest of these rivals on each seed: median, and the most."""
    if not rivals:
        return None
    ratios = []
    for seed, run in ours.items():
        least = min(each[seed].cost(target, what) for each in rivals)
        ratios.append(run.cost(target, what) / least if run.reach(target) else float("inf"))
    return {"median": median(ratios), "most": max(ratios)}


def text_lines(of: Report) -> list[str]:
    """Return a table: each arm with its means over seeds, the slowest first."""
    names = (
        "hours_to_target",
        "gb_to_target",
        "points",
        "slow_site_points",
        "coverage_by_data",
        "thrown_away",
    )
    head = "  ".join(f"{name:>{len(name)}}" for name in names)
    lines = [f"{'arm':24} {head}  operator"]
    by_arm: dict[str, list[Mapping[str, Value]]] = {}
    for row in of.rows:
        by_arm.setdefault(str(row["arm"]), []).append(row)
    for arm, rows in by_arm.items():
        means = [float(np.mean([float(row[name] or 0.0) for row in rows])) for name in names]
        numbers = "  ".join(f"{each:{len(name)}.4g}" for name, each in zip(names, means, strict=True))
        lines.append(f"{arm:24} {numbers}  {rows[0]['operator']}")
    return lines
