"""Test the fleet benchmark: figures from rows made by hand, and a small real fleet."""

import pytest

from benchmarks.fleet import QUICK, bench_fleet, figures, fleets_of
from benchmarks.fleet_clients import mean_update
from fedgc.errors import BadSetting

MEGABYTE = 1_000_000


def fleet(clients: int, *cpu_s: float, name: str = "", gathered: float = 0.0) -> list[dict]:
    """A fleet that is ready at second 0, and a round at each second after it."""
    about = {"fleet": name or f"fleet-{clients}", "clients": clients}
    return [
        {**about, "what": "ready", "at_s": 0.0, "cpu_s": 2.0, "memory": 200 * MEGABYTE},
        {**about, "what": "gathered", "at_s": 0.5, "cpu_s": 2.0 + gathered, "memory": 200 * MEGABYTE},
        *(completed(about, n, each) for n, each in enumerate(cpu_s, start=1)),
    ]


def completed(about: dict, number: int, cpu_s: float = 0.0, **changes: object) -> dict:
    known = {"what": "round", "round": number, "outcome": "synced", "counted": about["clients"]}
    spent = {"at_s": float(number), "cpu_s": cpu_s, "memory": (200 + number) * MEGABYTE, "files": 20}
    return {**about, **known, "began_s": number - 1.0, "lost": 0, "failed": 0, **spent, **changes}


def test_figure_without_data_is_null():
    found = figures([])
    by_clients = ("server_ms_per_client", "thread_ms_per_client", "growth")
    assert [found[name] for name in by_clients] == [{}, {}, {}]
    assert {each for name, each in found.items() if name not in by_clients} == {None}


def test_cost_is_median_of_rounds_after_first():
    found = figures(fleet(100, 9.0, 9.2, 9.3, 9.5) + fleet(1000, 9.0, 13.0, 17.0, 23.0))
    assert found["server_ms_per_client"] == pytest.approx({"100": 2.0, "1000": 4.0})
    assert found["growth"] == pytest.approx({"100": 1.0, "1000": 2.0})
    assert found["growth_3000_over_100"] is None


def test_cost_of_thread_is_mean_of_rounds_after_first():
    rows = fleet(1000, 9.0, 13.0, 17.0)
    for row in rows:
        row["listener_cpu_s"] = row["cpu_s"] / 2
    assert figures(rows)["thread_ms_per_client"] == pytest.approx({"listener": 2.0})


def test_growth_compares_largest_fleet_with_hundred_clients():
    found = figures(fleet(100, 0.0, 0.1) + fleet(3000, 0.0, 4.5))
    assert found["growth_3000_over_100"] == pytest.approx(1.5)


def test_gathering_and_memory_count_from_idle_server():
    found = figures(fleet(10, 3.0, 3.1) + fleet(1000, 9.0, 12.0, 15.0, gathered=4.5))
    assert found["gather_cpu_s"] == pytest.approx(4.5)
    assert found["mb_per_client"] == pytest.approx(0.003)


def test_stop_counts_lost_clients_and_rounds_until_all_are_back():
    rows = fleet(20, 9.0, 9.1, 9.2)
    about = {"fleet": "fleet-20", "clients": 20}
    rows += [
        {**about, "what": "stop", "at_s": 18.5},
        completed(about, 4, 12.0, at_s=19.0, outcome="empty", counted=0, failed=15),
        completed(about, 5, 13.0, at_s=22.0, counted=18, lost=2, failed=2),
        completed(about, 6, 13.1, at_s=25.0),
        completed(about, 7, 13.2, at_s=25.1, outcome="stopped", counted=0),
        {**about, "what": "after stop", "ended": 1, "back": True},
    ]
    found = figures(rows)
    assert found["back_after_stop_s"] == pytest.approx(6.5)
    assert (found["lost_after_stop"], found["failed_after_stop"], found["rounds_lost_after_stop"]) == (
        3,
        15,
        1,
    )
    assert found["server_ms_per_client"] == pytest.approx({"20": 5.0}), "the stop is no part of the cost"
    rows[-1]["back"] = False
    assert figures(rows)["back_after_stop_s"] is None


