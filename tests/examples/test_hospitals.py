"""Test the comparison of examples/hospitals: its scene, what counts, and figures from rows made by hand."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.trial import TUNING_SEEDS
from examples.hospitals import comparison
from examples.hospitals.arms import DROPS, ENTRIES, OURS, WAITS, named
from examples.hospitals.comparison import Care, Mark, Run, compare, measure, report, text_lines
from examples.hospitals.scene import BIG, HOUR_S, OUTAGES, SHARES, SITES, scenario_of, sites_of

PROXIMAL = "FedProx 0.1"
TARGET = 90.0


def run(arm: str, seed: int, hours: float, *, gigabytes: float = 1.0, slow: float = 90.0) -> Run:
    """A run that reaches 80 points after an hour, and 95 after these hours."""
    marks = (
        Mark(1.0, gigabytes / 2, 80.0, (50.0,) * SITES),
        Mark(hours, gigabytes, 95.0, (slow, *(99.0,) * (SITES - 1))),
    )
    return Run(named(arm)[0], seed, 0.1, marks, data=0.5, sites=0.875)


def never(of: Run) -> Run:
    return replace(of, marks=tuple(replace(mark, points=60.0) for mark in of.marks))


def test_slow_site_holds_half_of_data():
    sites = sites_of(0)
    counts = [len(rows) for rows in sites.rows]
    assert counts[BIG] == pytest.approx(sum(counts) / 2, abs=1)
    assert len(np.unique(np.concatenate(sites.rows))) == sum(counts) == len(sites.images.labels)
    assert sites.shares_wc.sum(axis=1) == pytest.approx(np.ones(SITES))
    assert np.abs(sites.shares_wc - sites.shares_wc.mean(axis=0)).max() > 0.2, "sites see the same"


def test_site_accuracy_is_weighted_by_its_labels():
    sites = sites_of(0)
    blind = {f"accuracy of class {label}": float(label == 3) for label in range(10)}
    assert sites.points(blind) == pytest.approx(100 * sites.shares_wc[:, 3])


@pytest.mark.parametrize("round_s", [680.0, 12080.0])
def test_outages_begin_at_same_hour_for_any_round(round_s):
    scenario = scenario_of(400, 48, round_s)
    begun = {}
    for number, conditions in enumerate(scenario):
        for site in np.flatnonzero(np.isfinite(conditions.dies_s_w)).tolist():
            away_s = conditions.returns_s_w[site] - conditions.dies_s_w[site]
            begun[site] = ((number * round_s + conditions.dies_s_w[site]) / HOUR_S, away_s / HOUR_S)
    assert begun == {each.site: pytest.approx((each.from_h, each.hours)) for each in OUTAGES}


def test_ratios_take_cheapest_rival_of_each_seed():
    runs = [
        *(run(OURS, seed, 2.0, gigabytes=10.0) for seed in range(3)),
        *(run(WAITS, seed, 20.0, gigabytes=5.0, slow=92.0) for seed in range(3)),
        *(run(PROXIMAL, seed, hours) for seed, hours in enumerate((2.5, 4.0, 8.0))),
        *(run("FedBuff", seed, 5.0) for seed in range(3)),
        *(never(run(DROPS, seed, 16.0, gigabytes=80.0, slow=40.0)) for seed in range(3)),
    ]
    found = report(runs, TARGET).figures
    assert found["time_over_wait_all"] == {"median": 0.1, "most": 0.1}
    assert found["time_over_best_rival"] == {"median": 0.5, "most": 0.8}
    assert found["time_over_best_whole_work"] == {"median": 0.4, "most": 0.4}
    assert found["slow_site_gap_points"] == -2.0
    assert found["slow_site_over_dropping_points"] == 0.0, "FedBuff is the best of those"
    assert found["bytes_over_deadline"] == {"median": 0.125, "most": 0.125}
    assert found["bytes_over_wait_all"] == {"median": 2.0, "most": 2.0}
    assert found["coverage_by_data"][DROPS] == 0.5
    assert found["coverage_by_sites"][DROPS] == 0.875


def test_figures_that_miss_come_first():
    runs = [
        run(OURS, 0, 10.0),
        run(WAITS, 0, 20.0),
        run(PROXIMAL, 0, 30.0),
        run("FedBuff", 0, 30.0, slow=40.0),
    ]
    names = list(report(runs, TARGET).figures)
    assert names[0] == "time_over_wait_all"
    assert names.index("time_over_best_rival") > 0


def test_run_without_target_is_infinite_and_loses():
    runs = [never(run(OURS, 0, 2.0)), run(WAITS, 0, 20.0), run("FedBuff", 0, 4.0)]
    of = report(runs, TARGET)
    assert of.figures["time_over_wait_all"] == {"median": math.inf, "most": math.inf}
    assert (of.rows[0]["arm"], of.rows[0]["hours_to_target"]) == (OURS, math.inf)
    assert text_lines(of)[1].startswith(OURS)


def test_deadline_leaves_out_slow_site_and_its_work():
    dropped, partial = (measure(named(name)[0], 2.0, 0.2, 0) for name in (DROPS, PROXIMAL))
    assert dropped.data < 1 - SHARES[BIG] < partial.data
    assert dropped.sites > 0.75, "by sites alone it looks well"
    assert dropped.thrown > partial.thrown
    assert dropped.slow_points < partial.slow_points


def test_every_arm_trains_and_names_its_operator():
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
    assert all(entry.operator for entry in ENTRIES)
    for entry in ENTRIES:
        short = measure(entry, entry.round_s / HOUR_S, 0.1, 0)
        assert not short.failed, (entry.name, short.failed)
        assert short.marks, entry.name


def test_reported_seeds_are_not_tuned_on(monkeypatch):
    seeds: dict[str, set[int]] = {"tuned": set(), "reported": set()}

    class Pool:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def submit(self, call, *given):
            found = call(*given)
            kind = "reported" if isinstance(found, Run) else "tuned"
            seeds[kind] |= {found.seed} if isinstance(found, Run) else {each.seed for each in found.runs}
            return type("Done", (), {"result": lambda self: found})()

    def measured(entry, hours, rate, seed):
        return replace(run(entry.name, seed, 2.0), rate=rate)

    monkeypatch.setattr(comparison, "Processes", Pool)
    monkeypatch.setattr(comparison, "measure", measured)
    of = compare(Care(entries=named(WAITS, DROPS, OURS)))
    assert seeds == {"tuned": set(TUNING_SEEDS), "reported": set(range(5))}
    assert of.figures["target_points"] == 94.0
    assert of.seeds == list(range(5))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_command_shows_gain_over_waiting_and_dropping():
    said = subprocess.run(
        [sys.executable, "-m", "examples.hospitals", "--quick", "--json"],
        capture_output=True, text=True, timeout=850, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    found = json.loads(said.stdout)
    figures = found["figures"]
    assert {row["arm"] for row in found["rows"]} == {WAITS, DROPS, OURS}
    assert figures["time_over_wait_all"]["most"] < 1 / 3
    assert figures["slow_site_over_dropping_points"] > 20
    assert figures["slow_site_gap_points"] > -4
    assert figures["bytes_over_deadline"]["most"] < 1 / 2
    assert figures["coverage_by_data"][DROPS] < 0.55 < 0.95 < figures["coverage_by_data"][OURS]
    assert figures["coverage_by_sites"][DROPS] > 0.8
