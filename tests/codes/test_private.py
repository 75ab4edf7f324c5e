import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codes import FrameCode, adopt, carry_on, completion_probability, inverse_weights
from fedgc.errors import BadSetting


@given(st.integers(1, 9), st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_carrying_on_gives_every_chunk_its_turn(load, counts):
    order = tuple(range(load))
    times = np.zeros(load, int)
    for count in counts:
        count = min(count, load)
        times[list(order[:count])] += 1
        order = carry_on(order, count)
    assert np.ptp(times) <= 1


def test_over_the_rounds_the_weighted_sum_is_the_true_one_on_average():
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
        codewords = {v: solution.encode(v, dict(enumerate(updates))) for v in solution.needed}
        total += solution.decode(codewords, 4)
    np.testing.assert_allclose(total / rounds, updates.sum(axis=0), rtol=0, atol=1e-9)


@given(st.integers(1, 9), st.lists(st.integers(0, 9), max_size=9))
def test_the_chance_is_above_none_and_at_most_one(load, counts):
    chance = completion_probability([min(count, load) for count in counts], load)
    assert 0.0 < chance <= 1.0


def test_weights_are_cut_and_several_holders_count_together():
    placement = adopt([{0, 1}, {1}], 2)
    assert inverse_weights(placement, [0.5, 0.5]) == (2.0, 1.0 / 0.75)
    assert inverse_weights(placement, [0.01, 1.0], most=3.0) == (3.0, 1.0)


def test_chances_and_counts_that_cannot_be_are_refused():
    placement = adopt([{0}], 1)
    for refused in (
        lambda: carry_on((1, 2), 3),
        lambda: carry_on((1, 2), -1),
        lambda: completion_probability([3], 2),
        lambda: completion_probability([], 0),
        lambda: inverse_weights(placement, [0.0]),
        lambda: inverse_weights(placement, [0.5, 0.5]),
        lambda: inverse_weights(placement, [0.5], most=0.5),
    ):
        with pytest.raises(BadSetting):
            refused()
