"""`python -m benchmarks rounds`: every policy under every scenario, and the cells where fedgc loses.

A *cell* is a scenario and an upload ratio: the time of a whole float32 update on a client's own uplink over
that of a client's median unit of work. Without contention an upload just adds its own time to a round, so
each policy is played once for each seed and the cells follow: seconds + ratio * unit * size. (A test plays
some of them in full.) Block-coordinate codes send while they work, so they are played for every ratio.
Scenarios with their own links are one cell each, played in full. The first rounds are practice for policies
that learn. All policies play the same rounds.

The plan that the tuner makes is played beside all fixed settings, which are picked in hindsight. It depends
on the uplinks, so it is played for every ratio. It has more rounds of practice, as it learns from history;
the measured rounds are the same.

Policies are compared at equal precision: float32 with float32; with short numbers, those whose error of the
sum is at most that of 8 bits. A queue with 4 bits (a relative error of a fifth) is coarser and listed
separately, but a cell in which it is fastest counts as lost.

Figures, of medians over rounds and seeds:

    code_wins_share                  cells where blocks >= 2 is strictly best of all, 4 bits included
    code_wins_share_same_error       the same among policies as exact as 8 bits
    code_wins_share_float32          the same with float32 only
    over_work_queue                  best fedgc / best work queue, no upload: largest over scenarios
    original_over_ours               codes of complete clients at their best load / fedgc
    published_over_ours_same_chunks  published partial protocol / fedgc, blocks 1, same chunks
    published_over_bound_same_chunks the upper bound on it: whole chunks, known paces, any placement
    published_over_fluid             the same with infinitely small chunks
    published_over_ours              published partial protocol / fedgc with its own chunk size
    worst_over_best_baseline         best fedgc / best exact float32 baseline: largest over all cells
    worst_over_best_even_links       the same with equal links of all clients
    worst_over_best_short            the same with numbers as exact as 8 bits for both
    worst_over_best_quantized        the same with baselines in 4 bits
    worst_over_best_uneven_links     the same where every client has its own uplink
    over_fluid                       best fedgc / fluid bound, for each scenario and upload
    over_fluid_worst                 the largest of them
    over_fluid_worst_even_links      the largest of them with equal links of all clients
    chosen_over_best                 the tuner's plan / best fixed setting of fedgc: largest over cells
    chosen_over_work_queue           the tuner's plan / best work queue in float32: largest over cells
    chosen_over_fluid                the tuner's plan / fluid bound, equal links: largest over cells
    *_by_scenario                    ratios to the codes of complete clients, to the published protocol and to
                                     the fluid bound, on every model and trace
    full_workers_error_over_ours     mean squared errors at 0.9 of our median time, same replicas
    dropping_error_over_ours         the same, against dropping missing data
    million_events_s                 processor time of a million events through `round`, 1000 clients and
                                     chunks (events.py), clients included; None if fewer were measured
    million_events_round_s           the same, of `round` alone

Figures that compare with the literature are the least of the shifted-exponential and the bimodal model at
200 clients; those by scenario have 200 clients, or as many as a trace has. A figure that misses its reach
(`REACH` in `cells`) is printed first.
"""

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.bound import FluidBound, whole_chunks_s
from benchmarks.cells import UPLOADS, Row, compare, figures, lost_first, missed_first
from benchmarks.coded_policies import BlockCoordinate
from benchmarks.deadline import errors_at_deadline, ratios
from benchmarks.events import MILLION, measure_events
from benchmarks.grid import Source, link_ratio, sources
from benchmarks.policies import INT8_WIRE, baselines, bounds, original_codes, planned
from benchmarks.report import Figure, Report, Value, machine, number_or_nan
from fedgc.codecs import share_of
from fedgc.sim.baselines import PartialStragglers, WorkQueue
from fedgc.sim.catalogue import PIECES, ours
from fedgc.sim.clock import MODELS, UNCONTENDED, Scenario
from fedgc.sim.ours import CHOSEN, NUMBERS, Fedgc
from fedgc.sim.owned import Processes
from fedgc.sim.policy import Policy, Result

