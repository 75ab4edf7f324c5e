"""Test checks of outliers: the other mean update, and what the results of checks change."""

import numpy as np
import pytest

from fedgc.aggregators.bounded_mean import HELD, WIDER, BoundedMean
from fedgc.aggregators.outlier_check import FEWEST, OutlierCheck
from fedgc.errors import Refused

SIZE = 50
WEIGHTS = (3.0, 1.0, 2.0, 4.0)
FAR = "client 3"
FACTOR = 1.5


def updates(seed: int) -> list[np.ndarray]:
    """Three updates that lie close together, and one far away."""
    rng = np.random.default_rng(seed)
    near = [(1.0 + 0.1 * rng.normal(size=SIZE)).astype(np.float32) for _ in range(3)]
    return [*near, (1.0 - 3.0 * rng.normal(size=SIZE)).astype(np.float32)]


def checking() -> BoundedMean:
    rule = BoundedMean(factor=FACTOR)
    rule.checks = True
    return rule


def mean(rule: BoundedMean, seed: int, names=range(4)) -> np.ndarray:
    """Return the mean of a round of these clients."""
    vectors = updates(seed)
    for w in names:
        rule.add(f"client {w}", WEIGHTS[w], vectors[w].copy())
    found = rule.result()
    assert found is not None
    return found


def by_hand(center: np.ndarray, seed: int, far: float) -> np.ndarray:
    """Return the mean of a round whose far update counts up to `far` times the bound; 0: not at all."""
    vectors = [each.astype(np.float64) for each in updates(seed)]
    distances = [float(np.linalg.norm(each - center)) for each in vectors]
    bound = FACTOR * sorted(distances)[1]
    limits = [bound, bound, bound, far * bound]
    parts = [min(1.0, limit / d) for limit, d in zip(limits, distances, strict=True)]
    weights = np.array(WEIGHTS) * (1.0, 1.0, 1.0, float(far > 0))
    steps = [part * (each - center) for part, each in zip(parts, vectors, strict=True)]
    return center + sum(w * step for w, step in zip(weights, steps, strict=True)) / weights.sum()


def after_checks(gain: float) -> tuple[BoundedMean, np.ndarray]:
    """Return a rule that has had this result of enough checks, and its last mean."""
    rule = checking()
    last = mean(rule, 0)
    for seed in range(1, FEWEST + 1):
        last = mean(rule, seed)
        rule.checked(FAR, gain)
    return rule, last.astype(np.float64)


def test_other_mean_is_that_without_outlier() -> None:
    rule = checking()
    center = mean(rule, 0).astype(np.float64)
    found = mean(rule, 1)
    np.testing.assert_allclose(found, by_hand(center, 1, 1.0), rtol=1e-5, atol=1e-5)
    check = rule.check
    assert check is not None
    assert (check.client, check.counts) == (FAR, True)
    assert check.length == pytest.approx(float(np.linalg.norm(found)), rel=1e-5)
    np.testing.assert_allclose(found + check.difference, by_hand(center, 1, 0.0), rtol=1e-5, atol=1e-5)


def test_harmful_outlier_is_left_out_and_checked_on() -> None:
    rule, center = after_checks(-0.1)
    found = mean(rule, 9)
    np.testing.assert_allclose(found, by_hand(center, 9, 0.0), rtol=1e-5, atol=1e-5)
    assert rule.outliers == {FAR: 0.0}
    check = rule.check
    assert check is not None
    assert (check.client, check.counts) == (FAR, False)
    np.testing.assert_allclose(found + check.difference, by_hand(center, 9, 1.0), rtol=1e-5, atol=1e-5)
    rule.checked(FAR, 0.2)  # more than it has cost
    center = found.astype(np.float64)
    np.testing.assert_allclose(mean(rule, 10), by_hand(center, 10, WIDER), rtol=1e-5, atol=1e-5)


def test_shortened_mean_counts_though_models_are_better_without() -> None:
    rule, center = after_checks(-0.1)
    rng, names = np.random.default_rng(7), range(3)
    short = (0.25 * center + 0.05 * rng.normal(size=SIZE)).astype(np.float32)
    for w in names:
        rule.add(f"client {w}", WEIGHTS[w], updates(9)[w])
    rule.add(FAR, WEIGHTS[3], short)
    assert rule.result() is not None
    assert rule.outliers.get(FAR, 1.0) > 0
    for w in names:
        rule.add(f"client {w}", WEIGHTS[w], updates(10)[w])
    rule.add(FAR, WEIGHTS[3], -short)
    assert rule.result() is not None
    assert rule.outliers == {FAR: 0.0}


