"""Test the tuner benchmark: compared settings and figures."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bands, tuner
from benchmarks.bands import Bursts, Swapped
from benchmarks.grid import sources
from benchmarks.tuner import STEADY, TRAIN, Job, Size, compare, figures, play_fixed, play_tuned
from fedgc.history import Speeds
from fedgc.sim.clock import MODELS, working
from fedgc.tuner import Band, Choice, Setting

pytestmark = pytest.mark.usefixtures("few_futures")
SMALL = Size(clients=4, seeds=1, unequal=6)


def test_best_fixed_setting_is_selected_over_all_seeds() -> None:
    said = [("tuned", 1.0), ("a", 0.5), ("b", 0.9), ("tuned", 1.0), ("a", 3.0), ("b", 0.9)]
    rows = [{"scenario": "w", "upload": 0.0, "setting": name, "mean_s": mean_s} for name, mean_s in said]
    (cell,) = compare(rows)
    assert cell["best"] == "b"
    assert cell["regret"] == pytest.approx(2.0 / 1.8 - 1.0)


def test_figures_without_rows_are_null() -> None:
    assert set(figures([], []).values()) == {None}


def test_unrecovered_drift_is_infinite() -> None:
    assert figures([], [{"drift": 4, "recovery_rounds": None}])["drift_recovery_rounds"] == float("inf")


def test_fixed_and_tuned_runs_use_same_scenario() -> None:
    scenario = MODELS["homogeneous"](4, 6, np.random.default_rng(0))
    fixed = play_fixed(scenario, Setting(1, 1), by_speed=True, seed=0, pieces=2)
    tuned = play_tuned(scenario, seed=0, pieces=2)
    assert fixed == pytest.approx([1.0] * 6)
    assert len(tuned.seconds) == len(tuned.choices) == len(tuned.bands) == 6
    assert "no history" in tuned.choices[0].reason
    assert tuned.choices[-1].known


def test_band_is_made_before_its_round() -> None:
    """The first long round is outside, and later bands have learned of it."""
    scenario = tuple(working(np.full((4, 1), pace)) for pace in [1.0] * 8 + [3.0] * 12)
    tuned = play_tuned(scenario, seed=0, pieces=2)
    held = [band.holds(each) for each, band in zip(tuned.seconds, tuned.bands, strict=True)]
    assert held[5:9] == [True, True, True, False]
    assert held[-1]


def test_band_job_counts_rounds_after_learning() -> None:
    (row,) = Job("band", STEADY, 0, replace(SMALL, predicted=5)).run()
    assert (row["band"], row["rounds"], row["held"], row["above"]) == ("homogeneous", 5, 1.0, 0.0)
    assert row["width"] == pytest.approx(0.002, rel=0.1)
    assert row["predicted_over_seen"] == pytest.approx(1.0)
    assert figures([], [row])["band_coverage"] == {"homogeneous": 1.0}


def test_band_row_counts_both_sides() -> None:
    choice = Choice(Setting(1, 1), Speeds(), None, Band(2, 1, 3), trusted=True, known=True, reason="")
    made = [Band(2, 1.5, 3), Band(4, 3, 5), Band(8, 7, 9), Band(8, 7, 9)]
    row = bands.row_of("calm", 0, [1.0, 3.0, 8.0, 10.0], made, [choice] * 4)
    assert (row["held"], row["below"], row["above"], row["held_as_made"]) == (0.5, 0.25, 0.25, 0.5)
    assert (row["predicted_over_seen"], row["replayed_over_seen"]) == (1.0, 8 / 22)


def test_bands_farthest_from_four_in_five_are_first() -> None:
    rows = [{"band": str(held), "held": held} for held in (0.8, 1.0, 0.5)]
    assert [row["band"] for row in bands.worst_first([*rows, {"drift": 4}])] == ["0.5", "1.0", "0.8"]


def test_bursts_slow_all_clients_and_swap_comes_after_learning() -> None:
    pace_rw = np.stack([each.mean_pace_w for each in Bursts().make(50, 400, 0)])
    middle_r = np.median(pace_rw, axis=1)
    assert np.mean(middle_r > 1.3) == pytest.approx(0.27, abs=0.06)
    swapped = np.stack([each.mean_pace_w for each in Swapped().make(20, 24, 0)])
    moved_r = np.abs(np.log(swapped[1:] / swapped[:-1])).max(axis=1)
    assert np.flatnonzero(moved_r > 0.5).tolist() == [TRAIN - 1]


@pytest.mark.parametrize("kind", ["unequal", "drift"])
def test_job_gives_one_row_with_figures(kind: str) -> None:
    (row,) = Job(kind, STEADY, 0, SMALL).run()
    found = figures([], [row])
    assert sum(value is not None for value in found.values()) == {"unequal": 2, "drift": 1}[kind]


def test_every_trace_in_folder_is_tuned_for(tmp_path: Path, monkeypatch) -> None:
    """A table, a recording of functions, and links; clients with links of their own keep them."""
    for name, few in (("TRAIN", 6), ("TEST", 2), ("PIECES", 2)):
        monkeypatch.setattr(tuner, name, few)
    times = [f"{w},{r},0,{1 + w + r}" for w in range(4) for r in range(3)]
    (tmp_path / "times.csv").write_text("\n".join(["client,round,chunk,seconds", *times]))
    functions = [{"results": [{"started": 0.0, "finished": np.float64(1.0 + w)} for w in range(4)]}] * 2
    (tmp_path / "functions.pkl").write_bytes(pickle.dumps(functions))
    link = {"up_u": 500.0, "up_sigma": 9.0, "down_u": 900.0, "down_sigma": 9.0}
    (tmp_path / "flash_speed_distri.json").write_text(json.dumps({"near": link, "far": link}))
    found = [source for source in sources(tmp_path) if source.name not in MODELS]
    rows = [row for source in found for row in Job("cell", source, 0, SMALL).run()]
    played = {row["scenario"] for row in rows if "scenario" in row}
    assert played == {source.name for source in found}
    assert {row["upload"] for row in rows if row.get("scenario") == "times"} == {0.0, 2.0}
    assert {row["upload"] for row in rows if row.get("scenario") == "links of users x3"} == {None}
    assert len(compare(rows)) == 2 + 2 + 2
