"""Test the gate benchmark: counted bytes, compared arms, and the picture of its measurements."""

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import trial
from benchmarks.arms import ARMS, BSP, LOOK, Arm, named
from benchmarks.frontier import BASELINE, HEIGHT, OURS, WIDTH, field, frontier
from benchmarks.gate import (
    LONG,
    QUICK,
    TENTH,
    USUAL,
    Paired,
    Results,
    bench_gate,
    cells,
    differences,
    figures,
    text_lines,
)
from benchmarks.scene import CLIENTS, Scene, read
from benchmarks.trial import Care, Measured, Trace, Trial, measure
from fedgc.run.machine import CHECK_BYTES

IID, SKEW = Scene("iid"), Scene("skew", "persistent")
MODEL_BYTES = 4 * (64 * 128 + 128 + 128 * 10 + 10)


def cache_files(scene: Scene, steps: int) -> Scene:
    return replace(scene, steps=steps)


def made(scene: Scene, arm: str, points: list[float], **others) -> list[Measured]:
    values = {
        "rate": 0.1, "syncs": 10, "looks": 20, "megabytes": 2.0, "up_mb": 1.0, "down_mb": 1.0,
        "control_mb": 0.0, "placement_mb": 0.0, "seconds": 4.0, "budget_error": None,
    }  # fmt: skip
    values |= others
    (chosen,) = named(arm)
    return [
        Measured(
            scene, chosen, seed, points=each, trace=Trace((2.0, 4.0), (1.0, 2.0), (each / 2, each)), **values
        )
        for seed, each in enumerate(points)
    ]


def test_figure_without_played_scenes_is_null():
    empty = figures([])
    assert set(empty) >= {
        "tenth_bytes_loss_points", "budget_error", "equal_syncs_gain_points", "private_partial_gain_points",
        "movable_syncs_to_bsp", "over_best_baseline_points",
    }  # fmt: skip
    alone = {name: value for name, value in empty.items() if not isinstance(value, dict)}
    assert set(alone.values()) == {None}
    assert empty["skew_pair_gain_points"] == {}
    assert empty["slow_syncs_gain_points"] == {"least": None, "most": None}


def test_gates_are_compared_with_better_blind_schedule():
    measured = [
        *made(SKEW, "ours, pace 0.25", [70.0, 72.0], mean_points=50.0),
        *made(SKEW, "ours, fixed 32", [60.0, 60.0], mean_points=58.0),
        *made(SKEW, "ours, drift 0.25", [71.0, 74.0], mean_points=40.0),
        *made(SKEW, "ours, loss-change 0.25", [61.0, 62.0], mean_points=60.0),
    ]
    found = figures(measured)
    assert found["drift_over_blind_points"] == {"skew, persistent, 0.25": pytest.approx(1.5)}
    assert found["drift_over_blind_lower"]["skew, persistent, 0.25"] < 0
    assert found["loss_change_over_blind_points"] == {"skew, persistent, 0.25": pytest.approx(2.0)}
    assert found["loss_change_over_blind_lower"] == {"skew, persistent, 0.25": pytest.approx(2.0)}


def test_differences_are_paired_by_seed():
    measured = [*made(IID, "BSP", [80.0, 70.0]), *made(IID, TENTH, [79.0, 71.0], budget_error=0.1)]
    found = figures(measured)
    assert found["tenth_bytes_loss_points"] == pytest.approx(0.0)
    assert found["budget_error"] == pytest.approx(0.1)
    gain = Results(measured).gain(IID, "BSP", TENTH)
    assert gain.half == pytest.approx(12.706 * np.std([1.0, -1.0], ddof=1) / 2**0.5)
    assert Paired.of([3.0]).half is None


