"""Test the prediction band: its share of rounds, its center, and its width."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadSetting
from fedgc.history import WINDOW
from fedgc.tuner import Band, band_of
from fedgc.tuner.band import FULL, SAME

REPLAYED_S = (0.8, 0.9, 0.95, 1.0, 1.0, 1.05, 1.1, 1.2)


def share_held(ratios: np.ndarray, practice: int = FULL) -> float:
    """Predict each round from the rounds before it, as the tuner does; return the share in the band."""
    held = [
        band_of(REPLAYED_S, ratios[max(0, at - WINDOW) : at]).holds(ratios[at])
        for at in range(practice, len(ratios))
    ]
    return float(np.mean(held))


def independent(rng: np.random.Generator, rounds: int) -> np.ndarray:
    return rng.lognormal(0.0, 0.2, rounds)


def bursts(rng: np.random.Generator, rounds: int) -> np.ndarray:
    """Return ratios of a fleet whose clients are all slow in a third of the rounds."""
    return rng.lognormal(0.0, 0.1, rounds) * np.where(
        rng.random(rounds) < 1 / 3, rng.uniform(1, 4, rounds), 1
    )


def growing(rng: np.random.Generator, rounds: int) -> np.ndarray:
    return rng.lognormal(0.0, 0.1, rounds) * np.geomspace(1.0, 4.0, rounds)


@pytest.mark.parametrize("drawn", [independent, bursts, growing], ids=lambda drawn: drawn.__name__)
def test_band_holds_four_rounds_in_five(drawn) -> None:
    rng = np.random.default_rng(0)
    assert np.mean([share_held(drawn(rng, 100)) for _ in range(6)]) == pytest.approx(0.8, abs=0.05)


def test_early_band_is_that_of_replays() -> None:
    held = [share_held(np.random.default_rng(seed).choice(REPLAYED_S, 5), 0) for seed in range(100)]
    assert np.mean(held) == pytest.approx(0.8, abs=0.1)


def test_independent_replays_of_bursts_are_corrected() -> None:
    ratios = np.random.default_rng(1).choice([1.0, 1.88], 400)  # 44% longer than replayed, on average
    expected = [band_of(REPLAYED_S, ratios[at - WINDOW : at]).expected_s for at in range(WINDOW, 400)]
    assert np.mean(expected) == pytest.approx(1.44, rel=0.03)


def test_steady_rounds_have_narrow_band() -> None:
    found = band_of([1.0] * 8, [1.0] * 3)
    assert found.high_s - found.low_s == pytest.approx(2 * SAME)
    assert found.holds(1.0)


def test_single_outlier_hardly_moves_expected_time() -> None:
    usual = [0.95, 1.0, 1.05] * 6
    before, after = band_of(REPLAYED_S, usual), band_of(REPLAYED_S, [*usual, 1000.0])
    assert after.expected_s < 1.1 * before.expected_s


def test_misses_widen_their_own_side() -> None:
    """Equal ratios in another order: of a growing sequence every one is above the band of those before."""
    grows = np.linspace(0.5, 1.5, WINDOW)
    grown, shrunk = band_of(REPLAYED_S, grows), band_of(REPLAYED_S, grows[::-1])
    assert grown.high_s == pytest.approx(1.5, rel=0.01)
    assert shrunk.high_s < grown.high_s
    assert shrunk.low_s < grown.low_s


@given(
    st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8),
    st.lists(st.floats(1e-6, 1e6), max_size=WINDOW),
)
def test_any_history_gives_band_around_expected_time(replayed_s: list[float], ratios: list[float]) -> None:
    found = band_of(replayed_s, ratios)
    assert 0 < found.low_s <= found.expected_s <= found.high_s < np.inf


@pytest.mark.parametrize("limits", [(1.0, 2.0, 3.0), (4.0, 2.0, 3.0), (1.0, -1.0, 3.0), (np.nan, 1.0, 2.0)])
def test_band_beside_its_prediction_is_refused(limits: tuple[float, float, float]) -> None:
    with pytest.raises(BadSetting, match="in the band"):
        Band(*limits)
