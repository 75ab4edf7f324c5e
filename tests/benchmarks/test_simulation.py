"""Test the benchmark of simulated training: what is skipped, and that fedgc's simulator runs."""

import sys

import pytest

from benchmarks.report import Report
from benchmarks.simulation import Program, Ran, Size, _ratio, _timed, text_lines

SIZE = Size(4, 3, 8)


def test_simulator_without_its_package_is_skipped_by_name():
    rows = []
    assert _timed(Program("pfl", ["4", "3"], "/no/such/python"), SIZE, rows) is None
    assert rows == [
        {
            "simulator": "pfl", "arguments": "4 3",
            "skipped": "pfl cannot be imported by /no/such/python",
        }
    ]  # fmt: skip
    assert list(text_lines(Report({}, rows, {}))) == [f"{'pfl 4 3':24} skipped: {rows[0]['skipped']}"]
    assert _ratio(None, Ran([1.0, 2.0], 1)) is None


def test_first_round_is_not_timed():
    ran = Ran([9.0, 2.0, 4.0, 3.0], 1)
    assert ran.round_s == 3.0
    assert _ratio(Ran([9.0, 6.0], 1), ran) == 2.0


@pytest.mark.contract
@pytest.mark.slow
def test_simulator_prints_its_rounds_and_memory_is_seen():
    rows = []
    ran = _timed(Program("fedgc", ["4", "3", "2", "20", "4"], sys.executable), SIZE, rows)
    assert len(ran.rounds_s) == 3
    assert ran.peak_bytes > 2e8, "of several processes"
    assert rows[0]["clients_per_s"] == pytest.approx(4 / ran.round_s)