REPLICAS: Final = 8
CLAIMS: Final = ("shifted-exponential", "bimodal")
CLAIM_CLIENTS: Final = 200
PRACTICE: Final = 2
LEARNED: Final = 10  # more rounds of practice for the tuner
SCALING_ROUNDS: Final = 5
SCALING_REPLICAS: Final = 4


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the benchmark."""

    clients: int
    rounds: int
    seeds: int
    blocks: tuple[int, ...]
    claim_rounds: int
    scaling: tuple[int, ...] = (100, 1000)
    events: int = MILLION


USUAL: Final = Size(clients=100, rounds=6, seeds=3, blocks=(1, 2, 4), claim_rounds=40)
QUICK: Final = Size(
    clients=24, rounds=3, seeds=1, blocks=(1, 2), claim_rounds=3, scaling=(100,), events=10_000
)
FULL: Final = Size(200, 20, 5, blocks=(1, 2, 4), claim_rounds=200, scaling=(100, 1000, 10_000))


@dataclass(frozen=True, slots=True)
class Job:
    """One scenario and seed, the unit of work of a process."""

    source: Source
    seed: int
    size: Size

    def make(self) -> Scenario:
        """Return its rounds."""
        return self.source.make(self.size.clients, LEARNED + PRACTICE + self.size.rounds, self.seed)


def bench_rounds(
    size: Size = USUAL, traces: Path | None = None, progress: Callable[[int, int], object] = lambda *_: None
) -> Report:
    """Run the benchmark; `progress` receives the number of finished jobs and the total."""
    found = sources(traces)
    jobs = [Job(source, seed, size) for source in found for seed in range(size.seeds)]
    with Processes() as pool:
        longest_first = reversed(jobs)  # scenarios with their own links are last in the list
        futures = {job: pool.submit(measure, job) for job in longest_first}
        claimed = [
            pool.submit(measure_claim, source, seed, size) for source in found for seed in range(size.seeds)
        ]
        every: list[Future[Any]] = [*futures.values(), *claimed]
        for done, _ in enumerate(as_completed(every), start=1):
            progress(done, len(every))
        rows = [row for job in jobs for row in futures[job].result()]
        claims = [claim.result() for claim in claimed]
    scaling = [measure_scaling(clients) for clients in size.scaling]  # alone, so that timing is not disturbed
    events = measure_events(size.events)
    cells = compare(rows)
    measured = missed_first({**figures(cells), **_of_claims(claims), **_of_a_million(events)})
    table = [*lost_first(cells), *claims, *scaling, events, *(asdict(row) for row in rows)]
    return Report(measured, table, machine(), range(size.seeds))


# ---- measuring


def measure(job: Job) -> list[Row]:
    """Play all policies under one scenario."""
    plays = _Plays(job.make())
    replicas = min(REPLICAS, plays.scenario[0].clients)
    mine = [policy for blocks in job.size.blocks for policy in ours(replicas, blocks)]
    families: dict[str, Sequence[Policy]] = {
        "bound": bounds(), "baseline": baselines(replicas), "ours": mine, "planned": planned()
    }  # fmt: skip
    return [
        _row(job, plays, family, policy)
        for family, policies in families.items()
        for policy in policies
        if policy.blocks in (CHOSEN, *job.size.blocks)
    ]


class _Plays:
    """Plays policies under one scenario, and reuses results that are known to be equal.

    Without upload times the precision of numbers has no effect; at blocks 1, without amplification, short
    numbers are 8 bits in every round.
    """

    def __init__(self, whole: Scenario) -> None:
        self._whole = whole
        self.scenario = whole[LEARNED:]
        self.linked = any(each.up_s_w.any() for each in whole)
        self._known: dict[Policy, tuple[Result, ...]] = {}

    def results(self, policy: Policy) -> tuple[Result, ...]:
        """Return the results of all rounds after those for learning."""
        if isinstance(policy, Fedgc) and policy.short and policy.blocks == 1 and not self.linked:
            share = share_of("int8", NUMBERS)
            whole = self.results(replace(policy, short=False))
            return tuple(replace(each, sent=share * each.sent, size=share * each.size) for each in whole)
        if policy not in self._known:
            self._known[policy] = self._played(policy, self._whole)
        return self._known[policy]

    def medians_s(self, policy: Policy, unit_s: float) -> tuple[float, ...]:
        """Return the median measured round at each ratio of the cells."""
        medians = []
        for ratio in UPLOADS:
            linked = tuple(
                replace(each, up_s_w=np.full(each.clients, ratio * unit_s)) for each in self._whole
            )
            results = self._played(policy, linked)[PRACTICE:]
            medians.append(float(np.median([_ended_s(policy, result) for result in results])))
        return tuple(medians)

    @staticmethod
    def _played(policy: Policy, whole: Scenario) -> tuple[Result, ...]:
        learns = isinstance(policy, Fedgc) and policy.planner
        return policy.play(whole if learns else whole[LEARNED:], UNCONTENDED)[-len(whole) + LEARNED :]


def _row(job: Job, plays: _Plays, family: str, policy: Policy) -> Row:
    scenario, results = plays.scenario, plays.results(policy)[PRACTICE:]
    unit_s = float(np.median([each.mean_pace_w for each in scenario]))
    depends = isinstance(policy, BlockCoordinate) or (isinstance(policy, Fedgc) and policy.planner)
    seconds = np.asarray([_ended_s(policy, result) for result in results])
    ended = seconds[np.isfinite(seconds)]
    longest = max(result.size for result in results)
    least = max(1, round(1 / longest)) if longest else 1
    return Row(
        scenario=job.source.name,
        seed=job.seed,
        policy=policy.name,
        family=family,
        exact=policy.exact,
        blocks=least if policy.blocks == CHOSEN else policy.blocks,
        upload=link_ratio(scenario) or None,
        upload_size=longest,
        coarse=isinstance(policy, WorkQueue) and policy.wire < INT8_WIRE,
        unit_s=unit_s,
        median_s=float(np.median(seconds)),
        p95_s=float(np.percentile(seconds, 95, method="higher")),
        spread_s=float(ended.std()) if ended.size else math.inf,
        sent=float(np.mean([result.sent for result in results])),
        computed=float(np.mean([result.computed for result in results])),
        discarded=float(np.mean([result.discarded for result in results])),
        undecodable=1.0 - ended.size / seconds.size,
        uploads_s=plays.medians_s(policy, unit_s) if depends and not plays.linked else (),
    )


def _ended_s(policy: Policy, result: Result) -> float:
    """Return the time of a round; an incomplete round of an exact policy counts as never ending."""
    return result.seconds if result.exact or not policy.exact else math.inf


def measure_claim(source: Source, seed: int, size: Size) -> Mapping[str, Value]:
    """Measure the literature's codes and fedgc in one scenario."""
    most = min(CLAIM_CLIENTS, 2 * size.clients)
    scenario = source.make(most, size.claim_rounds + PRACTICE, 1000 + seed)
    clients = scenario[0].clients
    replicas = min(REPLICAS, clients)
    same, own = Fedgc(replicas, 1), Fedgc(replicas, PIECES)

    def median(policy: Policy) -> float:
        return float(
            np.median([_ended_s(policy, each) for each in policy.play(scenario, UNCONTENDED)[PRACTICE:]])
        )

    best = min(median(policy) for policy in original_codes(replicas))
    few = scenario[: size.rounds + PRACTICE]  # an error is already a mean over all numbers of an update
    errors = errors_at_deadline(few, own, np.random.default_rng(seed))
    error = dict(ratios(errors, replicas))
    return {
        "claim": source.name,
        "seed": seed,
        "clients": clients,
        "original_s": best,
        "published_s": median(PartialStragglers(replicas)),
        "same_chunks_s": median(same),
        "own_chunks_s": median(own),
        "fluid_s": median(FluidBound()),
        "whole_chunks_s": float(np.median([whole_chunks_s(each, 1) for each in scenario[PRACTICE:]])),
        "deadline_s": errors.deadline_s,
        "error": errors.ours,
        "full_workers_error_over_ours": error["full clients"],
        "best_load_error_over_ours": error["full clients, best load"],
        "dropping_error_over_ours": error["dropping"],
    }