def test_gain_of_drift_is_given_for_each_period():
    measured = [*made(SKEW, "ours, drift 0.25", [62.0, 64.0]), *made(SKEW, "ours, fixed 32", [60.0, 60.0])]
    found = figures(measured)
    assert found["skew_pair_gain_points"] == {
        "persistent, 32": 3.0,
        "persistent, 32 +-": pytest.approx(12.706),
    }
    assert found["slow_syncs_gain_points"] == {"least": 3.0, "most": 3.0}


def test_fedgc_is_compared_with_best_baseline_at_equal_time():
    measured = [
        *made(SKEW, "ours, drift 0.25", [60.0], seconds=3.0),
        *made(SKEW, "grace window", [90.0]),
        *made(SKEW, "FedAvgM", [100.0]),
    ]
    assert figures(measured)["over_best_baseline_points"] == pytest.approx(60.0 - 50.0)
    assert [row["other"] for row in differences(measured)] == ["FedAvgM", "grace window"], "worst first"


def test_scattered_data_counts_when_as_good_as_bsp():
    near = made(SKEW, "ours, scattered, drift 0.25", [79.8], syncs=30)
    far = made(SKEW, "ours, scattered, drift 0.08", [79.0], syncs=10)
    measured = [*made(SKEW, "BSP", [80.0], syncs=300, megabytes=8.0), *near, *far]
    assert figures(measured)["movable_syncs_to_bsp"] == pytest.approx(0.1)
    assert figures(measured)["movable_bytes_to_bsp"] == pytest.approx(0.25)
    assert figures(measured[:1] + far)["movable_syncs_to_bsp"] is None


def test_all_bytes_are_counted():
    """Each BSP step sends a model, an update, a report and an answer per client."""
    steps = 4
    of = measure(cache_files(IID, steps), BSP, 0.1, 0)
    assert (of.syncs, of.looks) == (steps, steps)
    assert of.up_mb == pytest.approx(steps * CLIENTS * MODEL_BYTES / 1e6, rel=1e-3)
    assert of.down_mb == pytest.approx(steps * CLIENTS * MODEL_BYTES / 1e6)
    assert of.control_mb == pytest.approx(steps * CLIENTS * CHECK_BYTES / 1e6)
    assert of.megabytes == pytest.approx(of.up_mb + of.down_mb + of.control_mb)


def test_placement_cost_is_counted():
    (arm,) = named("ours, scattered, drift 0.25")
    of = measure(cache_files(IID, 4 * LOOK), arm, 0.4, 0)
    assert of.placement_mb == pytest.approx(3 * len(read(None).labels) * 65 / 1e6)
    assert of.syncs == 1
    assert of.megabytes == pytest.approx(of.up_mb + of.down_mb + of.control_mb + of.placement_mb)


def test_peer_exchange_cost_is_counted_at_each_step():
    (arm,) = named("relative change 0.1, injected")
    of = measure(cache_files(IID, 4), arm, 0.1, 0)
    givers, given, steps = 4, 5, 4 * CLIENTS
    assert of.injected_mb == pytest.approx(steps * givers * given * 7 / 8 * 65 / 1e6)
    assert of.megabytes == pytest.approx(of.up_mb + of.down_mb + of.control_mb + of.injected_mb)
    assert measure(cache_files(IID, 4), BSP, 0.1, 0).injected_mb == 0


@pytest.mark.parametrize(("name", "steps"), [("SSP 16", 4), ("FedBuff", 4 * 32)])
def test_runs_without_rounds_upload_updates_and_download_models(name, steps):
    (arm,) = named(name)
    of = measure(cache_files(IID, steps), arm, 0.1, 0)
    assert of.syncs == 4
    assert of.up_mb == pytest.approx(4 * CLIENTS * MODEL_BYTES / 1e6)
    assert of.up_mb <= of.down_mb <= of.up_mb + CLIENTS * MODEL_BYTES / 1e6
    assert of.megabytes == pytest.approx(of.up_mb + of.down_mb + of.control_mb)
    assert of.trace.points[-1] == of.points


