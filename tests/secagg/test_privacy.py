import math
from statistics import NormalDist

import numpy as np
import pytest
from dp_accounting.privacy_loss_distribution import PrivacyLossDistribution
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedgc.errors import BadMessage, BadSetting, BadVector
from fedgc.secagg import MaskedVector, Privacy, Quantizer, RingSum
from fedgc.secagg.masked_vector import Shield
from fedgc.secagg.privacy import NOISE_BLOCK, DiscreteGaussian, Gaussian, delta_of, epsilon

SPENT = Privacy(clip=1.0, noise=4.0, exchanges=2, delta=1e-6)


@given(mu=st.floats(0.05, 4), eps=st.floats(0, 8))
def test_delta_is_largest_excess_of_probability(mu, eps):
    """Slow reference: the positive part of p - e^eps q, summed over a fine grid of outputs."""
    outputs = np.linspace(-12 - mu, 12 + mu, 400_001)
    p, q = (np.exp(-((outputs - at) ** 2) / 2) / math.sqrt(2 * math.pi) for at in (mu, 0))
    excess = np.maximum(p - math.exp(eps) * q, 0).sum() * (outputs[1] - outputs[0])
    assert delta_of(eps, mu) == pytest.approx(excess, abs=2e-6)


@given(noise=st.floats(0.3, 50), exchanges=st.integers(1, 5000), power=st.integers(-12, -1))
@settings(max_examples=40)
def test_epsilon_is_least_value_that_keeps_delta(noise, exchanges, power):
    delta, mu = 10.0**power, math.sqrt(exchanges) / noise
    found = epsilon(noise, exchanges, delta)
    assert found == 0 or delta_of(found, mu) <= delta < delta_of(found * (1 - 1e-6), mu) * (1 + 1e-6)


@pytest.mark.parametrize("delta", [0.0, 0.011, 0.5, math.nan])
def test_delta_outside_range_is_refused(delta):
    with pytest.raises(BadSetting, match=r"delta: saw .*, needed above 0 and at most 0.01"):
        Privacy(clip=1.0, noise=4.0, exchanges=2, delta=delta)


def test_small_delta_is_neither_lost_nor_negative():
    values = [delta_of(eps, 3.0) for eps in (10.0, 30.0, 60.0, 100.0)]
    assert values == sorted(values, reverse=True)
    assert all(value >= 0 for value in values)
    assert values[0] == pytest.approx(
        NormalDist().cdf(1.5 - 10 / 3) - math.exp(10) * NormalDist().cdf(-1.5 - 10 / 3), rel=1e-6
    )


def test_noise_is_gaussian_with_stated_deviation():
    source = Gaussian(3.0, b"noise" + bytes(27))
    noise = np.concatenate([source.next(count) for count in [NOISE_BLOCK] * 25 + [1]])
    assert abs(noise.mean()) < 5 * 3 / math.sqrt(noise.size)
    assert abs(noise.std() - 3) < 5 * 3 / math.sqrt(2 * noise.size)
    for at in (-1.0, 0.0, 0.5, 2.0):
        share, true = float((noise / 3 <= at).mean()), NormalDist().cdf(at)
        assert abs(share - true) < 5 * 0.5 / math.sqrt(noise.size)
    assert len(np.unique(noise)) > 0.9 * noise.size


@pytest.mark.parametrize("deviation", [2.0, 7.3])
def test_discrete_noise_has_stated_distribution(deviation):
    """Chi-square against the probabilities; the numbers come in parts of any size."""
    source = DiscreteGaussian(deviation, b"noise" + bytes(27))
    drawn = np.concatenate([source.next(count) for count in (1, 99_999, 100_000)])
    at = np.arange(-12 * math.ceil(deviation), 12 * math.ceil(deviation) + 1)
    expected = np.exp(-(at**2) / (2 * deviation**2))
    expected *= drawn.size / expected.sum()
    seen = np.array([(drawn == each).sum() for each in at])
    often = expected > 10
    freedom = int(often.sum())
    chi_square = float(((seen - expected) ** 2 / expected)[often].sum())
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)
    assert seen.sum() == drawn.size


def test_discrete_noise_of_many_steps_is_gaussian():
    source = DiscreteGaussian(1e6 + 0.5, b"noise" + bytes(27))
    drawn = source.next(100_000) / source.deviation
    for at in (-2.0, -1.0, 0.0, 0.5):
        assert abs(float((drawn <= at).mean()) - NormalDist().cdf(at)) < 5 * 0.5 / math.sqrt(drawn.size)
    assert len(np.unique(drawn)) > 0.9 * drawn.size


def clipped(privacy, update):
    return update * privacy.shortening(update)


