"""Test the limit of the share of samples that large clients count for."""

from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.round.local.weights import bounded_weights

SAMPLES = st.lists(st.integers(1, 10**15), min_size=3, max_size=9)


@given(SAMPLES, st.floats(0.05, 0.95))
def test_large_clients_together_have_limited_share(samples, largest):
    weights = bounded_weights(dict(enumerate(samples)), largest)
    least = 2 * median_low(samples)
    large = [w for w, each in enumerate(samples) if each > least]
    share = sum(weights[w] for w in large) / sum(weights.values())
    assert share <= largest * (1 + 1e-9) or any(weights[w] == least for w in large)
    assert all(least <= weights[w] <= samples[w] for w in large)
    assert all(weights[w] == each for w, each in enumerate(samples) if w not in large)


@given(st.lists(st.integers(1, 10**15), min_size=1, max_size=2), st.floats(0.05, 1.0))
def test_two_clients_count_as_announced(samples, largest):
    assert list(bounded_weights(dict(enumerate(samples)), largest).values()) == samples


def test_hospital_with_half_of_data_counts_in_full():
    assert bounded_weights(dict(enumerate([700] + [100] * 7)), 0.5)[0] == 700


@pytest.mark.parametrize("liars", [1, 2, 3])
def test_false_claims_of_minority_have_half_of_weight(liars):
    weights = bounded_weights(dict(enumerate([10**15] * liars + [100] * (8 - liars))), 0.5)
    claimed = sum(weights[w] for w in range(liars))
    assert claimed / sum(weights.values()) <= max(0.5, 2 * liars / (8 + liars)) + 1e-9


@given(SAMPLES, st.floats(0.05, 0.95))
def test_pinned_clients_count_in_full(samples, largest):
    pinned = {0, len(samples) - 1}
    weights = bounded_weights(dict(enumerate(samples)), largest, pinned)
    assert all(weights[w] == samples[w] for w in pinned)
