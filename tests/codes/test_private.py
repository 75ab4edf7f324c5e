import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.codewords import codeword_of, decode
from fedgc.codes import FrameCode, adopt, carry_on, completion_probability, inverse_weights
from fedgc.errors import BadSetting


@given(st.integers(1, 9), st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_continued_order_gives_every_chunk_its_turn(load, counts):
    order = tuple(range(load))
    times = np.zeros(load, int)
    for count in counts:
        count = min(count, load)
        times[list(order[:count])] += 1
        order = carry_on(order, count)
    assert np.ptp(times) <= 1


def test_weighted_sum_is_unbiased_over_rounds():
    placement = adopt([{0, 1, 2, 3}, {4, 5}], 6)
    finished = {0: [1, 2], 1: [2]}  # by round, in turns: client 0 finishes 3 of 8, client 1 all
    chances = [sum(counts) / (len(counts) * placement.loads[v]) for v, counts in finished.items()]
    weights = inverse_weights(placement, chances)
    updates = np.random.default_rng(0).standard_normal((6, 4))
    code = FrameCode(placement, 1)
    orders = list(placement.orders)
    total = np.zeros(4)
    rounds = 8  # twice 8 chunks' turns: whole cycles of client 0
    for index in range(rounds):
        done = np.zeros((2, 6), bool)
        for w, counts in finished.items():
            count = counts[index % len(counts)]
            done[w, list(orders[w][:count])] = True
            orders[w] = carry_on(orders[w], count)
        solution = code.solve(done, weights=weights)
        codewords = {v: codeword_of(solution, v, dict(enumerate(updates))) for v in solution.needed}
        total += decode(solution, codewords, 4)
    np.testing.assert_allclose(total / rounds, updates.sum(axis=0), rtol=0, atol=1e-9)


def test_mean_leaves_out_missing_private_chunks():
    placement, samples = adopt([{0, 1}, {2}], 3), [10, 20, 1000]
    done = np.array([[True, True, False], [False, False, False]])
    solution = FrameCode(placement, 1).solve(done, weights=[2.0, 1.0, 4.0], samples=samples)
    assert solution.short == (2,)
    assert solution.coverage == pytest.approx((2.0 * 10 + 20) / sum(samples))
    assert FrameCode(placement, 1).solve(done, samples=samples).coverage == 1.0, "others stand in for it"


@given(st.integers(1, 9), st.lists(st.integers(0, 9), max_size=9))
def test_probability_is_above_0_and_at_most_1(load, counts):
    chance = completion_probability([min(count, load) for count in counts], load)
    assert 0.0 < chance <= 1.0


def test_weights_are_clipped_and_holders_are_combined():
    placement = adopt([{0, 1}, {1}], 2)
    assert inverse_weights(placement, [0.5, 0.5]) == (2.0, 1.0 / 0.75)
    assert inverse_weights(placement, [0.01, 1.0]) == (4.0, 1.0)


def test_invalid_probabilities_and_counts_are_refused():
    placement = adopt([{0}], 1)
    for refused in (
        lambda: carry_on((1, 2), 3),
        lambda: carry_on((1, 2), -1),
        lambda: completion_probability([3], 2),
        lambda: completion_probability([], 0),
        lambda: inverse_weights(placement, [0.0]),
        lambda: inverse_weights(placement, [0.5, 0.5]),
    ):
        with pytest.raises(BadSetting):
            refused()
