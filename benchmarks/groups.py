"""`python -m benchmarks groups`: simulated seconds to a target accuracy, with clients in groups by speed.

    sync      a round ends when a share of the clients is done; unfinished work is dropped. The share is
              tuned, in place of a deadline
    partial   the same, and a client that is not done counts with the steps that it has
    FedBuff   asynchronous: some updates make a model (`asynchronous`)
    late      partial rounds that end with the updates of the quorum; those of others count in later rounds
              (`aggregation.late-updates = count`)
    groups    the same, but a round ends with the updates of a share of any one group of clients, by the speed
              history of the run (`aggregation.groups = speed`); with the default aggregation rule and shared
              momentum, and four times the rates for it
    planned   `fedgc plan` says the quorum for these clients, and whether late updates count, by `HISTORY`
              earlier blocks; with that rule, momentum and rates as well

Eight clients hold skewed labels. In the modelled scenes three have speed 1, three .2 and two .05; their links
are alike, or as slow as they are. Other scenes are traces of real machines and links. A round is `STEPS`
local steps. Every arm has as many settings (`ARMS`), tried at the same rates, and is tuned to be at the
target soonest, on `MORE_TUNING_SEEDS`; `planned` is tuned over rates alone. An arm is given up after `LATE`
times as long as the quickest arm that was tuned before it.

Figures, ratios of medians over seeds; but `placement_over_line` is that of `chunk_placement`, which is
measured first, on the real clock:

    groups_over_sync   groups over sync, by modelled scene
    planned_over_sync  planned over sync
    worst_over_best    planned over the quickest of sync, partial and FedBuff: the worst scene
    planned_over_best  the same by scene; groups_over_best is that of groups, late_over_best that of late
    groups_over_planned  groups over planned, by scene
    late_over_waiting  late over partial, by scene
    seconds            to the target, by scene and arm
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean, median
from typing import Final

import numpy as np

from benchmarks.arm_fleet import ArmFleet, Extras
from benchmarks.arms import ALONE, LED, Arm
from benchmarks.asynchronous import Buffered, Moment, train_asynchronously
from benchmarks.chunk_placement import bench_placement
from benchmarks.grid import Linked, Recorded, Source, sources
from benchmarks.images import mlp_losses
from benchmarks.report import Figure, Report, Value, machine
from benchmarks.scene import BLOCK, CLIENTS, CONTROL_S, Scene, task_of
from benchmarks.trial import MORE_TUNING_SEEDS, Care
from fedgc.errors import FedgcError
from fedgc.sim.clock import Conditions, Scenario, working
from fedgc.sim.clock.conditions import Float
from fedgc.sim.owned import Processes
from fedgc.sim.training import Job, Point, train
from fedgc.tuner.local_rounds import LocalClients, choose_rounds

SPEEDS: Final = (1.0, 1.0, 1.0, 0.2, 0.2, 0.2, 0.05, 0.05)
BLOCK_S: Final = 1.0  # of the median client, or of those with speed 1
LINK: Final = 0.1  # blocks that a model takes, in scenes without links
HISTORY: Final = 8
BLOCKS: Final = HISTORY + 256
STEPS: Final = 32  # of a round
RATES: Final = (0.4, 0.2, 0.8)
TARGET: Final = 88.0  # points
LONGEST: Final = 20.0  # rounds of the slowest client, for the first arm
LATE: Final = 6.0
AGAIN: Final = 3  # settings and rates that are tried on all of these
RACE: Final = 1.25  # times the best so far of an arm: a setting that is slower is given up
MOST_ROUNDS: Final = 2048
QUORUM: Final = 0.75  # of partial rounds by default
PLACED: Final = "placement_over_line"
REACH: Final = {"groups_over_sync": 0.6, "worst_over_best": 1.05, PLACED: 1.2}
QUICK: Final = Care(1, 1)
USUAL: Final = Care(3, 9)


@dataclass(frozen=True, slots=True)
class Uneven:
    """Three groups of speeds; a transfer takes `link` blocks, at slow clients longer if `links_too`."""

    name: str
    link: float = LINK
    links_too: bool = False

    def make(self, clients: int, rounds: int, seed: int) -> Scenario:  # noqa: ARG002  nothing is drawn
        """Return rounds that are all alike."""
        pace_w = 1.0 / np.array(SPEEDS[:clients])
        up_s = self.link * (pace_w if self.links_too else np.ones(clients))
        return (working(pace_w[:, None], up_s=up_s, down_s=up_s),) * rounds


UNEVEN: Final = (Uneven("three speeds"), Uneven("three speeds, links too", 1.0, links_too=True))


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of an arm; `planned` takes its quorum from the speeds of the clients."""

    name: str
    rule: Buffered | None = None
    quorum: float = 1.0
    partial: bool = False
    planned: bool = False
    late: bool = False
    groups: bool = False
    led: bool = False  # by shared momentum, with the default aggregation rule

    def resolved(self, clients: "Clients") -> "Setting":
        """Return the setting for these clients."""
        if self.planned:
            choice = choose_rounds(clients.known, STEPS)
            return replace(self, partial=True, quorum=choice.chosen.quorum, late=choice.way == "late")
        return self


