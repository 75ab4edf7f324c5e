"""`fedgc bench rounds`: every policy under every weather, and where fedgc does not win.

A *cell* is a weather and an upload time, the time of a whole float32 update on a device's own uplink over
that of a device's median unit of work. Without contention an upload adds just its own time to a round, so
each policy is played once for each seed and the cells follow: seconds + ratio * unit * size. (A test plays
some of them in full.) The first rounds are practice: policies that learn have learnt by then.

Figures, of medians over rounds and seeds:

    code_wins_share                  cells where blocks >= 2 is strictly best, short numbers included
    code_wins_share_float32          the same where nobody may send short numbers
    over_work_queue                  best fedgc / best work queue, no upload: largest over weathers
    original_over_ours               codes of full workers at their best load / fedgc
    published_over_ours_same_chunks  published partial protocol / fedgc, blocks 1, same chunks
    published_over_ours              the same, fedgc with chunks of its own size
    worst_over_best_baseline         best fedgc / best exact float32 rival: largest over all cells
    worst_over_best_quantised        the same with rivals that may send 8 or 4 bits
    full_workers_error_over_ours     mean squared errors at 0.9 of our median time, same replicas
    dropping_error_over_ours         the same, against leaving out what is missing

Those that compare with the literature are the least of the shifted-exponential and the bimodal model at 200
devices.

May import: sim and below.
"""

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import numpy as np

from fedgc.bench.deadline import always, errors_at_deadline, ratios
from fedgc.bench.report import Report, Value, machine
from fedgc.config import RunConfig
from fedgc.history import Speeds
from fedgc.plan import Chunk, Fleet, make_plan
from fedgc.replay import MODELS, UNCONTENDED, Terms, Under, Weather, World
from fedgc.round import Assignment, Round
from fedgc.sim.catalogue import PIECES, bounds, original_codes, ours, rivals
from fedgc.sim.coded import PartialStragglers
from fedgc.sim.ours import PATIENT_S, Fedgc
from fedgc.sim.policy import Policy, Result
from fedgc.sim.traces import read_weather
from fedgc.sim.uncoded import WorkQueue

REPLICAS: Final = 8
CLAIMS: Final = ("shifted-exponential", "bimodal")
CLAIM_DEVICES: Final = 200
PRACTICE: Final = 2
SCALING_ROUNDS: Final = 3
UPLOADS: Final = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
TRACES: Final = ("trace-SE.parquet", "trace-ST.parquet", "trace-AR.parquet")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    devices: int
    rounds: int
    seeds: int
    blocks: tuple[int, ...]
    scaling: tuple[int, ...] = (100, 1000)


USUAL: Final = Size(devices=100, rounds=6, seeds=5, blocks=(1, 2, 4))
QUICK: Final = Size(devices=24, rounds=3, seeds=1, blocks=(1, 2), scaling=(100,))
FULL: Final = Size(devices=200, rounds=20, seeds=5, blocks=(1, 2, 4), scaling=(100, 1000, 10_000))


@dataclass(frozen=True, slots=True)
class Job:
    """One weather and seed: what one process does at a time."""

    weather: str
    seed: int
    size: Size
    trace: Path | None = None

    def make(self) -> Weather:
        """Return its rounds; a trace begins elsewhere for every seed."""
        rounds = self.size.rounds + PRACTICE
        if self.trace is None:
            return MODELS[self.weather](self.size.devices, rounds, np.random.default_rng(self.seed))
        whole = read_weather(self.trace)
        return tuple(whole[(self.seed * rounds + at) % len(whole)] for at in range(rounds))


@dataclass(frozen=True, slots=True)
class Row:
    """One policy under one weather and seed, without upload; times of rounds after practice."""

    weather: str
    seed: int
    policy: str
    family: str  # ours, rival, bound
    exact: bool
    blocks: int
    upload_size: float  # of one codeword, in whole float32 updates
    unit_s: float
    median_s: float
    p95_s: float
    spread_s: float
    sent: float
    computed: float
    discarded: float
    undecodable: float  # share of rounds that never end, or not whole