def measure_scaling(clients: int) -> Mapping[str, Value]:
    """Measure the cost of a steered round: as many chunks as clients, four replicas of each.

    The start of the run is excluded; it takes longer, since every client reports the chunks that it can load.
    """
    scenario = MODELS["shifted-exponential"](clients, 1 + SCALING_ROUNDS, np.random.default_rng(0))

    def processor_s(rounds: int) -> float:
        gc.disable()  # as in worker processes: a run leaves no reference cycles
        try:
            began = time.process_time()
            Fedgc(SCALING_REPLICAS, 1).play(scenario[:rounds], UNCONTENDED)
            return time.process_time() - began
        finally:
            gc.enable()

    begin_s = processor_s(1)
    seconds = (processor_s(1 + SCALING_ROUNDS) - begin_s) / SCALING_ROUNDS
    each_us = seconds / clients * 1e6
    return {"scaling": clients, "round_s": seconds, "us_for_each_client": each_us, "begin_s": begin_s}


# ---- figures


BY_SCENARIO: Final = {
    "original_over_ours_by_scenario": ("original_s", "own_chunks_s"),
    "published_over_ours_by_scenario": ("published_s", "own_chunks_s"),
    "ours_over_fluid_by_scenario": ("own_chunks_s", "fluid_s"),
}