@given(
    length=st.floats(0.1, 10),
    size=st.integers(1, 3000),
    bits=st.sampled_from([4, 8, 20]),
    seed=st.integers(0),
)
@settings(max_examples=50)
def test_rounded_update_stays_within_sensitivity(length, size, bits, seed):
    """Clipped and rounded to steps, an update has at most the norm that the noise is made for."""
    quantizer, privacy = Quantizer(1.0, bits, 32, 1), Privacy(0.5, 1.0, 1, 1e-6)
    rng = np.random.default_rng(seed)
    update = rng.standard_normal(size)
    update = (update * length / np.linalg.norm(update)).astype(np.float32)
    words = MaskedVector(quantizer, clipped(privacy, update), 1, (), bytes([seed % 256]) * 32)[:]
    norm = np.linalg.norm(words[:size].view(np.int32).astype(np.float64))
    assert norm <= privacy.own_noise(1, quantizer.step, size)


def test_each_site_adds_noise_share_and_sum_has_full_noise(kit):
    privacy = Privacy(clip=0.01, noise=2.0, exchanges=5, delta=1e-6)
    group = kit.make(4, privacy=privacy, quantizer=kit.replace(kit.quantizer, w_max=1))
    size = 50_000
    updates = {m: np.zeros(size, np.float32) for m in range(4)}
    mean, _, _ = group.run(group.set_up(), 1, updates, dict.fromkeys(range(4), 1))
    total = 4 * mean.astype(np.float64)  # four sites, each a third of the variance at a quorum of 3
    deviation = deviation_of(kit.federation(4, privacy=privacy, quantizer=kit.quantizer), size, 4)
    assert deviation == pytest.approx(2.0 * 0.01 * math.sqrt(4 / 3), rel=0.05)
    assert abs(total.std() - deviation) < 5 * deviation / math.sqrt(2 * size) + 1e-5
    assert not updates[0].any()  # the caller's vector is not touched


def deviation_of(federation, size, count):
    """The deviation of the noise in a sum of `count` sites."""
    return federation.noise_steps(size) * federation.quantizer.step * math.sqrt(count)


def released(kit, count, quantizer, privacy, updates, n_min=3):
    """The sum that the server learns, less the true sum of the clipped updates."""
    group = kit.make(count, n_min=n_min, quantizer=quantizer, privacy=privacy)
    weights = dict.fromkeys(range(count), quantizer.w_max)
    mean, weight, _ = group.run(group.set_up(), 1, updates, weights)
    assert weight == count * quantizer.w_max
    clip = quantizer.clip
    return count * mean.astype(np.float64) - sum(
        np.clip(clipped(privacy, u).astype(np.float64), -clip, clip) for u in updates.values()
    )


def mixed(count, size, clip):
    """Site 0 has values in and beyond the clip; all others are at its edge, above or below."""
    rng = np.random.default_rng(count)
    edge = np.where(rng.random(size) < 0.5, -clip, clip)
    first = rng.uniform(-3 * clip, 3 * clip, size)
    return {m: (edge * 2 if m else first).astype(np.float32) for m in range(count)}


@pytest.mark.parametrize(
    ("count", "n_min", "quantizer", "site_clip", "noise"),
    [
        (3, 3, Quantizer(clip=1.0, bits=20, ring=32, w_max=1), 1.0, 4.0),
        (10, 10, Quantizer(clip=1.0, bits=20, ring=32, w_max=100), 0.05, 4.0),
        (10, 3, Quantizer(clip=1.0, bits=20, ring=32, w_max=1), 0.05, 4.0),
        (4, 3, Quantizer(clip=0.5, bits=8, ring=16, w_max=7), 0.5, 2.0),
    ],
)
def test_released_noise_matches_epsilon_accounting(kit, count, n_min, quantizer, site_clip, noise):
    """The sum of any sites that may be in it carries at least the noise that is accounted for."""
    size, privacy = 40_000, Privacy(site_clip, noise, 5, 1e-6)
    rest = released(kit, count, quantizer, privacy, mixed(count, size, quantizer.clip), n_min)
    pinned = kit.federation(count, n_min=n_min, quantizer=quantizer, privacy=privacy)
    deviation = deviation_of(pinned, size, count)
    assert deviation >= noise * site_clip
    near = 5 / math.sqrt(2 * size)
    assert 1 - near < rest.std() / deviation < 1 + near + count * (quantizer.step / deviation) ** 2
    assert abs(rest.mean()) < 5 * deviation / math.sqrt(size)
    for at in (-3.0, -1.0, 0.0, 2.0):
        share, true = float((rest / deviation <= at).mean()), NormalDist().cdf(at)
        assert abs(share - true) < 5 * 0.5 / math.sqrt(size)


@given(
    count=st.integers(3, 12),
    clip=st.sampled_from([0.01, 1.0, 30.0]),
    form=st.sampled_from([(20, 32), (22, 32), (8, 16), (4, 16)]),
    reach=st.floats(0.01, 3),
    noise=st.floats(0.3, 30),
    at=st.floats(-4, 4),
)
@settings(max_examples=60)
def test_accepted_descriptor_loses_no_noise(kit, count, clip, form, reach, noise, at):
    """The sum has the promised deviation for any pinned settings and any values."""
    (bits, ring), size = form, 4000
    quantizer, privacy = Quantizer(clip, bits, ring, 1), Privacy(reach * clip, noise, 5, 1e-6)
    try:
        pinned = kit.federation(count, quantizer=quantizer, privacy=privacy)
        pinned.check_noise(size)
    except BadSetting:
        assume(False)
    total = RingSum(quantizer, size)
    for member in range(count):
        shield = Shield(np.float32(1), pinned.noise_steps(size), bytes([member]) * 32)
        update = np.full(size, at * clip, np.float32)
        total.add(MaskedVector(quantizer, update, 1, (), bytes([99 - member]) * 32, shield))
    mean, _ = total.mean()
    promised = deviation_of(pinned, size, count)
    assert count * mean.astype(np.float64).std() > promised * (1 - 6 / math.sqrt(2 * size))
    true = min(max(at, -1), 1) * clip
    assert (
        abs(mean.astype(np.float64).mean() - true)
        < 6 * promised / count / math.sqrt(size) + quantizer.step / 256
    )