def bench_rounds(
    size: Size = USUAL, traces: Path | None = None, progress: Callable[[int, int], object] = lambda *_: None
) -> Report:
    """Measure; `progress` hears how many of how many jobs are done."""
    jobs = [Job(name, seed, size) for name in MODELS for seed in range(size.seeds)]
    if traces is not None:
        found = [traces / name for name in TRACES if (traces / name).exists()]
        jobs += [Job(path.stem, seed, size, path) for path in found for seed in range(size.seeds)]
    rows: list[Row] = []
    claims: list[Mapping[str, Value]] = []
    workers = min(2, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(measure, job) for job in jobs]
        claimed = [
            pool.submit(measure_claim, name, seed, size) for name in CLAIMS for seed in range(size.seeds)
        ]
        for done, future in enumerate(futures, start=1):
            rows += future.result()
            progress(done, len(futures) + len(claimed))
        for done, claim in enumerate(claimed, start=len(futures) + 1):
            claims.append(claim.result())
            progress(done, len(futures) + len(claimed))
    scaling = [measure_scaling(devices) for devices in size.scaling]  # alone, so that nothing else is timed
    cells = compare(rows)
    measured = {**figures(cells), **_of_claims(claims)}
    table = [*lost_first(cells), *claims, *scaling, *(asdict(row) for row in rows)]
    return Report(measured, table, machine())


# ---- measuring


def measure(job: Job) -> list[Row]:
    """Play all policies under one weather."""
    weather = job.make()
    replicas = min(REPLICAS, weather[0].devices)
    families: dict[str, list[Policy]] = {
        "bound": list(bounds()),
        "rival": list(rivals(replicas)),
        "ours": [policy for blocks in job.size.blocks for policy in ours(replicas, blocks)],
    }
    return [
        _row(job, weather, family, policy)
        for family, policies in families.items()
        for policy in policies
        if policy.blocks in job.size.blocks
    ]


def _row(job: Job, weather: Weather, family: str, policy: Policy) -> Row:
    results = policy.play(weather, UNCONTENDED)[PRACTICE:]
    seconds = np.asarray([_ended_s(policy, result) for result in results])
    ended = seconds[np.isfinite(seconds)]
    return Row(
        weather=job.weather,
        seed=job.seed,
        policy=policy.name,
        family=family,
        exact=policy.exact,
        blocks=policy.blocks,
        upload_size=(policy.wire if isinstance(policy, WorkQueue) else 1.0) / policy.blocks,
        unit_s=float(np.median([each.mean_pace_w for each in weather])),
        median_s=float(np.median(seconds)),
        p95_s=float(np.percentile(seconds, 95, method="higher")),
        spread_s=float(ended.std()) if ended.size else math.inf,
        sent=float(np.mean([result.sent for result in results])),
        computed=float(np.mean([result.computed for result in results])),
        discarded=float(np.mean([result.discarded for result in results])),
        undecodable=1.0 - ended.size / seconds.size,
    )


def _ended_s(policy: Policy, result: Result) -> float:
    """Return the time of a round; one that should be whole and is not counts as one that never ends."""
    return result.seconds if result.exact or not policy.exact else math.inf