def test_churn_slope_is_of_churned_fleet_alone():
    found = figures(fleet(100, *(float(each) for each in range(40)), name="churn"))
    assert found["churn_memory_slope"] == pytest.approx(100 / 225.5 * 100, rel=1e-3)
    assert (found["churn_time_growth"], found["churn_files"]) == (1.0, 0)
    assert found["server_ms_per_client"] == {}


def test_rounds_and_files_that_grow_with_churn_are_seen():
    rows = fleet(100, *(float(each) for each in range(60)), name="churn")
    rounds = [row for row in rows if row["what"] == "round"]
    for number, row in enumerate(rounds, start=1):
        row.update(at_s=number + number**2 / 100, files=20 + number)
    found = figures(rows)
    assert found["churn_time_growth"] > 1.5
    assert found["churn_files"] > 10


def tree(*outcomes: str, most: float = 0.0, counted: int = 4) -> list[dict]:
    """A server, three sites of four clients each, and one server with all twelve, with these rounds."""
    rows = fleet(12, 2.0, 2.24, 2.48, name="flat")
    top = {"fleet": "tree", "clients": 3}
    for n, outcome in enumerate(outcomes, start=1):
        rows.append(completed(top, n, 0.03 * n, at_s=1.5 * n, outcome=outcome))
    for site in ("site-1", "site-2", "site-3"):
        about = {"fleet": site, "clients": 4}
        for n in range(1, len(outcomes)):
            rows.append({**about, "what": "gateway", "at_s": 1.5 * n, "cpu_s": 0.01 * n, "memory": MEGABYTE})
            rows.append(completed(about, n, 0.07 * n, memory=3 * MEGABYTE, counted=counted))
    return [*rows, {**top, "what": "over", "least": most, "most": most}]


def test_tree_is_compared_with_one_server_of_as_many_clients():
    found = figures(tree("synced", "synced", "synced", "stopped", most=-3 * mean_update(range(12))))
    assert found["tree_round_s"] == found["tree_over_flat_round_s"] == pytest.approx(1.5)
    assert found["tree_top_ms_per_round"] == pytest.approx(3 * found["tree_top_ms_per_gateway"])
    assert found["tree_site_ms_per_round"] == pytest.approx(80.0)
    assert found["tree_gateway_ms_per_round"] == pytest.approx(10.0)
    assert (found["tree_ms_per_client"], found["flat_ms_per_client"]) == pytest.approx((20.0, 20.0))
    assert found["tree_mb_per_site"] == pytest.approx(4.0)
    assert found["tree_rounds_lost"] == 0
    assert found["tree_model_error"] == pytest.approx(0.0, abs=1e-12)
    assert found["server_ms_per_client"] == {}


def test_tree_that_loses_round_or_client_is_seen():
    expected = -2 * mean_update(range(12))
    rows = tree("synced", "empty", "synced", "stopped", most=expected, counted=3)
    assert figures(rows)["tree_rounds_lost"] == 1 + 3 * 3, "the round above, and those of all sites"
    assert figures(rows)["tree_model_error"] == pytest.approx(0.0, abs=1e-12)
    rows[-1]["most"] = 1.01 * expected
    assert figures(rows)["tree_model_error"] == pytest.approx(0.01)


@pytest.mark.parametrize("text", ["", "ten", "0", "10,20000"])
def test_bad_number_of_clients_is_named(text: str):
    with pytest.raises(BadSetting, match="--clients: saw"):
        fleets_of(text)


@pytest.mark.slow
def test_small_fleet_comes_back_after_stop():
    report = bench_fleet(QUICK)
    assert not [row for row in report.rows if row["what"] == "failed"]
    assert set(report.figures["server_ms_per_client"]) == {"4", "20"}
    assert all(each > 0 for each in report.figures["server_ms_per_client"].values())
    assert report.figures["back_after_stop_s"] is not None
    assert report.figures["lost_after_stop"] == report.figures["rounds_lost_after_stop"] == 0
    assert report.figures["tree_rounds_lost"] == 0
    assert report.figures["tree_model_error"] < 1e-5
    assert min(report.figures["tree_over_flat_round_s"], report.figures["tree_ms_per_client"]) > 0
