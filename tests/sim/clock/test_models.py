"""Test client models: their stated distributions, and equal results for equal seeds."""

import numpy as np
import pytest

from fedgc.sim.clock import MODELS, NEVER


@pytest.mark.parametrize("name", MODELS)
def test_seed_fixes_scenario(name):
    first, again = (MODELS[name](20, 3, np.random.default_rng(5)) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert (one.pace_wk == other.pace_wk).all()
        assert (one.dies_s_w == other.dies_s_w).all()


@pytest.mark.parametrize("name", MODELS)
def test_scenario_has_requested_clients_and_rounds(name):
    scenario = MODELS[name](30, 4, np.random.default_rng(0))
    assert [each.clients for each in scenario] == [30] * 4


def test_shifted_exponential_has_stated_mean_and_shift():
    paces = np.array(
        [each.mean_pace_w for each in MODELS["shifted-exponential"](500, 20, np.random.default_rng(0))]
    )
    assert paces.min() >= 1.0
    assert paces.mean() == pytest.approx(2.0, abs=0.05)


def test_one_fifth_is_slow_in_bimodal_and_persists():
    moving = np.array([each.mean_pace_w for each in MODELS["bimodal"](100, 5, np.random.default_rng(0))])
    fixed = np.array(
        [each.mean_pace_w for each in MODELS["bimodal-persistent"](100, 5, np.random.default_rng(0))]
    )
    assert ((moving >= 3).sum(axis=1) == 20).all()
    assert ((fixed >= 3).sum(axis=1) == 20).all()
    assert (fixed == fixed[0]).all()
    assert not (moving == moving[0]).all()


def test_one_in_fifty_fails_in_fail_stop_and_stays_away():
    for each in MODELS["fail-stop"](100, 5, np.random.default_rng(0)):
        assert (each.dies_s_w < 1.0).sum() == 2
        assert (each.returns_s_w == NEVER).all()


def test_half_of_clients_drift_to_third_of_speed():
    paces = np.array([each.mean_pace_w for each in MODELS["drift"](100, 11, np.random.default_rng(0))])
    assert paces[-1, 1::2].mean() / paces[0, 1::2].mean() == pytest.approx(3.0, rel=0.05)
    assert paces[-1, ::2].mean() / paces[0, ::2].mean() == pytest.approx(1.0, rel=0.05)
