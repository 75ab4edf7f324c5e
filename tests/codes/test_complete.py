"""Test estimates for chunks missing at a deadline: least squares, the unbiased one, and shrinkage."""

from functools import cache

import numpy as np
import pytest
from sklearn.datasets import load_digits

from benchmarks.codewords import codeword_of, decode
from fedgc.codes import FrameCode, estimate_correlation, orders_for_round, place
from fedgc.codes.complete import shrinkage
from fedgc.errors import BadSetting, BadVector

LEAST_SQUARES, WITHOUT_BIAS = 0.0, None


def cut_off(placement, seed, part):
    """Each client does a prefix of this round's order, of a length that its random speed gives."""
    rng = np.random.default_rng([seed, 7])
    done = np.zeros((placement.clients_w, placement.chunks), bool)
    reach = np.minimum(part / (1.0 + rng.exponential(1.0, placement.clients_w)), 1.0)
    for w, order in enumerate(orders_for_round(placement, seed)):
        done[w, list(order[: round(reach[w] * len(order))])] = True
    return done


def estimate_of(solution, updates):
    held = dict(enumerate(updates))
    codewords = {w: codeword_of(solution, w, held) for w in solution.needed}
    return decode(solution, codewords, updates.shape[1])


def squared_error(solution, updates):
    total = updates.sum(axis=0)
    return float(((estimate_of(solution, updates) - total) ** 2).sum() / (total**2).sum())


def correlated(chunks, size, correlation, seed):
    rng = np.random.default_rng([seed, 3])
    common = rng.standard_normal(size)
    own = rng.standard_normal((chunks, size))
    return np.sqrt(correlation) * common + np.sqrt(1.0 - correlation) * own


def sketched(updates, done, seed):
    """The server's sketches: 16 random numbers of every finished chunk."""
    projection = np.random.default_rng([seed, 5]).standard_normal((updates.shape[1], 16)) / 4.0
    return estimate_correlation(updates[done.any(axis=0)] @ projection)


def mean_errors(updates_for, blocks, part, rounds, chunks=64):
    """Return the mean squared errors of least squares, without bias, and shrunk by the estimate."""
    errors = np.zeros(3)
    for seed in range(rounds):
        placement = place(chunks, [1.0] * chunks, 6, seed=seed)
        code, done, updates = FrameCode(placement, blocks), cut_off(placement, seed, part), updates_for(seed)
        for index, known in enumerate((LEAST_SQUARES, WITHOUT_BIAS, sketched(updates, done, seed))):
            errors[index] += squared_error(code.solve(done, correlation=known), updates) / rounds
    return errors


@pytest.mark.parametrize(("blocks", "part"), [(1, 0.35), (4, 1.25)])
def test_shared_means_increase_least_squares_error_eightfold(blocks, part):
    least_squares, without_bias, _ = mean_errors(
        lambda seed: correlated(200, 32, 0.5, seed), blocks, part, 8, chunks=200
    )
    assert least_squares > 8.0 * without_bias


@pytest.mark.parametrize("correlation", [0.0, 0.05, 0.3, 0.9])
def test_shrunk_estimate_is_as_good_as_better_of_two(correlation):
    least_squares, without_bias, shrunk = mean_errors(
        lambda seed: correlated(64, 24, correlation, seed), 2, 0.8, 60
    )
    assert shrunk <= 1.02 * min(least_squares, without_bias)


@cache
def digits_gradients(skewed, steps):
    """Chunk gradients of a small network on the digits, after some full steps, chunks by chance or label."""
    images, labels = load_digits(return_X_y=True)
    images = images / 16.0
    rng = np.random.default_rng(0)
    order = np.argsort(labels, kind="stable") if skewed else rng.permutation(len(labels))
    first, second = rng.standard_normal((64, 32)) * 0.15, rng.standard_normal((32, 10)) * 0.2
    while True:
        gradients = []
        for chunk in np.array_split(order, 64):
            hidden = np.maximum(images[chunk] @ first, 0.0)
            scores = hidden @ second
            chances = np.exp(scores - scores.max(axis=1, keepdims=True))
            chances /= chances.sum(axis=1, keepdims=True)
            chances[np.arange(len(chunk)), labels[chunk]] -= 1.0
            back = images[chunk].T @ ((chances @ second.T) * (hidden > 0))
            gradients.append(np.concatenate([back.ravel(), (hidden.T @ chances).ravel()]) / len(labels))
        total = np.sum(gradients, axis=0)
        if steps == 0:
            return np.array(gradients)
        first -= total[:2048].reshape(64, 32)
        second -= total[2048:].reshape(32, 10)
        steps -= 1


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("steps", [20, 200])
def test_real_gradients_give_estimate_as_good_as_better_of_two(skewed, steps):
    gradients = digits_gradients(skewed, steps)
    least_squares, without_bias, shrunk = mean_errors(lambda _: gradients, 1, 0.5, 60)
    assert shrunk <= 1.02 * min(least_squares, without_bias)


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_estimate_is_unbiased_over_rounds(blocks):
    """Fixed updates of very different sizes; placement, shift and speeds are random."""
    updates = np.random.default_rng(0).standard_normal((24, 8)) * np.linspace(0.1, 3.0, 24)[:, None] + 0.5
    missed = []
    for seed in range(400):
        placement = place(24, [1.0, 0.5] * 12, 4, seed=seed)
        solution = FrameCode(placement, blocks).solve(cut_off(placement, seed, 0.35 * blocks + 0.4))
        missed.append(estimate_of(solution, updates) - updates.sum(axis=0))
        assert len(solution.short) < 24
    missed = np.array(missed)
    error = missed.std(axis=0) / np.sqrt(len(missed))
    assert (np.abs(missed.mean(axis=0)) < 4.0 * error + 1e-12).all()
    assert error.max() > 0.0  # some rounds were short


