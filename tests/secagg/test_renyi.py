"""Test the accounting of steps with sampling and of sums of discrete Gaussians."""

import math
from itertools import pairwise

import numpy as np
import pytest
from dp_accounting.privacy_loss_distribution import PrivacyLossDistribution
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.errors import BadSetting
from fedgc.secagg.renyi import ORDERS, epsilon_of_releases, noise_for_releases

DELTA = 1e-6
REFERENCE = (  # epsilons of dp-accounting 0.4.4: RdpAccountant, PLDAccountant
    ((1.0, 0.01, 1000), 2.4367, 2.1245),
    ((0.8, 0.05, 500), 14.9194, 13.5562),
    ((2.0, 0.2, 300), 11.0929, 10.3294),
    ((1.1, 256 / 60000, 14062), 2.9040, 2.6968),
    ((4.0, 1.0, 100), 15.3280, 14.4508),
    ((8.0, 1.0, 1000), 27.3848, 25.9477),
)


@pytest.mark.parametrize(("release", "by_renyi", "exact"), REFERENCE)
def test_epsilon_agrees_with_dp_accounting(release, by_renyi, exact):
    found = epsilon_of_releases([release], DELTA)
    assert found == pytest.approx(by_renyi, rel=0.01)
    assert exact < found < 1.16 * exact


def test_epsilon_of_sampled_steps_bounds_numeric_one():
    """The installed dp-accounting has no sampling, but composes any two densities."""
    noise, rate, steps = 1.0, 0.1, 30
    at = np.linspace(-8, 9, 1701)
    without, whole = (np.exp(-((at - mean) ** 2) / (2 * noise**2)) for mean in (0.0, 1.0))
    mixed = (1 - rate) * without / without.sum() + rate * whole / whole.sum()
    p, q = (dict(enumerate(np.log(each / each.sum()))) for each in (without, mixed))
    one = PrivacyLossDistribution.from_two_probability_mass_functions(
        p, q, value_discretization_interval=1e-3
    )
    exact = one.self_compose(steps).get_epsilon_for_delta(1e-5)
    assert exact < epsilon_of_releases([(noise, rate, steps)], 1e-5) < 1.25 * exact


@pytest.mark.parametrize("sites", [1, 3, 10])
def test_sum_of_discrete_gaussians_costs_no_more_than_bound(sites):
    """Numeric Renyi divergence of the sum from its shift, for the least noise that a descriptor may have."""
    steps, shift = 2.0, 3
    reach = 60 * math.ceil(math.sqrt(sites))
    at = np.arange(-reach, reach + 1)
    one = np.exp(-(at**2) / (2 * steps**2))
    total = one = one / one.sum()
    for _ in range(sites - 1):
        total = np.convolve(total, one, "same")
    noise = steps * math.sqrt(sites) / shift
    there = total > 1e-290
    for order in (1.1, 2.0, 5.0):
        p, q = total[shift:], total[:-shift]
        both = there[shift:] & there[:-shift]
        logs = order * np.log(p[both]) - (order - 1) * np.log(q[both])
        divergence = math.log(np.exp(logs).sum()) / (order - 1)
        assert divergence == pytest.approx(order / (2 * noise**2), rel=1e-4)


def test_exchanges_of_masked_run_bound_discrete_accountant():
    one = PrivacyLossDistribution.from_discrete_gaussian_mechanism(8.0, 2, value_discretization_interval=1e-3)
    exact = one.self_compose(30).get_epsilon_for_delta(DELTA)
    assert exact < epsilon_of_releases([(4.0, 1.0, 30)], DELTA) < 1.1 * exact


@given(noise=st.floats(0.4, 20), rate=st.floats(1e-3, 1), count=st.integers(1, 10_000))
@settings(max_examples=30)
def test_epsilon_grows_with_each_release_and_adds_up(noise, rate, count):
    releases = [(noise, rate, each) for each in (count, count + 1, 2 * count)]
    found = [epsilon_of_releases([each], DELTA) for each in releases]
    assert all(before <= after for before, after in pairwise(sorted(found)))
    assert epsilon_of_releases([releases[0], releases[0]], DELTA) == pytest.approx(found[2])
    assert epsilon_of_releases([(noise, 1.0, count)], DELTA) >= found[0] * (1 - 1e-9)


def test_found_noise_spends_epsilon_it_was_found_for():
    noise = noise_for_releases(2.0, 0.1, 500, 1e-5)
    assert epsilon_of_releases([(noise, 0.1, 500)], 1e-5) == pytest.approx(2.0, rel=1e-3)
    assert epsilon_of_releases([], 1e-5) == 0.0
    assert ORDERS.min() > 1
    with pytest.raises(BadSetting, match=r"epsilon: saw 0.001, needed more"):
        noise_for_releases(0.001, 0.1, 500, 1e-5)
