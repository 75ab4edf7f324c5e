import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codes import adopt
from fedgc.codes.adopt import color
from fedgc.errors import BadPlacement


@given(st.integers(1, 10), st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=8))
def test_clients_keep_announced_chunks_and_classes_are_disjoint(chunks, said):
    said = [{chunk % chunks for chunk in held} for held in said]
    if set().union(*said) != set(range(chunks)):
        with pytest.raises(BadPlacement, match="have no holder"):
            adopt(said, chunks)
        return
    placement = adopt(said, chunks)
    assert [set(order) for order in placement.orders] == said
    for first in range(len(said)):
        for second in range(first):
            if placement.classes[first] == placement.classes[second]:
                assert not said[first] & said[second]


def test_disjoint_data_needs_one_column():
    assert adopt([{0, 1}, {2}, {3, 4}], 5).columns == 1


def test_groups_sharing_all_data_need_one_column_per_member():
    assert adopt([{0}, {0}, {1}, {1}, {1}], 2).columns == 3


def test_graph_with_classes_keeps_its_classes():
    rng = np.random.default_rng(0)
    side = rng.permutation(np.repeat([0, 1], 10))
    assert color(side[:, None] != side).max() == 1


@pytest.mark.parametrize(
    ("holds", "chunks", "said"),
    [
        ([{0}], 0, "0 chunks"),
        ([], 1, "no clients"),
        ([{1}], 1, "client 0 holds chunk 1"),
        ([{-1}], 1, "chunk -1"),
        ([{0.5}], 1, "chunk 0.5"),
    ],
)
def test_unsuitable_data_layout_is_refused(holds, chunks, said):
    with pytest.raises(BadPlacement, match=said):
        adopt(holds, chunks)