def _rounds(*, partial: bool, late: bool = False, groups: bool = False) -> tuple[Setting, ...]:
    shares = (("75% done", QUORUM), ("38% done", 0.375), ("100% done", 1.0))
    return tuple(
        Setting(name, quorum=share, partial=partial, late=late, groups=groups, led=groups)
        for name, share in shares
    )


ARMS: Final[Mapping[str, Sequence[Setting]]] = {
    "FedBuff": tuple(Setting(f"buffer {size}", rule=Buffered(size)) for size in (1, 2, 4)),
    "partial": _rounds(partial=True),
    "sync": _rounds(partial=False),
    "late": _rounds(partial=True, late=True),
    "groups": _rounds(partial=True, late=True, groups=True),
    "planned": (Setting("planned", planned=True, led=True),),
}
OTHERS: Final = ("sync", "partial", "FedBuff")


@dataclass(frozen=True, slots=True)
class Clients:
    """The conditions of the clients of one seed: some blocks of history, then those of the run."""

    blocks: Scenario

    @property
    def known(self) -> LocalClients:
        """Return what the history shows."""
        past = self.blocks[:HISTORY]
        return LocalClients(
            np.mean([each.mean_pace_w for each in past], axis=0) / BLOCK,
            np.mean([each.down_s_w for each in past], axis=0),
            np.mean([each.up_s_w for each in past], axis=0),
        )

    @property
    def round_s_w(self) -> Float:
        """Return how long each needs for a round, transfers included, by the history."""
        known = self.known
        seconds: Float = known.down_s_w + STEPS * known.step_s_w + known.up_s_w
        return seconds

    def scenario(self, rounds: int) -> Scenario:
        """Return the conditions of these rounds, repeated at the end of those that are known."""
        blocks = self.blocks[HISTORY :: STEPS // BLOCK]
        each = [replace(block, pace_wk=block.pace_wk * STEPS / BLOCK) for block in blocks]
        return tuple(islice(cycle(each), rounds))


@lru_cache(maxsize=8)
def clients_of(source: Source, seed: int) -> Clients:
    """Return a source scaled so that its median client, or speed 1, does a block in `BLOCK_S`."""
    made = source.make(CLIENTS, BLOCKS, seed)
    middle = 1.0 if isinstance(source, Uneven) else float(np.median([each.mean_pace_w for each in made]))
    links = any(each.up_s_w.any() for each in made)
    return Clients(tuple(_scaled(each, BLOCK_S / middle, links=links) for each in made))


def _scaled(block: Conditions, factor: float, *, links: bool) -> Conditions:
    pace_wk = block.mean_pace_w[:, None] * factor
    up_s, down_s = (block.up_s_w * factor, block.down_s_w * factor) if links else (LINK * BLOCK_S,) * 2
    return working(pace_wk, up_s=up_s, down_s=down_s, control_s=CONTROL_S)


@dataclass(frozen=True, slots=True)
class Run:
    """One seed of one arm in one scene."""

    source: Source
    arm: str
    setting: Setting
    rate: float
    seed: int
    longest: float  # seconds after which it is given up

    def seconds(self) -> float:
        """Train; return the seconds to the target, infinite if it is not reached."""
        clients = clients_of(self.source, self.seed)
        setting = self.setting.resolved(clients)
        job = self._job(setting, clients)
        try:
            if setting.rule is None:
                last: Point | Moment = train(job, until=self._ends).points[-1]
            else:
                last = train_asynchronously(job, setting.rule, self._ends).moments[-1]
        except FedgcError:  # it diverged
            return math.inf
        return last.seconds if _points(last) >= TARGET else math.inf

    def _ends(self, now: Point | Moment) -> bool:
        return now.seconds > self.longest or _points(now) >= TARGET

    def _job(self, setting: Setting, clients: Clients) -> Job:
        settings = {
            "gate": "every", "local_steps": STEPS, "quorum": setting.quorum, "evaluate_every": 1,
            "late_updates": "count" if setting.late else "wait",
            "groups": "speed" if setting.groups else "off",
            **({} if setting.led else {**ALONE, "aggregator": "weighted-mean"}),
        }  # fmt: skip
        arm = Arm(self.arm, settings, ours=setting.partial, partial=setting.partial)
        rate = self.rate * (LED if setting.led else 1.0)
        config = arm.config(MOST_ROUNDS * STEPS, rate, self.seed, 0)
        engines = partial(ArmFleet, extras=Extras(losses=mlp_losses))
        scenario = clients.scenario(MOST_ROUNDS)
        task = task_of(Scene("skew"), self.seed)
        return Job(task, config, scenario, engines=engines, partial=setting.partial)


def _points(now: Point | Moment) -> float:
    return 100.0 * now.metrics.get("accuracy", 0.0)


@dataclass(frozen=True, slots=True)
class Measured:
    """A run, and how long it took to the target."""

    run: Run
    seconds: float

    def row(self) -> dict[str, Value]:
        """Return a row of the report."""
        run = self.run
        setting = run.setting.resolved(clients_of(run.source, run.seed))
        return {
            "scene": run.source.name, "arm": run.arm, "setting": setting.name,
            "rule": type(setting.rule).__name__ if setting.rule else "rounds", "quorum": setting.quorum,
            "rate": run.rate, "seed": run.seed, "seconds_to_target": self.seconds,
        }  # fmt: skip


def measure(source: Source, care: Care) -> list[Measured]:
    """Tune and measure all arms in one scene."""
    found: list[Measured] = []
    longest = LONGEST * float(clients_of(source, MORE_TUNING_SEEDS[0]).round_s_w.max())
    for arm in ARMS:
        best = tune(source, arm, care, longest)
        longest = min(longest, LATE * best.seconds)
        runs = [replace(best.run, seed=seed, longest=longest) for seed in range(care.seeds)]
        found += [Measured(run, run.seconds()) for run in runs]
    return found


def tune(source: Source, arm: str, care: Care, longest: float) -> Measured:
    """Return the quickest setting and rate: all are tried on one seed, the best three on others as well."""
    first, *others = MORE_TUNING_SEEDS
    clients = clients_of(source, first)
    different = {replace(each.resolved(clients), name=""): each for each in reversed(ARMS[arm])}
    quickest, tried = longest, []
    for setting in reversed(different.values()):
        for rate in RATES[: care.rates]:
            run = Run(source, arm, setting, rate, first, min(longest, RACE * quickest))
            tried.append(Measured(run, run.seconds()))
            quickest = min(quickest, tried[-1].seconds)
    close = sorted(tried, key=lambda each: each.seconds)[:AGAIN]
    return min((replace(each, seconds=_mean_s(each, others, longest)) for each in close), key=_seconds)


def _mean_s(tried: Measured, others: Sequence[int], longest: float) -> float:
    """Return the mean time of a run on its seed and on others; one that never ends counts as the longest."""
    again = (replace(tried.run, seed=seed, longest=longest).seconds() for seed in others)
    return fmean(min(each, longest) for each in (tried.seconds, *again))


def _seconds(measured: Measured) -> float:
    return measured.seconds


def bench_groups(
    care: Care = USUAL,
    traces: Path | None = None,
    gigabytes: float = 0.5,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> Report:
    """Place made data, then train on two processes; `progress` receives the finished scenes and the total."""
    placement = bench_placement(gigabytes)
    scenes: list[Source] = [*UNEVEN]
    if traces is not None:
        scenes += [each for each in sources(traces) if isinstance(each, Recorded | Linked)]
    measured: list[Measured] = []
    with Processes() as pool:
        for done, future in enumerate([pool.submit(measure, each, care) for each in scenes], start=1):
            measured += future.result()
            progress(done, len(scenes))
    return report(measured, placement)


def report(measured: Sequence[Measured], placement: Report) -> Report:
    """Return figures, misses first, a row for each seed of each arm, and those of the placement."""
    found = {**figures(measured), PLACED: placement.figures[PLACED]}
    missed = {name: figure for name, figure in found.items() if _misses(name, figure)}
    seeds = sorted({each.run.seed for each in measured})
    rows = [*(each.row() for each in measured), *placement.rows]
    return Report({**missed, **found}, rows, machine(), seeds)


def _misses(name: str, figure: Figure) -> bool:
    values = figure.values() if isinstance(figure, Mapping) else (figure,)
    return name in REACH and any(not isinstance(v, int | float) or v > REACH[name] for v in values)


def figures(measured: Sequence[Measured]) -> dict[str, Figure]:
    """Return the figures."""
    seeds: dict[tuple[str, str], list[float]] = {}
    for each in measured:
        seeds.setdefault((each.run.source.name, each.run.arm), []).append(each.seconds)
    middle = {key: median(each) for key, each in seeds.items()}
    scenes = list(dict.fromkeys(scene for scene, _ in middle))
    best = {scene: min(middle[scene, arm] for arm in OTHERS) for scene in scenes}
    planned = {scene: _ratio(middle[scene, "planned"], best[scene]) for scene in scenes}
    uneven = [each.name for each in UNEVEN if each.name in scenes]
    return {
        "groups_over_sync": {each: _ratio(middle[each, "groups"], middle[each, "sync"]) for each in uneven},
        "planned_over_sync": {each: _ratio(middle[each, "planned"], middle[each, "sync"]) for each in uneven},
        "worst_over_best": max(planned.values(), default=None),
        "planned_over_best": planned,
        "late_over_waiting": {
            scene: _ratio(middle[scene, "late"], middle[scene, "partial"]) for scene in scenes
        },
        "late_over_best": {scene: _ratio(middle[scene, "late"], best[scene]) for scene in scenes},
        "groups_over_best": {scene: _ratio(middle[scene, "groups"], best[scene]) for scene in scenes},
        "groups_over_planned": {
            scene: _ratio(middle[scene, "groups"], middle[scene, "planned"]) for scene in scenes
        },
        "seconds": {f"{scene}, {arm}": seconds for (scene, arm), seconds in middle.items()},
    }


def _ratio(ours: float, theirs: float) -> float:
    """Return a ratio of times; an arm that never arrives loses, and two of them tie.

    >>> _ratio(math.inf, 2.0), _ratio(1.0, 2.0), _ratio(math.inf, math.inf)
    (inf, 0.5, 1.0)
    """
    return 1.0 if math.isinf(ours) and math.isinf(theirs) else ours / theirs


def text_lines(of: Report) -> Iterator[str]:
    """Yield lines of text: every arm in every scene, in each the slowest first."""
    yield f"{'scene':26} {'arm':10} {'setting':26} {'quorum':>6} {'rate':>5} {'seed':>4} {'seconds':>9}"
    trained = [row for row in of.rows if "scene" in row]
    for row in sorted(trained, key=lambda row: (str(row["scene"]), -float(row["seconds_to_target"] or 0))):
        yield (
            f"{row['scene']!s:26} {row['arm']!s:10} {row['setting']!s:26} {row['quorum']:6.3g} "
            f"{row['rate']:5.2g} {row['seed']!s:>4} {row['seconds_to_target']:9.4g}"
        )
