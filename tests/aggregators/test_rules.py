"""Test the shipped aggregation rules against hand-computed numbers and with a hostile update."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.aggregators import CollectingRule, make_rule, rule_named, rule_summaries
from fedgc.aggregators.bounded_mean import HELD
from fedgc.aggregators.collecting import TILE
from fedgc.aggregators.latest_distances import ROUNDS
from fedgc.errors import BadSetting, Refused
from fedgc.plugins import available

RULES = available("fedgc.aggregators")
ROBUST = ("bounded-mean", "trimmed-mean", "median", "krum", "multi-krum")


def result(rule, *updates, weights=None):
    """Return the rule's aggregate of these updates."""
    for at, update in enumerate(updates):
        rule.add(f"client {at}", weights[at] if weights else 1.0, np.array(update, np.float32))
    return rule.result()


def honest(count: int, size: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    common = rng.normal(size=size)
    return [(common + 0.1 * rng.normal(size=size)).astype(np.float32) for _ in range(count)]


def test_shipped_rules_are_found():
    assert set(RULES) >= {"weighted-mean", *ROBUST}
    for name in ("weighted-mean", *ROBUST):
        assert f"{name}: {rule_named(name).summary}" in rule_summaries()


# ---- numbers by hand


def test_weighted_mean_divides_by_samples():
    assert result(make_rule("weighted-mean"), [1, 4], [5, 0], weights=[30, 10]).tolist() == [2, 3]


def test_bounded_mean_scales_long_update():
    updates = [[3, 4], [0, 5], [60, 80]]  # norms 5, 5, 100; the bound is 2 * 5
    mean = result(make_rule("bounded-mean", "factor=2"), *updates, weights=[1, 1, 2])
    np.testing.assert_allclose(mean, [(3 + 0 + 2 * 6) / 4, (4 + 5 + 2 * 8) / 4], rtol=1e-6)


def test_bounded_mean_measures_from_last_mean():
    rule = make_rule("bounded-mean", "factor=2")
    assert result(rule, [10, 0], [10, 0], [10, 0]).tolist() == [10, 0]
    # Distances from (10, 0) are 1, 2 and 20: the last one counts with 4 of its 20.
    mean = result(rule, [11, 0], [10, 2], [-10, 0])
    np.testing.assert_allclose(mean, [10 + (1 + 0 - 4) / 3, 2 / 3], rtol=1e-6)
    assert rule.outliers == {}
    result(rule, mean, mean + np.float32(1), mean - np.float32(1), mean - np.float32(100))
    assert list(rule.outliers) == ["client 3"]


def rounds_of(rule, clients, updates):
    for client, update in zip(clients, updates, strict=True):
        rule.add(client, 1.0, np.float32(update))
    return rule.result()


QUICK, NEAR = ["a", "b", "c"], [[1, 0], [1, 0.1], [1, -0.1]]
LATE, FAR = ["d", "e", "f", "g"], [1, 5]


def test_bounded_mean_measures_late_updates_by_those_of_all_clients():
    """Three quick clients are alike, and four others, of which one comes at a time, are far from them."""
    rule = make_rule("bounded-mean", "factor=1.5")
    rounds_of(rule, [*QUICK, *LATE], [*NEAR, *[FAR] * 4])
    for late in LATE:
        rounds_of(rule, [*QUICK, late], [*NEAR, FAR])
        assert rule.outliers == {}
    rounds_of(rule, [*QUICK, "d"], [*NEAR, [1, 500]])
    assert list(rule.outliers) == ["d"]


def test_bounded_mean_forgets_distances_of_clients_that_are_away():
    rule = make_rule("bounded-mean", "factor=1.5")
    rounds_of(rule, [*QUICK, *LATE], [*NEAR, *[FAR] * 4])
    for _ in range(ROUNDS):
        rounds_of(rule, QUICK, NEAR)
    rounds_of(rule, [*QUICK, "d"], [*NEAR, FAR])
    assert list(rule.outliers) == ["d"]


def test_bounded_mean_bounds_buffers_by_themselves():
    """One number of a buffer is false: it is bounded by the buffers of others, and the parameters count."""
    rule = make_rule("bounded-mean", "factor=2")
    rule.buffers = 2
    parameters, buffers = [30, 40], [0.3, 0.4]
    for _ in range(3):  # from the common model, also once there is a last mean
        mean = result(
            rule, [*parameters, *buffers], [*parameters, *buffers], [*parameters, 0, 0], [30, 40, 0, 9]
        )
        np.testing.assert_allclose(mean, [30, 40, 0.6 / 4, (0.8 + 1) / 4], rtol=1e-6)
        assert list(rule.outliers) == ["client 3"]


def test_bounded_mean_of_buffers_alone_is_bounded():
    """As that of a fragment without parameters."""
    rule = make_rule("bounded-mean", "factor=2")
    rule.buffers = 2
    np.testing.assert_allclose(result(rule, [3, 4], [0, 5], [60, 80]), [9 / 3, 17 / 3], rtol=1e-6)


def test_bounded_mean_goes_on_with_bound_of_buffers():
    rule, other = (make_rule("bounded-mean", "factor=2") for _ in range(2))
    rule.buffers = other.buffers = 2
    result(rule, *honest(4, 6))
    other.recall(rule.memory())
    few = [np.float32(50) * each for each in honest(2, 6, seed=1)]
    np.testing.assert_array_equal(result(rule, *few), result(other, *few))


def test_bounded_mean_of_many_goes_on_with_bound_of_buffers():
    rule, other = (make_rule("bounded-mean", "factor=2") for _ in range(2))
    rule.buffers = other.buffers = 2
    result(rule, *honest(12, 6))
    other.recall(rule.memory())
    many = [np.float32(1 + 50 * (client == 11)) * each for client, each in enumerate(honest(12, 6, seed=1))]
    np.testing.assert_array_equal(result(rule, *many), result(other, *many))


def test_bounded_mean_of_similar_updates_is_weighted_mean():
    updates, weights = honest(5, 50), [1.0, 2.0, 3.0, 4.0, 5.0]
    expected = np.average(updates, axis=0, weights=weights)
    bounded = result(make_rule("bounded-mean"), *updates, weights=weights)
    np.testing.assert_allclose(bounded, expected, rtol=1e-5, atol=1e-6)


@given(st.integers(1, 2), st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_bounded_mean_of_two_is_weighted_mean(count, seed):
    rng, rule = np.random.default_rng(seed), make_rule("bounded-mean", "factor=0.1")
    for _ in range(3):
        updates, weights = rng.normal(size=(count, 5)), rng.uniform(1, 9, count).tolist()
        expected = np.average(updates, axis=0, weights=weights)
        np.testing.assert_allclose(result(rule, *updates, weights=weights), expected, rtol=1e-4, atol=1e-5)


def test_bounded_mean_of_few_has_bound_of_last_round():
    """A quick client that makes a round alone, or with one other, counts no more than before."""
    rule = make_rule("bounded-mean", "factor=2")
    common = result(rule, [1, 0], [1, 0], [1, 0], [1, 0])
    result(rule, [1, 1], [1, -1], [1, 1])
    before = result(rule, [1, 0])
    assert abs(before - common).max() <= 2
    for _ in range(3):
        alone = result(rule, [-50, 0])
        assert np.linalg.norm(alone - before) == pytest.approx(2.0)
        assert rule.outliers == {"client 0": pytest.approx(0.04, abs=0.01)}
        before = alone


def test_bounded_mean_accepts_updates_of_zeros():
    assert result(make_rule("bounded-mean"), [0, 0], [0, 0], [0, 0], [3, 0]).tolist() == [0.75, 0]


def test_bounded_mean_of_many_holds_few_updates():
    updates, rule = honest(40, 50), make_rule("bounded-mean")
    hostile = {3, 17, 30}
    for at, update in enumerate(updates):
        rule.add(f"client {at}", 1.0, -1e6 * update if at in hostile else update)
        assert len(rule._held) <= HELD
    fair = np.mean(updates, axis=0)
    assert np.linalg.norm(rule.result() - fair) < 0.3 * np.linalg.norm(fair)
    assert set(rule.outliers) == {f"client {at}" for at in hostile}


def test_bounded_mean_goes_on_after_infinite_mean():
    rule = make_rule("bounded-mean")
    with np.errstate(over="ignore"):
        assert not np.isfinite(result(rule, [3e38, 1], [1, 1], weights=[100, 1])).all()
    assert result(rule, [1, 2], [1, 2], [1, 2]).tolist() == [1, 2]


def test_bounded_mean_goes_on_after_discarded_round():
    rule = make_rule("bounded-mean")
    rule.add("a", 1.0, np.ones(3, np.float32))
    rule.clear()
    assert rule.result() is None
    assert result(rule, [1, 2], [1, 2], [1, 2]).tolist() == [1, 2]


def test_bounded_mean_refuses_updates_of_no_weight():
    with pytest.raises(Refused, match="aggregator bounded-mean: saw updates of weight 0, needed more than 0"):
        result(make_rule("bounded-mean"), [1, 2], weights=[0])


def test_trimmed_mean_leaves_out_both_ends():
    updates = [[1, -9], [2, 1], [3, 2], [4, 3], [100, 4]]
    assert result(make_rule("trimmed-mean", "trim=0.2"), *updates).tolist() == [3, 2]
    assert result(make_rule("trimmed-mean", "trim=0.4"), *updates).tolist() == [3, 2]
    assert result(make_rule("trimmed-mean", "trim=0.05"), *updates).tolist() == [3, 2]  # one at least


def test_median_of_odd_and_even_counts():
    assert result(make_rule("median"), [1, 5], [2, 9], [100, -3]).tolist() == [2, 5]
    assert result(make_rule("median"), [1, 0], [2, 0], [4, 0], [100, 0]).tolist() == [3, 0]


def test_krum_takes_update_with_nearest_neighbors():
    updates = [[0.0], [1.0], [1.5], [3.0], [50.0]]  # n - f - 2 = 2 neighbors
    assert result(make_rule("krum"), *updates).tolist() == [1.0]  # scores 3.25, 1.25, 2.5, ...


def test_multi_krum_takes_mean_of_best():
    updates = [[0.0], [1.0], [1.5], [3.0], [50.0]]
    assert result(make_rule("multi-krum", "keep=2"), *updates).tolist() == [1.25]
    assert result(make_rule("multi-krum"), *updates).tolist() == [1.375]


@pytest.mark.parametrize("name", ["trimmed-mean", "median", "krum", "multi-krum", "bounded-mean"])
def test_tile_size_does_not_change_result(name):
    updates = honest(6, 2 * TILE + 17)
    whole = result(make_rule(name), *updates)
    if name in ("krum", "multi-krum"):
        return np.testing.assert_allclose(whole, updates[0], atol=1.5)
    ends = (slice(7), slice(-5, None))
    parts = [result(make_rule(name), *(each[part] for each in updates)) for part in ends]
    if name != "bounded-mean":  # its bound is of the whole vector
        np.testing.assert_array_equal(np.concatenate(parts), np.concatenate([whole[:7], whole[-5:]]))
    return None


# ---- hostile updates

ATTACKS = {
    "scaled": lambda update: update * 1e6,
    "huge": lambda update: np.full_like(update, 3e38),
    "sign flip": lambda update: -update,
    "reversed and scaled": lambda update: -100 * update,
    "noise": lambda update: np.random.default_rng(9).normal(scale=100, size=update.size).astype(np.float32),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", ROBUST)
def test_single_hostile_update_barely_moves_robust_rule(name, attack):
    updates = honest(7, 400)
    fair = np.mean(updates, axis=0)
    hostile = [ATTACKS[attack](updates[0]), *updates[1:]]
    moved = np.linalg.norm(result(make_rule(name), *hostile) - fair) / np.linalg.norm(fair)
    assert moved < (0.45 if name == "bounded-mean" else 0.2)


def test_weighted_mean_follows_hostile_update():
    updates = honest(7, 400)
    hostile = [updates[0] * 1e6, *updates[1:]]
    assert np.linalg.norm(result(make_rule("weighted-mean"), *hostile)) > 1e5 * np.linalg.norm(updates[0]) / 7


@given(st.permutations(range(6)), st.sampled_from(sorted(set(RULES) - {"krum"})))
@settings(max_examples=40, deadline=None)
def test_update_order_does_not_matter(order, name):
    updates = honest(6, 30)
    usual = result(make_rule(name), *updates)
    np.testing.assert_allclose(result(make_rule(name), *(updates[at] for at in order)), usual, rtol=1e-5)


# ---- rounds


@pytest.mark.parametrize("name", sorted(set(RULES) - {"bounded-mean"}))  # it keeps the last mean
def test_rule_keeps_no_state_between_rounds(name):
    rule, first, second = make_rule(name), honest(6, 20, 1), honest(6, 20, 2)
    result(rule, *first)
    np.testing.assert_array_equal(result(rule, *second), result(make_rule(name), *second))
    rule.add("client 0", 1.0, first[0])
    rule.clear()
    np.testing.assert_array_equal(result(rule, *second), result(make_rule(name), *second))
    assert rule.result() is None


@pytest.mark.parametrize(
    ("name", "options", "count", "least"),
    [
        ("krum", "", 4, 5),
        ("krum", "f=2", 6, 7),
        ("multi-krum", "keep=6", 5, 6),
        ("median", "", 2, 3),
        ("trimmed-mean", "trim=0.4", 4, 5),
    ],
)
def test_too_few_updates_are_refused_by_name(name, options, count, least):
    rule = make_rule(name, options)
    with pytest.raises(Refused, match=f"aggregator {name}: saw {count} updates, needed at least {least}"):
        result(rule, *honest(count, 5))
    assert rule.result() is None


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("trimed-mean", "", "did you mean trimmed-mean"),
        ("trimmed-mean", "trim=0.5", "saw trim=0.5, needed above 0 and below 0.5"),
        ("trimmed-mean", "trim=many", "saw trim='many', needed a number"),
        ("krum", "f=0", "saw f=0, needed at least 1"),
        ("multi-krum", "keep=-1", "keep=-1"),
        ("bounded-mean", "factor=nan", "saw factor=nan"),
        ("median", "trim=0.1", "saw 'trim', needed none, the options of aggregator median"),
    ],
)
def test_bad_options_are_refused_by_name(name, options, says):
    with pytest.raises(BadSetting, match=says):
        make_rule(name, options)


def test_collecting_rule_keeps_vectors_without_copy():
    class Seen(CollectingRule):
        def combine(self, updates):
            return updates[0].vector

    vector = np.ones(3, np.float32)
    rule = Seen()
    rule.add("a", 1.0, vector)
    assert rule.result() is vector
