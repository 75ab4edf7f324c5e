"""Test the belief: whether past speeds predict future speeds is estimated, not assumed."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedgc.history import Speed, Speeds
from fedgc.tuner import ClientHistory, believe, nothing
from fedgc.tuner.belief import weighted_median

NAMES = tuple(f"client {w}" for w in range(12))


def past(step_rw: np.ndarray) -> ClientHistory:
    return ClientHistory(NAMES[: step_rw.shape[1]], step_rw, np.zeros(step_rw.shape, bool))


def cache_files(rounds: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.geomspace(1.0, 8.0, 12) * rng.lognormal(0.0, 0.1, (rounds, 12))


def test_persistent_speeds_are_trusted_and_found() -> None:
    belief = believe(past(cache_files(8)), Speeds())
    assert belief.trusted
    saved = re.search(r"saved (\d+)% of the error", belief.words)
    assert saved is not None
    assert int(saved[1]) > 50
    assert belief.step_w == pytest.approx(np.geomspace(1.0, 8.0, 12), rel=0.25)


@pytest.mark.parametrize("seed", range(5))
def test_reshuffled_speeds_are_not_trusted_and_reported(seed: int) -> None:
    shuffled = np.random.default_rng(seed).permuted(cache_files(12, seed), axis=1)
    belief = believe(past(shuffled), Speeds())
    assert not belief.trusted
    assert "history does not help" in belief.words
    assert len(set(belief.step_w.tolist())) == 1


def test_only_recent_rounds_count_after_drift() -> None:
    before, after = cache_files(10), cache_files(6, 1)[:, ::-1]
    belief = believe(past(np.vstack([before, after])), Speeds())
    assert belief.trusted
    assert belief.step_w == pytest.approx(np.geomspace(8.0, 1.0, 12), rel=0.35)


def test_speeds_of_earlier_runs_are_used_without_rounds() -> None:
    known = Speeds({name: Speed(name, 1.0 + w, 0.01, rounds=9) for w, name in enumerate(NAMES)})
    belief = believe(nothing(NAMES), known)
    assert belief.known
    assert belief.step_w == pytest.approx(1.0 + np.arange(12), rel=0.05)


def test_speed_differences_below_noise_are_treated_as_equal() -> None:
    known = Speeds({name: Speed(name, 1.0 + w / 100, 2.0, rounds=2) for w, name in enumerate(NAMES)})
    belief = believe(nothing(NAMES), known)
    assert not belief.trusted
    assert np.ptp(belief.step_w) == pytest.approx(0.0, abs=1e-12)


def test_often_failed_client_is_expected_to_fail_more() -> None:
    failed_rw = np.zeros((8, 12), bool)
    failed_rw[::2, 3] = True
    belief = believe(ClientHistory(NAMES, cache_files(8), failed_rw), Speeds())
    assert belief.fails_w[3] > 0.3
    assert 0 < belief.fails_w[0] < 0.05


def test_sampled_futures_repeat_past_prediction_errors() -> None:
    belief = believe(past(cache_files(20)), Speeds())
    step_bw, dies_bw = belief.draw(400, np.random.default_rng(0))
    assert np.median(step_bw, axis=0) == pytest.approx(belief.step_w, rel=0.1)
    assert np.log(step_bw / belief.step_w).std() == pytest.approx(0.1, rel=0.5)
    assert np.isinf(dies_bw).all()


@given(arrays(np.float64, (7, 2), elements=st.floats(-3.0, 3.0)), st.sampled_from([1.0, 4.0, 16.0]))
def test_weighted_median_equals_slow_reference(log_rw: np.ndarray, half_life: float) -> None:
    weight_r = [0.5 ** ((6 - at) / half_life) for at in range(7)]
    for w, found in enumerate(weighted_median(log_rw, half_life)):
        below = sum(g for g, value in zip(weight_r, log_rw[:, w], strict=True) if value < found)
        above = sum(g for g, value in zip(weight_r, log_rw[:, w], strict=True) if value > found)
        assert max(below, above) <= sum(weight_r) / 2 + 1e-9
        assert found in log_rw[:, w]
