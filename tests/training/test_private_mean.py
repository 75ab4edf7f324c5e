import math

import numpy as np
import pytest
from dp_accounting.privacy_loss_distribution import PrivacyLossDistribution
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, EdgeFailed, Refused
from fedgc.training.private_mean import PrivateMean

SIZE = 20_000
KEY = bytes(range(32))


def rule_of(**own: object) -> PrivateMean:
    """A rule whose noise is the same every time."""
    return PrivateMean(RunConfig(**{f"privacy_{name}": each for name, each in own.items()}), lambda _: KEY)


def mean_of(rule: PrivateMean, updates: list[np.ndarray]) -> np.ndarray:
    for number, update in enumerate(updates):
        rule.add(f"client {number}", 1.0 + 900 * number, update)
    mean = rule.result()
    assert mean is not None
    return mean.astype(np.float64)


def partial_updates(clients: int, seed: int) -> list[np.ndarray]:
    """Updates after between none and all of 16 steps, the longest far above any clip."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 17, clients) ** 2 / 8
    steps = rng.standard_normal((clients, SIZE)) / math.sqrt(SIZE)
    return [(length * step).astype(np.float32) for length, step in zip(lengths, steps, strict=True)]


@given(clients=st.integers(1, 6), seed=st.integers(0, 2**32), clip=st.sampled_from([0.01, 1.0, 40.0]))
@settings(max_examples=25)
def test_sums_of_adjacent_cohorts_differ_by_clip_at_most(clients, seed, clip):
    """The update of one client is there, or zeros are in its place; the noise is the same in both."""
    updates = partial_updates(clients, seed)
    longest = max(range(clients), key=lambda each: float(np.linalg.norm(updates[each])))
    without = [np.zeros_like(u) if w == longest else u for w, u in enumerate(updates)]
    sums = [clients * mean_of(rule_of(noise=0.5, clip=clip), each) for each in (updates, without)]
    distance = np.linalg.norm(sums[0] - sums[1])
    noise = 1e-6 * clip * math.sqrt(SIZE)  # of float32
    assert distance == pytest.approx(min(clip, np.linalg.norm(updates[longest])), abs=noise)


@pytest.mark.parametrize("quantile", [0.0, 0.5])
def test_mean_has_promised_noise(quantile):
    rule = rule_of(noise=2.0, clip=3.0, clip_quantile=quantile)
    mean = mean_of(rule, [np.zeros(SIZE, np.float32)] * 5)
    deviation = 2.0 * 3.0 / 5 / math.sqrt(1 - (0.05 if quantile else 0))
    assert abs(mean.std() / deviation - 1) < 5 / math.sqrt(2 * SIZE)
    assert abs(mean.mean()) < 5 * deviation / math.sqrt(SIZE)


def test_noise_with_which_no_exchange_is_possible_is_refused():
    why = r"privacy.noise: saw 0.01, needed at least 1.544: .* more than privacy.epsilon \(3\)"
    with pytest.raises(BadSetting, match=why):
        rule_of(noise=0.01, epsilon=3.0)
    assert rule_of(noise=1.544, epsilon=3.0).ending == ""
    with pytest.raises(BadSetting, match=r"privacy\.noise: saw 1\.543"):
        rule_of(noise=1.543, epsilon=3.0)


def test_noise_of_updates_and_count_make_one_exchange():
    """The joint mechanism: the updates within the clip, and the count, each over its noise."""
    rule = rule_of(noise=1.5, clip_quantile=0.5)
    deviations = []
    made = rule._gaussian
    rule._gaussian = lambda deviation: deviations.append(deviation) or made(deviation)
    mean_of(rule, [np.ones(4, np.float32)])
    of_updates, of_count = deviations
    assert (1.0 / of_updates) ** 2 + (1.0 / of_count) ** 2 == pytest.approx(1.5**-2)


@pytest.mark.parametrize("quantile", [0.3, 0.8])
def test_clip_follows_quantile_of_norms(quantile):
    rng = np.random.default_rng(3)
    rule = PrivateMean(
        RunConfig(privacy_noise=1.0, privacy_clip=2.0, privacy_clip_quantile=quantile), rng.bytes
    )
    norms = np.linspace(2, 6, 200)
    clips = []
    for _ in range(60):
        mean_of(rule, [np.float32([norm, 0]) for norm in norms])
        clips.append(rule.clip)
    assert np.mean(clips[-20:]) == pytest.approx(np.quantile(norms, quantile), rel=0.1)


@pytest.mark.parametrize(
    ("noise", "exchanges", "delta"), [(1.0, 1, 1e-5), (4.0, 100, 1e-6), (8.0, 300, 1e-6)]
)
def test_epsilon_agrees_with_dp_accounting_to_one_percent(noise, exchanges, delta):
    rule = rule_of(noise=noise, delta=delta)
    for _ in range(exchanges):
        mean_of(rule, [np.ones(1, np.float32)])
    one = PrivacyLossDistribution.from_gaussian_mechanism(noise, value_discretization_interval=5e-4)
    expected = one.self_compose(exchanges).get_epsilon_for_delta(delta)
    assert rule.figures["epsilon"] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("gate", [{}, {"gate": "every", "gate_period": 4}, {"gate": "pace"}])
def test_auto_noise_spends_epsilon_in_all_exchanges(gate):
    config = RunConfig(rounds=10, privacy_epsilon=3.0, **gate)
    rule = PrivateMean(config, lambda _: KEY)
    for _ in range(config.most_exchanges):
        mean_of(rule, [np.ones(2, np.float32)])
    assert rule.figures["epsilon"] == pytest.approx(3.0, rel=1e-6)
    assert "the privacy budget is spent" in rule.ending


def test_exchange_beyond_budget_is_refused():
    rule = rule_of(noise=1.0, epsilon=6.0)
    spent = 0
    while not rule.ending:
        mean_of(rule, [np.ones(2, np.float32)])
        spent += 1
    before = rule.figures
    rule.add("late", 1.0, np.ones(2, np.float32))
    with pytest.raises(Refused, match="needed at most 6 "):
        rule.result()
    assert spent == 1
    assert rule.figures == before
    assert rule.result() is None


def test_round_without_updates_spends_nothing():
    rule = rule_of(noise=1.0)
    rule.add("a", 1.0, np.ones(2, np.float32))
    rule.clear()
    assert rule.result() is None
    assert rule.figures == {"epsilon": 0.0}


def test_resumed_rule_continues_with_spent_and_clip():
    first, second = (rule_of(noise=1.0, clip_quantile=0.5) for _ in range(2))
    mean_of(first, [np.ones(9, np.float32)])
    second.restore(first.text())
    assert second.figures == first.figures
    assert second.clip == first.clip != 1.0


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("", BadSetting, "began without privacy"),
        ("{", EdgeFailed, "cannot be read"),
        ('{"spent": -1, "clip": 1}', EdgeFailed, "needed finite numbers"),
    ],
)
def test_state_of_other_run_is_refused(text, error, said):
    with pytest.raises(error, match=said):
        rule_of(noise=1.0).restore(text)


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("work", {"work": "coded"}),
        ("aggregation.rule", {"aggregator": "median"}),
        ("aggregation.samples", {"samples": "north=5"}),
        ("data.placement", {"placement": "scattered", "replicas": 1}),
        ("gate.name", {"gate": "drift"}),
        ("links.fragments", {"fragments": 2, "link": "session"}),
        ("optimizer.shared-momentum", {"shared_momentum": 0.1}),
        ("validate.best", {"best": "loss"}),
        ("client.app", {"client_app": "stock"}),
    ],
)
def test_setting_that_breaks_privacy_is_refused(key, other):
    with pytest.raises(BadSetting, match=rf"setting {key}: .* with privacy.noise or privacy.epsilon"):
        RunConfig(privacy_noise=1.0, **other)


def test_private_run_has_no_shared_momentum_and_exchanges_every_round():
    private = RunConfig(privacy_epsilon=2.0, rounds=300)
    assert (private.alpha, private.chosen_gate) == (1.0, "every")