def test_run_with_non_finite_numbers_has_learned_nothing():
    of = measure(cache_files(IID, 16), BSP, 1e30, 0)
    assert (of.points, of.syncs) == (0.0, 0)
    assert of.failed


def test_every_arm_is_tuned_over_equal_number_of_rates():
    for arm in ARMS:
        for optimizer in ("sgd", "adam"):
            assert len(set(arm.rates(optimizer))) == USUAL.care.rates
            config = arm.config(64 * LOOK, 0.1, 0, MODEL_BYTES)
            assert config.rounds * config.round_steps == 64 * LOOK


def test_rival_clients_rest_at_gate_checks_like_fedgc_clients():
    for arm in ARMS:
        config = arm.config(64 * LOOK, 0.1, 0, MODEL_BYTES)
        assert (config.most_steps > 0) == arm.ours


def test_trial_and_tuning_seeds_are_disjoint():
    found = Trial(cache_files(SKEW, 4 * LOOK), named("ours, drift 0.25")[0], Care(2, 2)).run()
    assert [each.seed for each in found] == [0, 1]
    assert len({each.rate for each in found}) == 1
    assert all("points" in each.row() for each in found)


def test_rate_favored_by_one_tuning_seed_is_not_selected(monkeypatch):
    points = {(0.4, 1000): 60.0, (0.4, 1001): 61.0, (0.8, 1000): 62.0, (0.8, 1001): 50.0}
    asked: list[tuple[float, int]] = []

    def measured(scene: Scene, arm: Arm, rate: float, seed: int, **_: object) -> Measured:
        asked.append((rate, seed))
        return Measured(scene, arm, seed, rate, points=points.get((rate, seed), 30.0))

    monkeypatch.setattr(trial, "measure", measured)
    found = Trial(SKEW, named("ours, drift 0.25")[0], Care(5, 2)).run()
    assert [(each.rate, each.tuned) for each in found] == [(0.4, 60.5)] * 2
    assert len(asked) == 5 + 2 + 2
    assert {seed for _, seed in asked} == {1000, 1001, 0, 1}


def test_default_matrix_covers_stragglers_and_optimizers():
    scenes = [scene for scene, _ in cells(USUAL, None)]
    assert {scene.column for scene in scenes} == {"iid", "writers", "skew", "shift", "phases", "bursts"}
    assert {scene.straggler for scene in scenes} == {"none", "persistent", "transient", "dead"}
    assert {(scene.model, scene.optimizer) for scene in scenes} >= {
        ("mlp", "sgd"),
        ("cnn", "sgd"),
        ("mlp", "adam"),
    }
    assert len(set(scenes)) == len(scenes)
    assert max(scene.steps for scene in scenes) == LONG


def test_picture_shows_fedgc_and_rivals():
    measured = [*made(SKEW, "ours, drift 0.25", [80.0], syncs=3), *made(SKEW, "FedAvgM", [60.0], syncs=30)]
    pixels = field(measured, "syncs")
    ours, theirs = (np.argwhere((pixels == color).all(axis=2)).mean(axis=0) for color in (OURS, BASELINE))
    assert ours[0] < theirs[0], "higher"
    assert ours[1] < theirs[1], "cheaper"
    picture = frontier(measured)
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", picture[16:24]) == (3 * WIDTH, HEIGHT)
    at = picture.index(b"IDAT") + 4
    length = struct.unpack(">I", picture[at - 8 : at - 4])[0]
    assert len(zlib.decompress(picture[at : at + length])) == HEIGHT * (1 + 3 * 3 * WIDTH)


@pytest.mark.slow
def test_quick_benchmark_gives_figures_rows_and_table():
    report, measured = bench_gate(QUICK)
    assert report.figures["over_best_baseline_points"] is not None
    assert report.figures["tenth_bytes_loss_points"] is not None
    assert '"points"' in report.json()
    assert any(line.startswith("skew, persistent") for line in text_lines(measured))
