"""Test the benchmark of preempted clients: its figures by hand, and that it measures what it names."""

import pytest

from benchmarks.preempt import QUICK_DEPARTURES, bench_preempt, figures


def test_figures_are_shares_of_steps_and_departures():
    rows = [
        {"signal": "SIGTERM", "at_stake": 30, "kept": 30, "ends_s": 1.0},
        {"signal": "SIGKILL", "at_stake": 40, "kept": 0, "ends_s": 0.0},
        {"signal": "SIGTERM", "at_stake": 10, "kept": 5, "ends_s": 2.0},
    ]
    assert figures(rows) == {
        "steps_kept_percent": 87.5,
        "counted_departures_percent": 50.0,
        "killed_steps_kept_percent": 0.0,
        "killed_counted_percent": 0.0,
        "leave_s": 1.5,
        "departures": 2,
    }


@pytest.mark.slow
def test_preempted_clients_lose_nothing():
    report = bench_preempt(QUICK_DEPARTURES)
    assert report.figures["departures"] == 2
    assert report.figures["counted_departures_percent"] == 100.0