def _of_claims(rows: Sequence[Mapping[str, Value]]) -> dict[str, Figure]:
    claims = [row for row in rows if row["claim"] in CLAIMS]

    def least(top: str, bottom: str) -> float | None:
        return min(_medians(claims, _ratio_of(top, bottom)).values(), default=None)

    def of_errors(name: str) -> float | None:
        return min(_medians(claims, lambda row: number_or_nan(row[name])).values(), default=None)

    return {
        "original_over_ours": least("original_s", "own_chunks_s"),
        "published_over_ours_same_chunks": least("published_s", "same_chunks_s"),
        "published_over_bound_same_chunks": least("published_s", "whole_chunks_s"),
        "published_over_fluid": least("published_s", "fluid_s"),
        "published_over_ours": least("published_s", "own_chunks_s"),
        "full_workers_error_over_ours": of_errors("full_workers_error_over_ours"),
        "dropping_error_over_ours": of_errors("dropping_error_over_ours"),
        **{name: _medians(rows, _ratio_of(*columns)) for name, columns in BY_SCENARIO.items()},
    }


def _ratio_of(top: str, bottom: str) -> Callable[[Mapping[str, Value]], float]:
    return lambda row: number_or_nan(row[top]) / number_or_nan(row[bottom])


def _medians(
    claims: Sequence[Mapping[str, Value]], value: Callable[[Mapping[str, Value]], float]
) -> dict[str, float]:
    """Return the median over seeds for each scenario."""
    names = dict.fromkeys(str(row["claim"]) for row in claims)
    return {name: float(np.median([value(row) for row in claims if row["claim"] == name])) for name in names}


def _of_a_million(events: Mapping[str, Value]) -> Mapping[str, float | None]:
    """Return the times per million events, if at least a million were measured."""
    handled = number_or_nan(events["events"])
    whole, alone = (number_or_nan(events[name]) / handled * MILLION for name in ("seconds", "round_seconds"))
    many = handled >= MILLION
    return {"million_events_s": whole if many else None, "million_events_round_s": alone if many else None}
