"""Test the benchmark of receivers: figures from rows made by hand, and small real fleets."""

import pytest

from benchmarks.receivers import QUICK, bench_receivers, figures


def fleet(name: str, clients: int, *spent: tuple[float, ...]) -> list[dict]:
    """A fleet whose processes have spent so much by each round: the main one, then all receivers."""
    about = {"fleet": name, "clients": clients}
    rows = [{**about, "what": "ready"}]
    for main, *receivers in spent:
        more = (
            {"receivers_cpu_s": sum(receivers), "busiest_receiver_cpu_s": max(receivers)} if receivers else {}
        )
        done = {"what": "round", "outcome": "synced", "counted": clients}
        rows.append({**about, **done, "cpu_s": main, **more})
    return rows


def test_gain_is_of_busiest_process_and_cost_of_all():
    one = fleet("small-1", 100, (1.0,), (1.3,), (1.6,))
    two = fleet("small-2", 100, (1.0, 1.0, 1.0), (1.1, 1.2, 1.2), (1.2, 1.4, 1.4))
    found = figures([*one, *two])
    assert found["small_busiest_ms"] == pytest.approx({"1": 3.0, "2": 2.0})
    assert found["small_total_ms"] == pytest.approx({"1": 3.0, "2": 5.0})
    assert found["small_gain"] == pytest.approx({"1": 1.0, "2": 1.5})
    assert found["large_gain"] == {}
    assert found["rounds_lost"] == 0


def test_process_that_adds_can_be_busiest():
    rows = fleet("large-3", 10, (1.0, 1.0, 1.0), (1.5, 1.1, 1.1))
    assert figures(rows)["large_busiest_ms"] == pytest.approx({"3": 50.0})
    assert figures(rows)["large_gain"] == {"3": None}


def test_round_without_model_or_client_is_lost():
    rows = fleet("small-1", 10, (1.0,), (1.1,), (1.2,), (1.3,))
    rows[-1]["outcome"] = "stopped"
    rows[-2]["counted"] = 9
    rows[-3]["outcome"] = "empty"
    assert figures(rows)["rounds_lost"] == 2


@pytest.mark.slow
def test_small_fleets_lose_no_round():
    report = bench_receivers(QUICK)
    assert report.figures["rounds_lost"] == 0
    assert set(report.figures["small_gain"]) == set(report.figures["large_gain"]) == {"1", "2"}
    assert min(*report.figures["small_gain"].values(), *report.figures["large_gain"].values()) > 0