@pytest.mark.parametrize("correlation", [0.0, 0.4, 0.9])
@pytest.mark.parametrize("blocks", [1, 3])
def test_error_estimate_equals_error(correlation, blocks):
    placement = place(60, [1.0] * 60, 6)
    done = cut_off(placement, 1, {1: 0.2, 3: 0.9}[blocks])
    solution = FrameCode(placement, blocks).solve(done, correlation=correlation)
    assert len(solution.short) > 2
    # one long vector: its common part is then as large as expected
    measured = squared_error(solution, correlated(60, 60_000, correlation, 0)) ** 0.5
    assert abs(solution.error / measured - 1.0) < 0.05


def test_unknown_correlation_uses_error_of_uncorrelated_updates():
    placement = place(60, [1.0] * 60, 6)
    code, done = FrameCode(placement, 2), cut_off(placement, 1, 0.75)
    unknown = code.solve(done)
    assert not unknown.exact
    measured = squared_error(unknown, correlated(60, 60_000, 0.0, 0)) ** 0.5
    assert abs(unknown.error / measured - 1.0) < 0.05


def test_full_chunks_replace_short_ones_in_proportion():
    placement = place(8, [1.0] * 8, 2)
    done = placement.holds.copy()
    done[:, :2] = False
    solution = FrameCode(placement, 1).solve(done)
    assert solution.short == (0, 1)
    rows = {row for w in solution.needed for row in solution.coefficients(w).matrix}
    assert rows == {(8.0 / 6.0,)}


@pytest.mark.parametrize("correlation", [0.0, 0.2, 0.7])
def test_estimated_correlation_is_unbiased(correlation):
    found = [estimate_correlation(correlated(40, 300, correlation, seed)[:, :16]) for seed in range(300)]
    assert abs(np.mean(found) - correlation) < 0.05


def test_correlation_estimate_handles_edge_cases():
    assert estimate_correlation(np.zeros((0, 16))) == 0.0
    assert estimate_correlation(np.ones((1, 16))) == 0.0
    assert estimate_correlation(np.zeros((5, 16))) == 0.0
    assert estimate_correlation([[1.0], [-1.0]]) == 0.0
    with pytest.raises(BadVector, match=r"sketches of shape \(2,\)"):
        estimate_correlation([1.0, 2.0])
    with pytest.raises(BadVector, match="finite numbers"):
        estimate_correlation([[np.nan], [1.0]])


def test_missing_chunks_count_by_their_samples():
    samples = np.array([10, 20, 30, 1000, 40, 50])
    placement = place(6, [1.0, 1.0], 2)
    done = placement.holds.copy()
    done[:, 3] = False
    apart = np.random.default_rng(0).normal(size=(6, 50_000))
    for correlation, steps in ((0.0, apart), (None, np.tile(apart[0], (6, 1)))):
        solution = FrameCode(placement, 2).solve(done, correlation=correlation, samples=samples.tolist())
        updates = samples[:, None] * steps
        total = updates.sum(axis=0)
        error = np.linalg.norm(estimate_of(solution, updates) - total) / np.linalg.norm(total)
        assert error == pytest.approx(solution.error if steps is apart else 0.0, abs=0.01)


def test_share_minimizes_expected_error():
    full, correlation = 30, 0.1
    shares = np.linspace(0.0, 1.0, 1001)
    cost = correlation * full**2 * (1 - shares) ** 2 + (1 - correlation) * full * shares**2
    assert abs(shares[cost.argmin()] - shrinkage(full, correlation)) < 1e-3
    with pytest.raises(BadSetting, match="correlation -0"):
        shrinkage(3, -0.1)