def test_check_covers_parameters_alone() -> None:
    plain, buffered = checking(), checking()
    buffered.buffers = 2
    for seed in range(2):
        mean(plain, seed)
        for w, vector in enumerate(updates(seed)):
            buffered.add(f"client {w}", WEIGHTS[w], np.append(vector, np.float32([100.0, -100.0])))
        buffered.result()
    assert plain.check is not None
    assert buffered.check is not None
    assert buffered.check.length == plain.check.length
    assert buffered.check.difference.tolist() == plain.check.difference.tolist()


def test_buffers_of_harmful_outlier_do_not_count() -> None:
    rule = checking()
    rule.buffers = 2
    for seed in range(FEWEST + 3):
        for w, vector in enumerate(updates(seed)):
            vector[-2:] = 5.0 if w == 3 else 1.0
            rule.add(f"client {w}", WEIGHTS[w], vector)
        found = rule.result()
        assert found is not None
        assert found.size == SIZE
        assert (found[-2:] == 1.0).all() == (seed >= FEWEST)
        rule.checked(FAR, -0.1)


def test_helpful_outlier_is_bounded_less() -> None:
    rule, center = after_checks(0.1)
    found = mean(rule, 9)
    np.testing.assert_allclose(found, by_hand(center, 9, WIDER), rtol=1e-5, atol=1e-5)
    assert rule.check is not None
    np.testing.assert_allclose(found + rule.check.difference, by_hand(center, 9, 0.0), rtol=1e-5, atol=1e-5)


def test_one_check_decides_nothing() -> None:
    rule = checking()
    mean(rule, 0)
    center = mean(rule, 1).astype(np.float64)
    rule.checked(FAR, -1.0)
    np.testing.assert_allclose(mean(rule, 2), by_hand(center, 2, 1.0), rtol=1e-5, atol=1e-5)


def test_check_without_difference_forgets_earlier_ones() -> None:
    rule, _ = after_checks(-0.1)
    mean(rule, 10)
    assert rule.outliers == {FAR: 0.0}
    rule.checked(FAR, 0.0)
    for seed in range(11, 11 + FEWEST):
        mean(rule, seed)
        assert rule.outliers[FAR] > 0
        rule.checked(FAR, -0.1)
    mean(rule, 20)
    assert rule.outliers == {FAR: 0.0}


def test_outliers_are_checked_by_turns() -> None:
    rule, rng, seen = checking(), np.random.default_rng(0), []
    for _ in range(5):
        for w in range(HELD + 4):
            far = 5.0 if w in (0, HELD + 2) else 0.1  # one while updates are held, and one after that
            rule.add(f"client {w}", 1.0, (1.0 + far * rng.normal(size=SIZE)).astype(np.float32))
        rule.result()
        assert rule.check is not None
        seen.append(rule.check.client)
        rule.checked(rule.check.client, 0.0)
    assert set(seen) == {"client 0", f"client {HELD + 2}"}
    assert sorted(map(seen.count, set(seen))) == [2, 3]


def test_round_of_harmful_outliers_alone_is_refused_once() -> None:
    rule, _ = after_checks(-0.1)
    with pytest.raises(Refused, match=f"saw updates of {FAR} alone, without whose updates models are better"):
        mean(rule, 9, [3])
    assert rule.check is None
    mean(rule, 9, [3])


def test_nothing_is_checked_unless_server_evaluates() -> None:
    rule = BoundedMean()
    mean(rule, 0)
    mean(rule, 1)
    assert rule.check is None


def test_no_update_leaves_no_check() -> None:
    rule = checking()
    mean(rule, 0)
    mean(rule, 1)
    assert rule.result() is None
    assert rule.check is None


def test_results_of_checks_are_remembered() -> None:
    rule, center = after_checks(-0.1)
    other = checking()
    other.recall(rule.memory())
    np.testing.assert_allclose(mean(other, 9), by_hand(center, 9, 0.0), rtol=1e-5, atol=1e-5)
    other.recall(checking().memory() or {"center": center, "before": np.array([1.0, 1.0, 1.0])})
    mean(other, 10)
    assert other.outliers != {FAR: 0.0}


def test_other_model_takes_step_at_rate_of_optimizer() -> None:
    rng = np.random.default_rng(0)
    before, update, difference = (rng.normal(size=SIZE).astype(np.float32) for _ in range(3))
    check = OutlierCheck("far", counts=True, difference=difference, length=float(np.linalg.norm(update)))
    after = before - np.float32(0.3) * update
    expected = before - np.float32(0.3) * (update + difference)
    np.testing.assert_allclose(check.alternative(before, after), expected, rtol=1e-4, atol=1e-5)
    buffers = np.float32([100.0, -50.0])  # they take no step of the optimizer
    other = check.alternative(np.append(before, buffers), np.append(after, 2 * buffers))
    np.testing.assert_allclose(other, np.append(expected, 2 * buffers), rtol=1e-4, atol=1e-5)
    unmoved = OutlierCheck("far", counts=True, difference=difference, length=0.0)
    assert unmoved.alternative(before, before).tolist() == before.tolist()
