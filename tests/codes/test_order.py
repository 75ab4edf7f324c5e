import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codes import adopt, orders_for_round, place
from fedgc.errors import BadPlacement
from tests.before_cover import most_before_cover


@st.composite
def placed(draw):
    clients_w = draw(st.integers(1, 8))
    replicas = draw(st.integers(1, clients_w))
    return place(
        draw(st.integers(1, 20)),
        draw(st.lists(st.sampled_from([1.0, 0.5, 0.2]), min_size=clients_w, max_size=clients_w)),
        replicas,
    )


@given(placed(), st.integers(0, 100))
def test_round_order_permutes_chunks_of_each_client(placement, seed):
    orders = orders_for_round(placement, seed)
    assert [sorted(order) for order in orders] == [sorted(order) for order in placement.orders]
    assert orders == orders_for_round(placement, seed)


def test_chunks_are_first_and_last_equally_often_over_rounds():
    placement = place(24, [1.0] * 12, 4)
    place_in_line = np.zeros((200, 24))
    for seed in range(200):
        for order in orders_for_round(placement, seed):
            for position, chunk in enumerate(order):
                place_in_line[seed, chunk] += position
    mean = place_in_line.mean(axis=0)
    assert np.ptp(mean) < 1.5  # positions of a chunk add up to 14, 4 holders of 8 chunks each


def test_chunks_of_groups_are_cut_off_equally_often_over_rounds():
    """Every client does two fifths of its order: which chunks are short is a matter of the round alone."""
    placement, rounds = place(200, [1.0] * 20, 2, groups=20), 300
    short_n = np.zeros(200)
    for seed in range(rounds):
        done = {c for order in orders_for_round(placement, seed) for c in order[: len(order) * 2 // 5]}
        short_n[[c for c in range(200) if c not in done]] += 1
    mean = short_n.mean() / rounds
    assert 0.05 < mean < 0.5
    assert short_n.std() / rounds < 1.5 * (mean * (1 - mean) / rounds) ** 0.5


@pytest.mark.parametrize(("chunks", "clients_w", "replicas"), [(200, 200, 8), (104, 52, 4), (60, 30, 2)])
def test_shifted_orders_keep_bound_with_equal_loads(chunks, clients_w, replicas):
    placement = place(chunks, [1.0] * clients_w, replicas)
    load = chunks * replicas // clients_w
    bound = 1 + (clients_w - replicas) * load + -(-replicas * (load - 1) // 2)
    for seed in range(20):
        assert most_before_cover(placement, orders_for_round(placement, seed)) == bound


def test_shifted_orders_stay_close_with_uneven_loads():
    placement = place(300, [1.0, 0.5, 0.2] * 20, 6)
    plain = most_before_cover(placement, placement.orders)
    for seed in range(20):
        assert most_before_cover(placement, orders_for_round(placement, seed)) <= 1.02 * plain


def test_class_of_one_client_rotates_starting_chunk():
    alone = adopt([set(range(6))], 6)
    base = alone.orders[0]
    rotations = {base[k:] + base[:k] for k in range(6)}
    seen = {orders_for_round(alone, seed)[0] for seed in range(60)}
    assert seen == rotations


def test_bad_seed_is_refused():
    placement = place(4, [1.0, 1.0], 2)
    with pytest.raises(BadPlacement, match="seed -1"):
        orders_for_round(placement, -1)