def measure_claim(model: str, seed: int, size: Size) -> Mapping[str, Value]:
    """Measure what the literature's codes and fedgc need under one of the two models of the claims."""
    rounds = size.rounds + PRACTICE
    devices = min(CLAIM_DEVICES, 2 * size.devices)
    weather = MODELS[model](devices, rounds, np.random.default_rng(1000 + seed))
    same, own = Fedgc(REPLICAS, 1), Fedgc(REPLICAS, PIECES)

    def median(policy: Policy) -> float:
        return float(
            np.median([_ended_s(policy, each) for each in policy.play(weather, UNCONTENDED)[PRACTICE:]])
        )

    best = min(median(policy) for policy in original_codes(REPLICAS))
    errors = errors_at_deadline(weather, own, np.random.default_rng(seed))
    error = dict(ratios(errors, REPLICAS))
    return {
        "claim": model,
        "seed": seed,
        "devices": devices,
        "original_s": best,
        "published_s": median(PartialStragglers(REPLICAS)),
        "same_chunks_s": median(same),
        "own_chunks_s": median(own),
        "deadline_s": errors.deadline_s,
        "error": errors.ours,
        "full_workers_error_over_ours": error["full workers"],
        "best_load_error_over_ours": error["full workers, best load"],
        "dropping_error_over_ours": error["dropping"],
    }


def measure_scaling(devices: int) -> Mapping[str, Value]:
    """Measure what a steered round costs: as many chunks as devices, four copies of each."""
    chunks = tuple(Chunk(number, f"chunk {number}", 1) for number in range(devices))
    every = frozenset(range(devices))
    fleet = Fleet({f"device {worker}": every for worker in range(devices)}, chunks)
    config = RunConfig(chunks=devices, replicas=4, blocks=1, local_steps=1, deadline_s=PATIENT_S)
    plan = make_plan(fleet, Speeds(), config, steps=1)
    weather = MODELS["shifted-exponential"](devices, SCALING_ROUNDS, np.random.default_rng(0))
    nature = Under(lambda number: weather[number - 1], [1.0] * devices)
    began = time.process_time()
    for number in range(1, SCALING_ROUNDS + 1):
        over = Round(plan, Assignment(number, number - 1, 1, 0), always)
        World(plan.devices, nature, Terms()).play(over, [True] * devices, 0.0)
    seconds = (time.process_time() - began) / SCALING_ROUNDS
    return {"scaling": devices, "round_s": seconds, "us_for_each_device": seconds / devices * 1e6}


# ---- comparing


@dataclass(frozen=True, slots=True)
class Cell:
    """One weather and upload ratio: the best of each kind."""

    weather: str
    upload: float
    ours: str
    ours_s: float
    rival: str
    rival_s: float
    quantised: str
    quantised_s: float
    queue_s: float  # the best work queue that sends float32
    best_coded_s: float  # blocks >= 2, whoever's
    best_plain_s: float  # blocks 1, float32
    bound_s: float

    @property
    def lost(self) -> bool:
        """Whether an exact rival, short numbers included, is faster."""
        return min(self.rival_s, self.quantised_s) < self.ours_s


