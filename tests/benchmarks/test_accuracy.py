"""Test the accuracy benchmark: a fixed target, the time to reach it, and runs that never reach it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import accuracy, trial
from benchmarks.accuracy import (
    DRIFT,
    FEDAVG_NAMES,
    FIXED,
    FLOAT32,
    LOCAL_STEPS,
    OURS,
    QUICK,
    SHARES,
    TUNED,
    USUAL,
    bench_accuracy,
    report,
    text_lines,
)
from benchmarks.arms import CODED, Arm, named
from benchmarks.grid import Modelled
from benchmarks.scene import BLOCK, CLIENTS, HISTORY, Scene, known_of, scenario_of
from benchmarks.trial import MORE_TUNING_SEEDS, Care, Measured, Trace, Trial, measure
from fedgc.errors import EdgeFailed
from fedgc.sim.clock import working

CALM = Scene("skew", "homogeneous", source=Modelled("homogeneous"))


TARGET = 60.0


def made(arm: str, seed: int, reaches: float, megabytes: float = 1.0) -> Measured:
    """An arm that reaches 40 points after one second and 80 points after the given time."""
    trace = Trace((1.0, reaches), (megabytes / 2, megabytes), (40.0, 80.0))
    (of,) = (each for each in (*USUAL.tuned, *USUAL.others) if each.name == arm)
    return Measured(CALM, of, seed, 0.1, 80.0, megabytes=megabytes, trace=trace)


def test_ratios_use_quickest_baseline_per_seed():
    measured = [
        *(made(OURS, seed, 2.0) for seed in range(3)),
        *(made(FLOAT32, seed, 2.5) for seed in range(3)),
        *(made(DRIFT, seed, 5.0) for seed in range(3)),
        *(made(FIXED, seed, 4.0) for seed in range(3)),
        *(made("BSP", seed, 8.0, 10.0) for seed in range(3)),
        *(made(FEDAVG_NAMES[1], seed, 200.0, 2.5) for seed in range(3)),
        *(made(FEDAVG_NAMES[0], seed, reaches, 4.0) for seed, reaches in enumerate((3.0, 5.0, 100.0))),
    ]
    figures = report(measured, (TARGET,)).figures
    assert figures["best_baseline_time_over_ours"] == {"median": 2.5, "lower": 1.5}
    assert figures["best_baseline_time_over_float32"] == {"median": 2.0, "lower": 1.2}
    assert figures["float32_by_scenario"] == {"homogeneous, 60.0": 2.0, "homogeneous, 60.0, least": 1.2}
    assert figures["best_baseline_time_over_drift"] == {"median": 1.0, "lower": 0.6}
    assert figures["by_scenario"] == {
        "homogeneous, 60.0, over FedAvg, drop": 2.5, "homogeneous, 60.0, over FedAvg, drop, least": 1.5
    }  # fmt: skip
    assert figures["final_points_over_best"] == 0.0
    assert figures["drift_time_over_fixed"] == 1.25
    assert figures["fedavg_time_over_ours"] == 2.5
    assert figures["bytes_over_fedavg"] == pytest.approx(0.4)


def test_target_is_bsp_loss_without_stragglers_on_tuning_seeds(monkeypatch):
    played: list[Trial] = []

    def measured(scene: Scene, arm: Arm, rate: float, seed: int, **_: object) -> Measured:
        assert (scene.column, scene.straggler, arm.name) == ("skew", "none", "BSP")
        assert seed in trial.TUNING_SEEDS
        return Measured(scene, arm, seed, rate, points=50.0 if rate == 0.4 else 30.0)

    def noted(trials: list[Trial], _: object) -> list[Measured]:
        played.extend(trials)
        return []

    monkeypatch.setattr(trial, "measure", measured)
    monkeypatch.setattr(accuracy, "play", noted)
    bench_accuracy(USUAL)
    assert {each.target for each in played} == {SHARES[-1] * 50.0}
    assert {each.tuned_on for each in played} == {MORE_TUNING_SEEDS}
    names = {each.arm.name: each.local_steps for each in played}
    assert names == dict.fromkeys((arm.name for arm in USUAL.others), ()) | dict.fromkeys(
        (arm.name for arm in TUNED), LOCAL_STEPS
    )


def test_target_may_be_reached_before_last_round():
    rows = report([made(OURS, 0, 2.0), made("BSP", 0, 8.0)], (30.0,)).rows
    assert [row["seconds_to_target"] for row in rows] == [1.0, 1.0]


def test_learning_rate_that_reaches_target_first_is_selected(monkeypatch):
    """It beats a rate of better final accuracy, and one that reaches the target on one seed only."""
    reaches = {(0.4, 1000): 3.0, (0.4, 1001): 9.0, (0.8, 1000): 5.0, (0.8, 1001): 5.0, (1.6, 1000): 4.0}

    def measured(scene: Scene, arm: Arm, rate: float, seed: int, **_: object) -> Measured:
        at = reaches.get((rate, seed), 90.0 if rate == 3.2 else math.inf)
        points = {3.2: 90.0}.get(rate, 60.0)
        trace = Trace((at,), (1.0,), (points,)) if at < math.inf else Trace((), (), ())
        return Measured(scene, arm, seed, rate, points=points, trace=trace)

    monkeypatch.setattr(trial, "measure", measured)
    found = Trial(CALM, named(OURS)[0], Care(5, 1), TARGET).run()
    assert found[0].rate == 0.4
    reaches.pop((0.4, 1001))
    found = Trial(CALM, named(OURS)[0], Care(5, 1), TARGET).run()
    assert found[0].rate == 0.4  # neither of the best two comes there on both seeds
    reaches[1.6, 1001] = 5.0
    found = Trial(CALM, named(OURS)[0], Care(5, 1), TARGET).run()
    assert found[0].rate == 1.6
    assert Trial(CALM, named(OURS)[0], Care(5, 1)).run()[0].rate == 3.2


def test_best_rates_are_tried_on_all_tuning_seeds(monkeypatch):
    """The rate that is second on the first seed is the best on the others."""

    def measured(scene: Scene, arm: Arm, rate: float, seed: int, **_: object) -> Measured:
        seconds = (
            {0.8: 2.0, 1.6: 3.0}.get(rate, 9.0) if seed == MORE_TUNING_SEEDS[0] else {1.6: 2.0}.get(rate, 3.0)
        )
        return Measured(scene, arm, seed, rate, 60.0, trace=Trace((seconds,), (1.0,), (60.0,)))

    monkeypatch.setattr(trial, "measure", measured)
    (found,) = Trial(CALM, named(OURS)[0], Care(5, 1), TARGET, tuned_on=MORE_TUNING_SEEDS).run()
    assert found.rate == 1.6


def test_local_steps_are_tuned_with_learning_rate(monkeypatch):
    def measured(scene: Scene, arm: Arm, rate: float, seed: int, until: float | None = None) -> Measured:
        assert until == (TARGET if seed in trial.TUNING_SEEDS else None)
        seconds = {(16, 0.8): 2.0, (32, 1.6): 1.0}.get((arm.look, rate), 3.0)
        return Measured(scene, arm, seed, rate, 60.0, trace=Trace((seconds,), (1.0,), (60.0,)))

    monkeypatch.setattr(trial, "measure", measured)
    (found,) = Trial(CALM, named(OURS)[0], Care(5, 1), TARGET, LOCAL_STEPS).run()
    assert (found.arm.settings["local_steps"], found.rate) == (32, 1.6)
    assert found.row()["local_steps"] == 32


def test_tuning_run_ends_at_target():
    scene = replace(CALM, steps=256)
    whole = measure(scene, named(OURS)[0], 1.6, 0)
    short = measure(scene, named(OURS)[0], 1.6, 0, until=60.0)
    assert short.trace.reach(60.0) == whole.trace.reach(60.0)
    assert short.looks < whole.looks


def test_planned_arm_has_quorum_for_its_clients():
    slow = Scene("skew", "bimodal-persistent", source=Modelled("bimodal-persistent"), steps=64)
    planned = measure(slow, named(OURS)[0], 1.6, 0).arm.settings
    assert planned["quorum"] < measure(replace(CALM, steps=64), named(OURS)[0], 1.6, 0).arm.settings["quorum"]
    assert planned["codec"] == planned["download_codec"] == "int8"


def test_run_that_never_reaches_target_loses():
    late = replace(made(OURS, 0, 2.0), trace=Trace((1.0,), (1.0,), (10.0,)))
    assert (
        report([late, made("BSP", 0, 8.0)], (TARGET,)).figures["best_baseline_time_over_ours"]["median"]
        == 0.0
    )
    fedavg = made(FEDAVG_NAMES[0], 0, 8.0)
    assert report([late, fedavg], (TARGET,)).figures["bytes_over_fedavg"] == math.inf
    never = replace(made("BSP", 0, 8.0), trace=Trace((), (), ()))
    found = report([made(OURS, 0, 2.0), never], (TARGET,))
    assert found.figures["best_baseline_time_over_ours"]["median"] == math.inf
    assert '"inf"' in found.json()
    assert len(list(text_lines(found))) == 3


def test_figure_without_baseline_is_null():
    figures = report([made(OURS, 0, 2.0), made("BSP", 0, 8.0)], (TARGET,)).figures
    assert figures["fedavg_time_over_ours"] is None
    assert figures["bytes_over_fedavg"] is None


def test_gradient_coding_takes_one_full_batch_step_per_round():
    of = measure(replace(CALM, steps=3), CODED, 0.1, 0)
    assert (of.syncs, of.looks) == (3, 3)
    assert of.placement_mb > 0


def test_paces_match_source_by_median_client():
    scenario = scenario_of(Scene("skew", "x", source=Modelled("bimodal-persistent")), 4, 8, 1)
    assert len(scenario) == 4
    assert sorted(scenario[0].pace_wk[:, 0])[CLIENTS // 2] == pytest.approx(0.5)
    assert scenario[0].pace_wk.max() > 1.0


class Alternating:
    """A source whose clients take 1 and 3 s for a block in turns; the first one is slow after its history."""

    name = "alternating"

    def make(self, clients, rounds, seed):
        paces = [np.full(clients, 1.0 + 2.0 * (at % 2)) for at in range(rounds)]
        for late_w in paces[HISTORY:]:
            late_w[0] *= 100.0
        return tuple(working(pace_w[:, None]) for pace_w in paces)


def test_rounds_of_any_length_have_same_blocks():
    scene = Scene("skew", "alternating", source=Alternating(), steps=4 * BLOCK)
    short, long = (scenario_of(scene, 4 * BLOCK // steps, steps, 0) for steps in (BLOCK, 2 * BLOCK))
    paces = [each.pace_wk[1, 0] for each in short]
    assert [each.pace_wk[1, 0] for each in long] == [sum(paces[:2]), sum(paces[2:])]


def test_plan_knows_history_alone():
    known = known_of(Scene("skew", "alternating", source=Alternating(), steps=4 * BLOCK), 0)
    assert (known.step_s_w == known.step_s_w[0]).all()


class Few:
    """A source with too few clients."""

    name = "few"

    def make(self, clients, rounds, seed):
        return Modelled("homogeneous").make(clients - 1, rounds, seed)


def test_source_with_too_few_clients_is_refused():
    with pytest.raises(EdgeFailed, match="few: saw 7 clients, needed 8"):
        scenario_of(Scene("skew", "few", source=Few()), 4, 8, 1)


def test_tuning_seed_result_is_cached():
    (found,) = Trial(replace(CALM, steps=16), named(OURS)[0], Care(1, 1)).run()
    assert found.tuned > 0


@pytest.mark.slow
def test_quick_benchmark_gives_every_figure():
    figures = bench_accuracy(QUICK).figures
    assert all(value is not None for value in figures.values())
