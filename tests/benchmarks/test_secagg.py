"""Test the masking benchmark: rows of every cell, figures from rows, and a correct mean."""

import itertools
import os

import numpy as np
import pytest

from benchmarks import crowd, secagg
from benchmarks.consortium import Consortium, Watch
from benchmarks.report import Report
from fedgc.errors import EdgeFailed

TINY = secagg.Size((5,), (10**3, 10**4), 1, 2, 1000)


@pytest.fixture(scope="module")
def report():
    return secagg.bench_secagg(TINY)


def test_every_cell_has_row_per_method(report):
    cells = {(row["what"], row["numbers"], row["lost"]) for row in report.rows if row.get("sites") == 5}
    assert cells == set(itertools.product(("ours", "flower", "plain", "compared"), (10**3, 10**4), (0, 1)))
    assert report.rows[0]["what"] == "compared"


def test_figures_are_ratios_of_medians():
    cell = secagg.Cell(10, 10**6, 1)
    rows = [cell.row("ours", client_s=seconds, server_s=1.0) for seconds in (1.0, 2.0, 9.0)]
    rows += [cell.row("flower", client_s=20.0, server_s=5.0)]
    found = secagg.figures(rows)
    assert found["flower_client_over_ours"] == {"10,1e6,1": 10.0}
    assert found["flower_server_over_ours"] == {"10,1e6,1": 5.0}


def test_figures_of_crowd_compare_most_sites_with_fewest():
    rows = [
        secagg.Cell(10, 10**6, 1).row("crowd", client_s=seconds, server_s=1.0) for seconds in (1.0, 2.0, 9.0)
    ]
    rows += [secagg.Cell(1000, 10**6, 50).row("crowd", client_s=6.0, server_s=4.0)]
    found = secagg.figures(rows)
    assert (found["client_1000_over_10"], found["server_1000_s"]) == (3.0, 4.0)
    assert found["billion_over_aes"] is None


def test_commitments_are_compared_with_whole_masked_round():
    rows = [{"what": "commitment", "seconds": seconds} for seconds in (3e-5, 4e-5, 9e-5)]
    rows += [secagg.Cell(10, 10**6, 1).row("crowd", client_s=0.01, server_s=1.0)]
    found = secagg.figures(rows)
    assert found["commitments_s"] == pytest.approx(40.0)
    assert found["commitments_over_ours"] == pytest.approx(4000.0)


def test_long_vector_is_measured_beside_its_keystreams():
    rows = crowd.long_rows(2**20 + 5)
    assert [row["method"] for row in rows] == ["masked", "sum", "aes"]
    figures = secagg.figures(rows)
    assert figures["billion_over_aes"] == rows[0]["seconds"] / rows[2]["seconds"]
    assert figures["billion_peak_gb"] == {
        "site": rows[0]["peak_bytes"] / 1e9,
        "server": rows[1]["peak_bytes"] / 1e9,
    }


def test_unmeasured_flower_sizes_are_left_missing():
    rows = [secagg.Cell(50, 10**8, 0).row("ours", client_s=1.0, server_s=1.0)]
    found = secagg.figures(rows)
    assert found["flower_client_over_ours"] == {"50,1e8,0": None}
    assert found["mask_over_aes"] is None
    assert found["masked_round_over_plain"] is None


def test_cells_with_least_gain_are_compared_first():
    rows = []
    for sites, flower_s in ((5, 30.0), (10, 20.0), (50, None)):
        cell = secagg.Cell(sites, 10**6, 1)
        rows.append(cell.row("ours", client_s=1.0, server_s=2.0))
        rows.append(cell.row("plain", client_s=0.5, server_s=0.5))
        if flower_s is not None:
            rows.append(cell.row("flower", client_s=flower_s, server_s=100.0))
    found = secagg.compared(rows)
    assert [row["sites"] for row in found] == [10, 5, 50]
    assert found[0] == secagg.Cell(10, 10**6, 1).row(
        "compared",
        flower_client_over_ours=20.0,
        flower_server_over_ours=50.0,
        client_over_plain=2.0,
        server_over_plain=4.0,
    )
    first, _, last = secagg.lines(Report({}, [*found, *rows], {}))
    assert first == (
        "10,1e6,1: Flower's SecAgg+ takes 20.0 x as long at a site, 50.0 x at the server; "
        "ours takes 2.0 x and 4.0 x as long as plain float32"
    )
    assert last.startswith("50,1e6,1: Flower's SecAgg+ takes ? x as long")


def test_narrower_ring_sends_proportionally_fewer_bytes(report):
    sent = report.figures["bytes_over_float32"]
    assert sent["32"] - sent["16"] == pytest.approx(0.5)
    assert sent["32"] - sent["8"] == pytest.approx(0.75)
    assert 0.25 < sent["8"] < 0.26


def test_all_bytes_sent_by_site_are_counted(report):
    for row in report.rows:
        if row["what"] == "ours":
            assert row["up_bytes"] > 4 * (row["numbers"] + 1)


def test_mean_is_within_stated_quantizer_bound():
    consortium = Consortium(4, secagg.USUAL_NUMBERS, os.urandom, Watch())
    update = secagg.update_of(100)
    mean, bound = consortium.round(update, secagg.WEIGHT, 1, Watch())
    assert 0 < np.abs(mean - update).max() <= bound


def test_wrong_mean_ends_benchmark(monkeypatch):
    watch = Watch()
    consortium = Consortium(4, secagg.USUAL_NUMBERS, os.urandom, watch)
    update = secagg.update_of(100)
    monkeypatch.setattr(consortium, "round", lambda *_: (update + 1, 0.5))
    with pytest.raises(EdgeFailed, match="needed at most"):
        secagg.our_row(secagg.Cell(4, 100, 0), consortium, watch, update)


def test_small_cells_are_repeated_more_often():
    cells = (secagg.Cell(5, 10**6, 0), secagg.Cell(10, 10**7, 0), secagg.Cell(50, 10**7, 0))
    assert [secagg.repeats(cell, secagg.USUAL) for cell in cells] == [7, 3, 1]
