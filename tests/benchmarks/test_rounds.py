"""Test the round benchmark: compared cells and upload times."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks import policies
from benchmarks.cells import UPLOADS
from benchmarks.coded_policies import BlockCoordinate
from benchmarks.deadline import errors_at_deadline, ratios
from benchmarks.events import measure_events
from benchmarks.grid import Modelled
from benchmarks.policies import planned
from benchmarks.rounds import (
    LEARNED,
    PRACTICE,
    QUICK,
    Job,
    Size,
    bench_rounds,
    measure,
    measure_claim,
    measure_scaling,
)
from fedgc.sim import Fedgc, PartialStragglers, Uncoded, WorkQueue
from fedgc.sim.clock import MODELS, UNCONTENDED

TINY = Size(clients=8, rounds=2, seeds=1, blocks=(1, 2), claim_rounds=3)
rows_of = cache(measure)


@pytest.fixture(autouse=True, scope="module")
def few_chunks(few_futures):
    """Forty chunks for each client take ten times as long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policies, "FINE", 12)
        yield


@pytest.mark.parametrize(
    "policy",
    [
        Uncoded(),
        WorkQueue(4),
        WorkQueue(4, 0.25),
        PartialStragglers(3, 2),
        Fedgc(3, 2),
        Fedgc(3, 1, 2),
        Fedgc(3, 2, short=True),
        Fedgc(3, 1, 2, short=True),
    ],
)
def test_upload_adds_exactly_its_own_time(policy):
    """The computed upload times of cells equal those of simulated rounds."""
    scenario = MODELS["bimodal"](9, 3, np.random.default_rng(2))
    slow = tuple(replace(each, up_s_w=np.full(9, 2.0)) for each in scenario)
    for without, full in zip(policy.play(scenario, UNCONTENDED), policy.play(slow, UNCONTENDED), strict=True):
        assert full.seconds == pytest.approx(without.seconds + 2.0 * without.size)
        assert full.size == without.size


@pytest.mark.slow
def test_job_measures_every_family_without_practice_rounds():
    rows = rows_of(Job(Modelled("bimodal"), 3, TINY))
    assert {each.family for each in rows} == {"ours", "planned", "baseline", "bound"}
    assert {each.blocks for each in rows if each.family != "planned"} == {1, 2}
    uncoded = next(each for each in rows if each.policy == "uncoded")
    scenario = Job(Modelled("bimodal"), 3, TINY).make()[LEARNED:]
    assert {each.upload for each in rows} == {None}
    assert [each.policy for each in rows if each.coarse] == [f"work queue of {n}, 4 bits" for n in (10, 12)]
    assert uncoded.median_s == np.median([each.mean_pace_w.max() for each in scenario[PRACTICE:]])


def test_overlapped_upload_is_simulated_for_every_upload():
    job = Job(Modelled("bimodal"), 3, TINY)
    row = next(each for each in rows_of(job) if each.policy.startswith("block-coordinate"))
    for ratio, seconds in zip(UPLOADS, row.uploads_s, strict=True):
        linked = tuple(replace(each, up_s_w=np.full(8, ratio * row.unit_s)) for each in job.make()[LEARNED:])
        played = BlockCoordinate(8).play(linked, UNCONTENDED)[PRACTICE:]
        assert seconds == np.median([each.seconds for each in played])
    assert row.uploads_s[0] == row.median_s
    assert row.uploads_s[-1] < row.median_s + UPLOADS[-1] * row.unit_s


@pytest.mark.parametrize("model", ["bimodal", pytest.param("fail-stop", marks=pytest.mark.slow)])
def test_low_precision_is_counted_as_if_simulated(model):
    """Without links, low-precision times are computed from float32 times."""
    job = Job(Modelled(model), 3, TINY)
    policy = Fedgc(8, 10, short=True)
    played = policy.play(job.make()[LEARNED:], UNCONTENDED)[PRACTICE:]
    row = next(each for each in rows_of(job) if each.policy == policy.name)
    assert row.median_s == np.median([each.seconds for each in played])
    assert row.upload_size == max(each.size for each in played) < 1.0
    assert row.sent == pytest.approx(np.mean([each.sent for each in played]))


def test_plan_is_played_for_every_upload_and_learns_first():
    """Its measured rounds are those of the other policies; longer uploads make it choose more blocks."""
    job = Job(Modelled("bimodal-persistent"), 3, TINY)
    row = next(each for each in rows_of(job) if each.family == "planned")
    (policy,) = planned()
    whole = job.make()
    seconds = [each.seconds for each in policy.play(whole, UNCONTENDED)]
    assert row.median_s == row.uploads_s[0] == np.median(seconds[-TINY.rounds :])
    assert row.uploads_s[-1] < row.median_s + UPLOADS[-1] * row.unit_s
    assert row.median_s < np.median(seconds[:3])


def test_claim_is_compared_with_literature():
    claim = measure_claim(Modelled("shifted-exponential"), 0, TINY)
    assert claim["published_s"] > claim["own_chunks_s"] > claim["fluid_s"] > 0
    assert claim["same_chunks_s"] >= claim["whole_chunks_s"] >= claim["fluid_s"]
    assert claim["full_workers_error_over_ours"] >= claim["best_load_error_over_ours"]


def test_round_cost_is_given_per_client():
    cost = measure_scaling(20)
    assert cost["round_s"] == pytest.approx(cost["us_for_each_client"] * 20 / 1e6)


def test_events_are_counted_over_whole_steered_rounds():
    """Each of 20 clients reports 8 chunks and sends a codeword, in as many rounds as the events need."""
    cost = measure_events(events=181, clients=20)
    assert (cost["events"], cost["rounds"], cost["synced"]) == (2 * 20 * (8 + 1), 2, 2)
    assert cost["skips"] > 0
    assert cost["takes"] > 0
    assert cost["seconds"] == pytest.approx(cost["us_for_each_event"] * cost["events"] / 1e6)
    assert cost["round_seconds"] > 0.0


def test_deadline_stops_all_clients_at_same_time():
    scenario = MODELS["shifted-exponential"](24, 4, np.random.default_rng(0))
    errors = errors_at_deadline(scenario, Fedgc(8, 10), np.random.default_rng(0))
    assert errors.full_workers[8] == 1.0, "nobody has done eight units yet"
    assert errors.ours < errors.dropping < 1.0
    assert dict(ratios(errors, 8))["dropping"] > 1.0


@pytest.mark.slow
@pytest.mark.timeout(1500)  # it plays every family of conditions, though few rounds
def test_quick_benchmark_gives_every_figure():
    heard: list[tuple[int, int]] = []
    report = bench_rounds(QUICK, None, lambda *at: heard.append(at))
    named = {
        "code_wins_share",
        "over_work_queue",
        "original_over_ours",
        "published_over_ours_same_chunks",
        "published_over_bound_same_chunks",
        "published_over_fluid",
        "published_over_ours",
        "worst_over_best_baseline",
        "over_fluid_worst",
        "chosen_over_best",
        "chosen_over_work_queue",
        "ours_over_fluid_by_scenario",
        "full_workers_error_over_ours",
    }
    assert named <= set(report.figures)
    assert all(report.figures[name] is not None for name in named)
    assert heard[-1][0] == heard[-1][1]
