import numpy as np
import pytest

from fedgc.codes import Placement
from fedgc.codes.placement import finished
from fedgc.errors import BadPlacement


def two_by_two() -> Placement:
    return Placement(2, ((0, 1), (1, 0)), (0, 1), (0.25, 0.75))


@pytest.mark.parametrize(
    ("chunks", "orders", "classes", "phases", "said"),
    [
        (0, ((),), (0,), (), "0 chunks"),
        (1, (), (), (0.5,), "no clients"),
        (1, ((0,),), (), (0.5,), "0 classes for 1 clients"),
        (1, ((0,),), (-1,), (0.5,), "class -1"),
        (2, ((0, 1),), (0,), (0.5,), "1 phases for 2 chunks"),
        (1, ((0, 1),), (0,), (0.5,), "chunk 1 is held"),
        (1, ((-1, 0),), (0,), (0.5,), "chunk -1 is held"),
        (2, ((0,),), (0,), (0.2, 0.7), "chunks 1 have no holder"),
        (1, ((0,), (0,)), (0, 0), (0.5,), "chunk 0 lies twice in class 0"),
        (1, ((0, 0),), (0,), (0.5,), "chunk 0 lies twice in class 0"),
        (99, ((0,),), (0,), (0.5,) * 99, "and 90 more"),
    ],
)
def test_invalid_placement_is_refused_with_seen_value(chunks, orders, classes, phases, said):
    with pytest.raises(BadPlacement, match=said):
        Placement(chunks, orders, classes, phases)


def test_placements_with_equal_parts_are_equal():
    assert two_by_two() == two_by_two()
    assert hash(two_by_two()) == hash(two_by_two())


def test_derived_attributes_cannot_be_assigned():
    with pytest.raises(ValueError, match="read-only"):
        two_by_two().holds[0, 0] = False


def test_idle_client_is_part_of_placement():
    placed = Placement(1, ((0,), ()), (0, 1), (0.5,))
    assert (placed.clients_w, placed.loads, placed.columns, placed.replicas) == (2, (1, 0), 2, 1)


def test_claim_on_unheld_chunk_names_client_and_chunk():
    placed = Placement(2, ((0,), (1,), ()), (0, 0, 0), (0.25, 0.75))
    with pytest.raises(BadPlacement, match=r"client 1 claims chunk 0.*it holds 1"):
        finished(placed, np.array([[True, False], [True, True], [False, False]]))
    with pytest.raises(BadPlacement, match=r"client 2 claims chunk 1.*it holds none"):
        finished(placed, np.array([[True, False], [False, True], [False, True]]))


@pytest.mark.parametrize(
    "done", [np.zeros((2, 3), bool), np.zeros((2, 2)), np.zeros(4, bool), [[1, 0], [0, 1]]]
)
def test_matrix_of_wrong_shape_or_type_is_refused(done):
    with pytest.raises(BadPlacement, match=r"bool \(2, 2\) is needed"):
        finished(two_by_two(), done)
