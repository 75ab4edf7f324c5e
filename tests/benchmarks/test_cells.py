"""Test the cells of the round benchmark: which policies are compared, and which cells are lost."""

from dataclasses import replace

import pytest

from benchmarks import Report
from benchmarks.cells import UPLOADS, Row, compare, figures, lost_first, text_lines


def row(
    policy: str, family: str, median_s: float, *, blocks: int = 1, size: float | None = None, **changes
) -> Row:
    values = {
        "scenario": "w",
        "seed": 0,
        "exact": True,
        "upload": None,
        "coarse": False,
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
    row("work queue of 10", "baseline", 1.25),
    row("work queue of 10, 8 bits", "baseline", 1.25, size=0.25),
    row("work queue of 10, 4 bits", "baseline", 1.25, size=0.125, coarse=True),
    row("drops", "baseline", 0.5, exact=False),
    row("fedgc 1", "ours", 1.5),
    row("fedgc 2", "ours", 2.0, blocks=2),
    row("fedgc 2, short", "ours", 2.0, blocks=2, size=0.25),
    row("fedgc planned", "planned", 1.8, blocks=2, uploads_s=(1.6, 1.7, 1.8, 2.6, 4.5, 8.0)),
]


def test_cell_takes_best_exact_policy_of_each_kind():
    cells = {cell.upload: cell for cell in compare(ROWS)}
    assert (cells[0.0].ours, cells[0.0].ours_s) == ("fedgc 1", 1.5)
    assert (cells[0.0].baseline, cells[0.0].baseline_s) == ("work queue of 10", 1.25)
    assert (cells[10.0].ours, cells[10.0].ours_s) == ("fedgc 2", 7.0)
    assert (cells[10.0].ours_short, cells[10.0].ours_short_s) == ("fedgc 2, short", 4.5)
    assert (cells[10.0].baseline_s, cells[10.0].baseline_short_s, cells[10.0].coarse_s) == (11.25, 3.75, 2.5)
    assert cells[10.0].bound_s == 11.0


def test_low_precision_is_compared_at_same_precision_and_float32():
    cell = compare([each for each in ROWS if each.policy != "fedgc 2, short"])[-1]
    assert (cell.ours_short, cell.ours_short_s) == ("fedgc 2", 7.0)
    assert cell.loss == pytest.approx(7.0 / 3.75)


def test_winning_regions_are_reported_per_number_format():
    found = figures(compare(ROWS))
    assert found["code_wins_share"] == found["code_wins_share_same_error"] == 0.0
    assert found["code_wins_share_float32"] == pytest.approx(2 / 6)
    assert found["over_work_queue"] == pytest.approx(1.2)
    assert found["worst_over_best_baseline"] == found["worst_over_best_even_links"] == pytest.approx(1.2)
    assert found["worst_over_best_short"] == pytest.approx(2.25 / 1.5)
    assert found["worst_over_best_quantized"] == pytest.approx(4.5 / 2.5)


def test_strictly_best_code_wins_its_cells():
    slow = [replace(each, median_s=99.0) if "bits" in each.policy else each for each in ROWS]
    assert figures(compare(slow))["code_wins_share"] == pytest.approx(2 / 6)
    only_coarse = [replace(each, median_s=99.0) if "8 bits" in each.policy else each for each in ROWS]
    found = figures(compare(only_coarse))
    assert (found["code_wins_share_same_error"], found["code_wins_share"]) == (pytest.approx(2 / 6), 0.0)


def test_lost_cells_are_listed_first_and_worst_first():
    mixed = [replace(each, scenario=name) for each in ROWS for name in ("w", "coarse", "won")]
    slow = {("won", False), ("won", True), ("coarse", False)}
    mixed = [
        replace(each, median_s=99.0)
        if each.family == "baseline" and (each.scenario, each.coarse) in slow
        else each
        for each in mixed
    ]
    rows = lost_first(compare(mixed))
    told_in_order = list(dict.fromkeys(each["lost"] for each in rows))
    assert told_in_order == ["LOST", "lost to 4 bits", ""]
    worst = [each["loss"] for each in rows if each["lost"] == "LOST"]
    assert worst == sorted(worst, reverse=True)


def test_text_report_begins_with_code_and_losses():
    cells = compare(ROWS)
    head, _, *lines = text_lines(Report(figures(cells), lost_first(cells), {}))
    assert head.startswith("blocks >= 2 is strictly best in 0.0% of the cells, in 0.0% where numbers")
    assert "33.3% where only float32" in head
    lost = ["LOST" in line for line in lines]
    assert lost == sorted(lost, reverse=True)
    assert len(lost) == len(cells) == len(UPLOADS)


def test_seeds_are_summarized_by_median():
    rows = [each for each in ROWS if each.policy != "fedgc 1"]
    rows += [row("fedgc 1", "ours", seconds, seed=seed) for seed, seconds in enumerate((1.0, 9.0, 1.5))]
    assert compare(rows)[0].ours_s == 1.5


def test_scenario_with_own_links_is_one_cell():
    linked = [replace(each, upload=3.0) for each in ROWS]
    (cell,) = compare(linked)
    assert (cell.upload, cell.ours_s, cell.ours_short_s) == (3.0, 1.5, 1.5)
    assert figures([cell])["worst_over_best_even_links"] is None
    assert text_lines_of(linked)[0] == (
        "LOST with uneven uplinks: w: work queue of 10 is the best; fedgc takes 1.20 times as long at its "
        "best, 1.44 times as planned"
    )
    assert figures([cell])["worst_over_best_uneven_links"] == pytest.approx(1.2)


def text_lines_of(rows: list[Row]) -> list[str]:
    cells = compare(rows)
    return list(text_lines(Report(figures(cells), lost_first(cells), {})))


def test_plan_is_compared_with_best_fixed_setting_queue_and_bound():
    found = figures(compare(ROWS))
    assert found["chosen_over_best"] == pytest.approx(4.5 / 3.5)
    assert found["chosen_over_work_queue"] == pytest.approx(1.6 / 1.25)
    assert found["chosen_over_fluid"] == pytest.approx(1.6)
    assert found["over_fluid"]["w, upload 0.3"] == pytest.approx(1.8 / 1.3)
    assert found["over_fluid_worst"] == found["over_fluid_worst_even_links"] == pytest.approx(1.5)


def test_plan_is_no_fixed_setting():
    quick = [replace(each, uploads_s=(0.1,) * 6) if each.family == "planned" else each for each in ROWS]
    assert figures(compare(quick))["code_wins_share"] == 0.0
    assert {cell.ours for cell in compare(quick)} == {cell.ours for cell in compare(ROWS)}
