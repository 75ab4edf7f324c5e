import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codes import adopt, most_before_cover, orders_for_round, place
from fedgc.errors import BadPlacement


def most_before_cover_slowly(placement, orders, replicas):
    """For each chunk: all that others can do, and its holders up to just before enough of them reach it."""
    worst = 0
    for chunk in range(placement.chunks):
        done_after = []
        total = 0
        for order in orders:
            total += len(order)
            if chunk in order:
                done_after.append(len(order) - list(order).index(chunk))
        done_after.sort(reverse=True)
        # copies - 1 holders may be through; the others stop just before the chunk
        worst = max(worst, total - sum(done_after[replicas - 1 :]) + 1)
    return worst


@st.composite
def placed(draw):
    clients_w = draw(st.integers(1, 8))
    replicas = draw(st.integers(1, clients_w))
    return place(
        draw(st.integers(1, 20)),
        draw(st.lists(st.sampled_from([1.0, 0.5, 0.2]), min_size=clients_w, max_size=clients_w)),
        replicas,
    )


@given(placed(), st.data())
def test_the_count_before_cover_equals_the_plain_count(placement, data):
    replicas = data.draw(st.integers(1, placement.replicas))
    orders = orders_for_round(placement, data.draw(st.integers(0, 5)))
    assert most_before_cover(placement, orders, replicas) == most_before_cover_slowly(
        placement, orders, replicas
    )


@given(placed(), st.integers(0, 100))
def test_an_order_for_a_round_permutes_what_each_worker_holds(placement, seed):
    orders = orders_for_round(placement, seed)
    assert [sorted(order) for order in orders] == [sorted(order) for order in placement.orders]
    assert orders == orders_for_round(placement, seed)


def test_over_the_rounds_every_chunk_comes_first_and_last_equally_often():
    placement = place(24, [1.0] * 12, 4)
    place_in_line = np.zeros((200, 24))
    for seed in range(200):
        for order in orders_for_round(placement, seed):
            for position, chunk in enumerate(order):
                place_in_line[seed, chunk] += position
    mean = place_in_line.mean(axis=0)
    assert np.ptp(mean) < 1.5  # positions of a chunk add up to 14, 4 holders of 8 chunks each


@pytest.mark.parametrize(("chunks", "clients_w", "replicas"), [(200, 200, 8), (104, 52, 4), (60, 30, 2)])
def test_shifted_orders_keep_the_bound_where_loads_are_equal(chunks, clients_w, replicas):
    placement = place(chunks, [1.0] * clients_w, replicas)
    load = chunks * replicas // clients_w
    bound = 1 + (clients_w - replicas) * load + -(-replicas * (load - 1) // 2)
    for seed in range(20):
        assert most_before_cover(placement, orders_for_round(placement, seed)) == bound


def test_shifted_orders_stay_close_to_the_unshifted_where_loads_differ():
    placement = place(300, [1.0, 0.5, 0.2] * 20, 6)
    plain = most_before_cover(placement, placement.orders)
    for seed in range(20):
        assert most_before_cover(placement, orders_for_round(placement, seed)) <= 1.02 * plain


def test_a_class_of_one_rotates_its_starting_chunk():
    alone = adopt([set(range(6))], 6)
    base = alone.orders[0]
    rotations = {base[k:] + base[:k] for k in range(6)}
    seen = {orders_for_round(alone, seed)[0] for seed in range(60)}
    assert seen == rotations


def test_bad_seeds_and_copies_are_refused():
    placement = place(4, [1.0, 1.0], 2)
    with pytest.raises(BadPlacement, match="seed -1"):
        orders_for_round(placement, -1)
    with pytest.raises(BadPlacement, match="3 replicas asked for, 1 to 2"):
        most_before_cover(placement, placement.orders, 3)
