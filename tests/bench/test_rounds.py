"""The bench of rounds: how cells are compared, and that uploads add up as it says."""

from dataclasses import replace

import numpy as np
import pytest

from fedgc.bench import Report
from fedgc.bench.deadline import errors_at_deadline, ratios
from fedgc.bench.rounds import (
    PRACTICE,
    QUICK,
    Job,
    Row,
    Size,
    bench_rounds,
    compare,
    figures,
    lost_first,
    measure,
    measure_claim,
    measure_scaling,
    told,
)
from fedgc.replay import MODELS, UNCONTENDED
from fedgc.sim import Fedgc, PartialStragglers, Uncoded, WorkQueue

TINY = Size(devices=8, rounds=2, seeds=1, blocks=(1, 2))


def row(
    policy: str, family: str, median_s: float, *, blocks: int = 1, size: float | None = None, **changes
) -> Row:
    values = {
        "weather": "w",
        "seed": 0,
        "exact": True,
        "unit_s": 1.0,
        "p95_s": median_s,
        "spread_s": 0.0,
        "sent": 1.0,
        "computed": 1.0,
        "discarded": 0.0,
        "undecodable": 0.0,
        **changes,
    }
    size = 1 / blocks if size is None else size
    return Row(policy=policy, family=family, blocks=blocks, upload_size=size, median_s=median_s, **values)


ROWS = [
    row("bound", "bound", 1.0),
    row("work queue of 10", "rival", 1.25),
    row("work queue of 10, 4 bits", "rival", 1.25, size=0.125),
    row("drops", "rival", 0.5, exact=False),
    row("fedgc 1", "ours", 1.5),
    row("fedgc 2", "ours", 2.0, blocks=2),
]


def test_a_cell_takes_the_best_exact_of_each_kind():
    cells = {cell.upload: cell for cell in compare(ROWS)}
    assert (cells[0.0].ours, cells[0.0].ours_s) == ("fedgc 1", 1.5)
    assert (cells[0.0].rival, cells[0.0].rival_s) == ("work queue of 10", 1.25)
    assert (cells[10.0].ours, cells[10.0].ours_s) == ("fedgc 2", 7.0)
    assert (cells[10.0].rival_s, cells[10.0].quantised_s) == (11.25, 2.5)
    assert cells[10.0].bound_s == 11.0


def test_where_a_code_wins_short_numbers_are_counted_too():
    found = figures(compare(ROWS))
    assert found["code_wins_share"] == 0.0
    assert found["code_wins_share_float32"] == pytest.approx(2 / 6)
    assert found["over_work_queue"] == pytest.approx(1.2)
    assert found["worst_over_best_baseline"] == pytest.approx(1.2)
    assert found["worst_over_best_quantised"] == pytest.approx(7.0 / 2.5)


def test_a_code_that_is_strictly_best_wins_its_cells():
    slow = [replace(each, median_s=99.0) if "bits" in each.policy else each for each in ROWS]
    assert figures(compare(slow))["code_wins_share"] == pytest.approx(2 / 6)


def test_lost_cells_come_first_the_worst_before_the_rest():
    rows = lost_first(compare(ROWS))
    losses = [each["lost"] for each in rows]
    assert losses == sorted(losses, reverse=True)
    worst = [each["ours_s"] / min(each["rival_s"], each["quantised_s"]) for each in rows if each["lost"]]
    assert worst == sorted(worst, reverse=True)


def test_what_a_person_reads_begins_with_the_code_and_the_losses():
    cells = compare(ROWS)
    head, _, *lines = told(Report(figures(cells), lost_first(cells), {}))
    assert head.startswith("blocks >= 2 is strictly best in 0.0% of the cells, 33.3% where")
    lost = ["LOST" in line for line in lines]
    assert lost == sorted(lost, reverse=True)
    assert len(lost) == len(cells)


def test_seeds_are_joined_by_their_median():
    rows = ROWS[:3]
    rows += [row("fedgc", "ours", seconds, seed=seed) for seed, seconds in enumerate((1.0, 9.0, 2.0))]
    assert compare(rows)[0].ours_s == 2.0


@pytest.mark.parametrize(
    "policy",
    [Uncoded(), WorkQueue(4), WorkQueue(4, 0.25), PartialStragglers(3, 2), Fedgc(3, 2), Fedgc(3, 1, 2)],
)
def test_an_upload_adds_its_own_time_and_no_more(policy):
    """What the bench reckons for its cells is what a round with that upload takes."""
    weather = MODELS["bimodal"](9, 3, np.random.default_rng(2))
    slow = tuple(replace(each, up_s_w=np.full(9, 2.0)) for each in weather)
    size = getattr(policy, "wire", 1.0) / policy.blocks
    for without, full in zip(policy.play(weather, UNCONTENDED), policy.play(slow, UNCONTENDED), strict=True):
        assert full.seconds == pytest.approx(without.seconds + 2.0 * size)


def test_a_job_measures_every_family_and_leaves_practice_out():
    rows = measure(Job("bimodal", 3, TINY))
    assert {each.family for each in rows} == {"ours", "rival", "bound"}
    assert {each.blocks for each in rows} == {1, 2}
    uncoded = next(each for each in rows if each.policy == "uncoded")
    weather = Job("bimodal", 3, TINY).make()
    assert uncoded.median_s == np.median([each.mean_pace_w.max() for each in weather[PRACTICE:]])


def test_a_claim_compares_with_the_literature():
    claim = measure_claim("shifted-exponential", 0, TINY)
    assert claim["published_s"] > claim["own_chunks_s"] > 0
    assert claim["full_workers_error_over_ours"] >= claim["best_load_error_over_ours"]


def test_the_cost_of_a_round_is_given_for_each_device():
    cost = measure_scaling(20)
    assert cost["round_s"] == pytest.approx(cost["us_for_each_device"] * 20 / 1e6)


def test_the_deadline_cuts_all_off_at_the_same_time():
    weather = MODELS["shifted-exponential"](24, 4, np.random.default_rng(0))
    errors = errors_at_deadline(weather, Fedgc(8, 10), np.random.default_rng(0))
    assert errors.full_workers[8] == 1.0, "nobody has done eight units yet"
    assert errors.ours < errors.dropping < 1.0
    assert dict(ratios(errors, 8))["dropping"] > 1.0


@pytest.mark.slow
def test_the_quick_bench_gives_every_figure():
    heard: list[tuple[int, int]] = []
    report = bench_rounds(QUICK, None, lambda *at: heard.append(at))
    named = {
        "code_wins_share",
        "over_work_queue",
        "original_over_ours",
        "published_over_ours_same_chunks",
        "published_over_ours",
        "worst_over_best_baseline",
        "full_workers_error_over_ours",
    }
    assert named <= set(report.figures)
    assert all(report.figures[name] is not None for name in named)
    assert heard[-1][0] == heard[-1][1]