@pytest.mark.parametrize(
    ("quantizer", "privacy", "said"),
    [
        (Quantizer(1.0, 4, 8, 1), Privacy(1.0, 4.0, 5, 1e-6), "needs more than 8 bits"),
        (Quantizer(1e-4, 20, 32, 1), Privacy(1.0, 400.0, 5, 1e-6), "needs more than 32 bits"),
        (Quantizer(1.0, 4, 32, 1), Privacy(0.01, 0.5, 5, 1e-6), "more bits, a smaller clip, or more noise"),
    ],
)
def test_ring_too_small_for_noise_is_refused(kit, quantizer, privacy, said):
    kit.federation(4, quantizer=quantizer)
    with pytest.raises(BadSetting, match=said):
        kit.federation(4, quantizer=quantizer, privacy=privacy)


def test_site_shortens_its_update_to_clip_before_noise(kit):
    """Whatever a site has computed, it moves the sum by at most the clip, with the noise as promised."""
    privacy, size = Privacy(0.05, 0.5, 5, 1e-6), 40_000
    quantizer = Quantizer(clip=1.0, bits=22, ring=32, w_max=7)
    short, long, zeros = (np.zeros(size, np.float32) for _ in range(3))
    short[0], long[1] = 0.04, 0.9
    rest = released(kit, 3, quantizer, privacy, {0: short, 1: long, 2: zeros})
    deviation = deviation_of(kit.federation(3, quantizer=quantizer, privacy=privacy), size, 3)
    assert deviation == pytest.approx(0.5 * 0.05, rel=0.01)
    assert abs(rest[2:].std() / deviation - 1) < 5 / math.sqrt(2 * size)
    assert abs(rest[0]) < 6 * deviation
    assert abs(rest[1]) < 6 * deviation


@pytest.mark.parametrize("length", [0.0, 0.5, 1.0, 1e6])
def test_clipped_update_of_site_has_norm_of_clip_at_most(length):
    update = np.full(100, length / 10, np.float32)
    short = clipped(Privacy(1.0, 4.0, 5, 1e-6), update).astype(np.float64)
    assert np.linalg.norm(short) == pytest.approx(min(length, 1), rel=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_update_that_is_not_finite_counts_as_zeros(kit, value):
    group = kit.make(3, privacy=SPENT)
    group.begin(group.set_up(), 1, range(3), 5)
    client = group.sites[0].client
    bad = np.float32([1, value, 0, 0, 0])
    sent, zeros = (
        client.upload(update, 1000, client.state.start, bytes(32))[1][-1].content[:]
        for update in (bad, np.zeros_like(bad))
    )
    assert np.array_equal(sent, zeros)


def test_update_too_long_for_noise_in_ring_is_refused(kit):
    """Rounding moves each number, so a ring that has room for few numbers may have none for many."""
    quantizer, privacy = Quantizer(1.0, 8, 16, 1), Privacy(0.5, 4.0, 5, 1e-6)
    group = kit.make(3, quantizer=quantizer, privacy=privacy)
    with pytest.raises(BadMessage, match=r"begin: noise: saw .* for 10000000 numbers"):
        group.begin(group.set_up(), 1, range(3), 10_000_000)


def test_weight_that_reveals_record_count_is_refused(kit):
    group = kit.make(3, privacy=SPENT)
    epoch = group.set_up()
    group.begin(epoch, 1, range(3), 5)
    with pytest.raises(BadVector, match="would tell of data"):
        group.sites[0].upload(np.zeros(5, np.float32), 999)


def test_site_stops_when_agreed_epsilon_is_spent(kit):
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
def test_invalid_settings_are_refused(pinned):
    with pytest.raises(BadSetting):
        Privacy(*pinned)


@pytest.mark.parametrize(("noise", "exchanges"), [(4.0, 100), (8.0, 300), (1.0, 1)])
def test_independent_accountant_agrees(noise, exchanges):
    """dp-accounting uses discrete losses, rounded up and down; the true value is in between."""
    bounds = []
    for pessimistic in (False, True):
        one = PrivacyLossDistribution.from_gaussian_mechanism(
            noise, pessimistic_estimate=pessimistic, value_discretization_interval=2e-4
        )
        bounds.append(one.self_compose(exchanges).get_epsilon_for_delta(1e-6))
    low, high = bounds
    assert low <= epsilon(noise, exchanges, 1e-6) <= high
    assert high - low < 0.07