def compare(rows: Sequence[Row]) -> list[Cell]:
    """Return every cell, of medians over seeds."""
    by_weather: defaultdict[str, defaultdict[tuple[str, int], list[Row]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows:
        by_weather[row.weather][row.policy, row.blocks].append(row)
    return [
        _cell(weather, upload, [_Median.of(each, upload) for each in policies.values()])
        for weather, policies in by_weather.items()
        for upload in UPLOADS
    ]


@dataclass(frozen=True, slots=True)
class _Median:
    """One policy in one cell, over all seeds."""

    row: Row
    seconds: float

    @classmethod
    def of(cls, rows: Sequence[Row], upload: float) -> "_Median":
        times = [row.median_s + upload * row.unit_s * row.upload_size for row in rows]
        return cls(rows[0], float(np.median(times)))


def _cell(weather: str, upload: float, medians: Sequence[_Median]) -> Cell:
    exact = [each for each in medians if each.row.exact and each.row.family != "bound"]
    plain = [each for each in exact if each.row.upload_size * each.row.blocks == 1.0]
    mine = _best(each for each in exact if each.row.family == "ours")
    rival = _best(each for each in plain if each.row.family == "rival")
    short = _best(each for each in exact if each not in plain)
    bound = _best(each for each in medians if each.row.family == "bound")
    return Cell(
        weather,
        upload,
        mine.row.policy,
        mine.seconds,
        rival.row.policy,
        rival.seconds,
        short.row.policy,
        short.seconds,
        min(each.seconds for each in plain if each.row.policy.startswith("work queue")),
        min((each.seconds for each in plain if each.row.blocks > 1), default=math.inf),
        min(each.seconds for each in plain if each.row.blocks == 1),
        bound.seconds,
    )


def _best(medians: Iterable[_Median]) -> _Median:
    return min(medians, key=lambda each: each.seconds)


def lost_first(cells: Sequence[Cell]) -> list[Mapping[str, Value]]:
    """Return the cells as rows: those in which fedgc does not win first, the worst of them first."""
    by_loss = sorted(
        cells, key=lambda cell: (not cell.lost, -cell.ours_s / min(cell.rival_s, cell.quantised_s))
    )
    return [
        {**asdict(cell), "lost": cell.lost, "ours_over_bound": cell.ours_s / cell.bound_s} for cell in by_loss
    ]


def told(report: Report) -> Iterator[str]:
    """Yield what a person reads: how much the code decides, then every cell, the lost ones first."""
    share, plain = (report.figures[f"code_wins_share{which}"] for which in ("", "_float32"))
    yield f"blocks >= 2 is strictly best in {share:.1%} of the cells, {plain:.1%} where only float32 is sent"
    yield f"{'weather':20} {'upload':>6} {'ours':>8} {'rival':>8} {'short':>8} {'bound':>8}  best of each"
    for row in report.rows:
        if "lost" in row:
            times = " ".join(f"{row[name]:8.2f}" for name in ("ours_s", "rival_s", "quantised_s", "bound_s"))
            names = f"{row['ours']} | {row['rival']} | {row['quantised']}"
            yield f"{row['weather']:20} {row['upload']:6} {times}  {'LOST  ' if row['lost'] else ''}{names}"


# ---- figures


def figures(cells: Sequence[Cell]) -> dict[str, float | None]:
    """Return the figures that are taken from cells."""
    wins = [cell.best_coded_s < min(cell.best_plain_s, cell.quantised_s) for cell in cells]
    wins_plain = [cell.best_coded_s < cell.best_plain_s for cell in cells]
    return {
        "code_wins_share": sum(wins) / len(cells),
        "code_wins_share_float32": sum(wins_plain) / len(cells),
        "over_work_queue": _over_work_queue(cells),
        "worst_over_best_baseline": max(_ratio(cell.ours_s, cell.rival_s) for cell in cells),
        "worst_over_best_quantised": max(
            _ratio(cell.ours_s, min(cell.rival_s, cell.quantised_s)) for cell in cells
        ),
    }


def _over_work_queue(cells: Sequence[Cell]) -> float | None:
    return max((cell.ours_s / cell.queue_s for cell in cells if cell.upload == 0.0), default=None)


def _of_claims(claims: Sequence[Mapping[str, Value]]) -> dict[str, float | None]:
    def least(top: str, bottom: str) -> float | None:
        return _least_median(claims, lambda row: _number(row[top]) / _number(row[bottom]))

    return {
        "original_over_ours": least("original_s", "own_chunks_s"),
        "published_over_ours_same_chunks": least("published_s", "same_chunks_s"),
        "published_over_ours": least("published_s", "own_chunks_s"),
        "full_workers_error_over_ours": _least_median(
            claims, lambda row: _number(row["full_workers_error_over_ours"])
        ),
        "dropping_error_over_ours": _least_median(
            claims, lambda row: _number(row["dropping_error_over_ours"])
        ),
    }


def _least_median(
    claims: Sequence[Mapping[str, Value]], value: Callable[[Mapping[str, Value]], float]
) -> float | None:
    """Return the median over seeds, the least of the models."""
    medians = [
        float(np.median([value(row) for row in claims if row["claim"] == model]))
        for model in dict.fromkeys(row["claim"] for row in claims)
    ]
    return min(medians, default=None)


def _number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _ratio(top: float, bottom: float) -> float:
    return 1.0 if top == bottom else top / bottom
