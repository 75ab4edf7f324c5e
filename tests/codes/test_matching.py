import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codes import adopt, matched, most_before_cover, place


@given(st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=8))
def test_positions_are_matchings(said):
    said = [*said, set(range(8))]
    placement = adopt(said, 8)
    orders = matched(placement).orders
    assert [set(order) for order in orders] == [set(order) for order in placement.orders]
    assert all(len(set(order)) == len(order) for order in orders)


@pytest.mark.parametrize(("size", "load"), [(8, 3), (20, 5), (30, 4), (60, 8)])
def test_regular_graphs_have_every_chunk_once_in_every_position_and_meet_the_bound(size, load):
    rng = np.random.default_rng(0)
    turns = rng.permutation(size)[:load]  # a circulant graph: regular, and no classes in sight
    placement = matched(adopt([{int((w + t) % size) for t in turns} for w in range(size)], size))
    for position in range(load):
        assert sorted(order[position] for order in placement.orders) == list(range(size))
    bound = 1 + (size - load) * load + -(-load * (load - 1) // 2)
    assert most_before_cover(placement, placement.orders) == bound


def test_a_class_placement_is_matched_too():
    placement = matched(place(40, [1.0] * 40, 8))
    for position in range(8):
        assert sorted(order[position] for order in placement.orders) == list(range(40))
