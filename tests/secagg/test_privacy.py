import math
from statistics import NormalDist

import numpy as np
import pytest
from dp_accounting.privacy_loss_distribution import PrivacyLossDistribution
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.errors import BadMessage, BadSetting, BadVector
from fedgc.secagg import Privacy, clip_factors
from fedgc.secagg.privacy import add_noise, delta_of, epsilon

SPENT = Privacy(record_clip=1.0, noise=4.0, exchanges=2, delta=1e-6)


@given(mu=st.floats(0.05, 4), eps=st.floats(0, 8))
def test_delta_is_the_worst_excess_of_probability(mu, eps):
    """The slow twin: the positive part of p - e^eps q, summed over a fine grid of outputs."""
    outputs = np.linspace(-12 - mu, 12 + mu, 400_001)
    p, q = (np.exp(-((outputs - at) ** 2) / 2) / math.sqrt(2 * math.pi) for at in (mu, 0))
    excess = np.maximum(p - math.exp(eps) * q, 0).sum() * (outputs[1] - outputs[0])
    assert delta_of(eps, mu) == pytest.approx(excess, abs=2e-6)


@given(noise=st.floats(0.3, 50), exchanges=st.integers(1, 5000), power=st.integers(-12, -1))
@settings(max_examples=40)
def test_epsilon_is_the_least_that_keeps_delta(noise, exchanges, power):
    delta, mu = 10.0**power, math.sqrt(exchanges) / noise
    found = epsilon(noise, exchanges, delta)
    assert found == 0 or delta_of(found, mu) <= delta < delta_of(found * (1 - 1e-6), mu) * (1 + 1e-6)


def test_delta_far_out_is_neither_lost_nor_negative():
    values = [delta_of(eps, 3.0) for eps in (10.0, 30.0, 60.0, 100.0)]
    assert values == sorted(values, reverse=True)
    assert all(value >= 0 for value in values)
    assert values[0] == pytest.approx(
        NormalDist().cdf(1.5 - 10 / 3) - math.exp(10) * NormalDist().cdf(-1.5 - 10 / 3), rel=1e-6
    )


def test_clipped_records_have_at_most_the_norm():
    norms = np.array([0.0, 1e-30, 0.9, 1.0, 7.0, 3e38], np.float32)
    factors = clip_factors(norms, 1.0)
    assert (factors * norms <= 1 + 1e-6).all()
    assert factors[:4].tolist() == [1.0] * 4
    with pytest.raises(BadSetting, match="not finite"):
        clip_factors(np.array([np.nan], np.float32), 1.0)


def test_noise_is_gaussian_of_the_stated_deviation():
    noise = np.zeros(200_001, np.float32)
    add_noise(noise, 3.0, b"noise" + bytes(27))
    assert abs(noise.mean()) < 5 * 3 / math.sqrt(noise.size)
    assert abs(noise.std() - 3) < 5 * 3 / math.sqrt(2 * noise.size)
    for at in (-1.0, 0.0, 0.5, 2.0):
        share, true = float((noise / 3 <= at).mean()), NormalDist().cdf(at)
        assert abs(share - true) < 5 * 0.5 / math.sqrt(noise.size)
    assert len(np.unique(noise)) > 0.9 * noise.size


def test_each_institution_adds_its_part_of_the_noise_and_the_sum_has_it_all(kit):
    privacy = Privacy(record_clip=0.01, noise=2.0, exchanges=5, delta=1e-6)
    group = kit.make(4, privacy=privacy, quantiser=kit.replace(kit.quantiser, w_max=1))
    size = 50_000
    updates = {m: np.zeros(size, np.float32) for m in range(4)}
    mean, _, _ = group.run(group.set_up(), 1, updates, dict.fromkeys(range(4), 1))
    total = 4 * mean.astype(np.float64)  # four institutions, each a third of the variance at n_min = 3
    deviation = 2.0 * 0.01 * math.sqrt(4 / 3)
    assert abs(total.std() - deviation) < 5 * deviation / math.sqrt(2 * size) + 1e-5
    assert not updates[0].any()  # the caller's vector is not touched


def test_a_weight_that_tells_of_records_is_refused(kit):
    group = kit.make(3, privacy=SPENT)
    epoch = group.set_up()
    group.begin(epoch, 1, range(3), 5)
    with pytest.raises(BadVector, match="would tell of records"):
        group.sites[0].upload(np.zeros(5, np.float32), 999)


def test_an_institution_stops_when_the_agreed_epsilon_is_spent(kit):
    group = kit.make(3, privacy=SPENT)
    updates, weights = {m: np.zeros(5, np.float32) for m in range(3)}, dict.fromkeys(range(3), 1000)
    for epoch in (1, 2):
        group.run(group.set_up(epoch), 1, updates, weights)
        for site in group.sites:
            site.restart()
    with pytest.raises(BadMessage, match="the agreed epsilon is spent"):
        group.begin(group.set_up(3), 1, range(3), 5)


@pytest.mark.parametrize(
    "pinned", [(0.0, 1.0, 1, 0.1), (1.0, 0.0, 1, 0.1), (1.0, 1.0, 0, 0.1), (1.0, 1.0, 1, 1.0)]
)
def test_settings_that_cannot_be_are_refused(pinned):
    with pytest.raises(BadSetting):
        Privacy(*pinned)


@pytest.mark.parametrize(("noise", "exchanges"), [(2.0, 100), (4.0, 100), (8.0, 300), (1.0, 1)])
def test_an_independent_accountant_says_the_same(noise, exchanges):
    """dp-accounting computes with discrete losses: once rounded up, once down; the truth lies between."""
    bounds = []
    for pessimistic in (False, True):
        one = PrivacyLossDistribution.from_gaussian_mechanism(
            noise, pessimistic_estimate=pessimistic, value_discretization_interval=2e-4
        )
        bounds.append(one.self_compose(exchanges).get_epsilon_for_delta(1e-6))
    low, high = bounds
    assert low <= epsilon(noise, exchanges, 1e-6) <= high
    assert high - low < 0.07
