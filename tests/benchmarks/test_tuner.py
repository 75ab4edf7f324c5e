"""Test the tuner benchmark: compared settings and figures."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from benchmarks.grid import sources
from benchmarks.tuner import STEADY, Job, Size, compare, figures, play_fixed, play_tuned
from fedgc.sim.clock import MODELS
from fedgc.tuner import Setting

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
    tuned, choices = play_tuned(scenario, seed=0, pieces=2)
    assert fixed == pytest.approx([1.0] * 6)
    assert len(tuned) == len(choices) == 6
    assert "no history" in choices[0].reason
    assert choices[-1].known


@pytest.mark.parametrize("kind", ["unequal", "drift"])
def test_job_gives_one_row_with_figures(kind: str) -> None:
    (row,) = Job(kind, STEADY, 0, SMALL).run()
    found = figures([], [row])
    assert sum(value is not None for value in found.values()) == {"unequal": 2, "drift": 1}[kind]


def test_every_trace_in_folder_is_tuned_for(tmp_path: Path) -> None:
    """A table, a recording of functions, and links; clients with links of their own keep them."""
    times = [f"{w},{r},0,{1 + w + r}" for w in range(4) for r in range(3)]
    (tmp_path / "times.csv").write_text("\n".join(["worker,round,chunk,seconds", *times]))
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
