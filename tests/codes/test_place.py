import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codes import most_before_cover, place
from fedgc.codes.place import fill, whole_loads
from fedgc.errors import BadPlacement


@st.composite
def fleets(draw):
    clients_w = draw(st.integers(1, 12))
    replicas = draw(st.integers(1, clients_w))
    speeds = draw(st.lists(st.floats(0.1, 10.0), min_size=clients_w, max_size=clients_w))
    return draw(st.integers(1, 40)), speeds, replicas


@given(fleets(), st.integers(0, 3))
def test_every_class_holds_every_chunk_once_and_loads_follow_speed(fleet, seed):
    chunks, speeds, replicas = fleet
    placed = place(chunks, speeds, replicas, seed=seed)
    assert placed.columns == placed.replicas == replicas
    for column in range(replicas):
        members = [w for w in range(len(speeds)) if placed.classes[w] == column]
        held = sorted(chunk for w in members for chunk in placed.orders[w])
        assert held == list(range(chunks))
        total = sum(speeds[w] for w in members)
        for w in members:
            assert abs(placed.loads[w] - chunks * speeds[w] / total) < 1.001


@given(fleets(), st.data())
def test_storage_is_never_exceeded_and_every_chunk_has_its_replicas(fleet, data):
    chunks, speeds, replicas = fleet
    storage = data.draw(st.lists(st.integers(0, chunks + 3), min_size=len(speeds), max_size=len(speeds)))
    if sum(min(room, chunks) for room in storage) < chunks * replicas:
        with pytest.raises(BadPlacement, match=f"replicas need {chunks * replicas}"):
            place(chunks, speeds, replicas, storage=storage)
        return
    placed = place(chunks, speeds, replicas, storage=storage)
    assert all(load <= room for load, room in zip(placed.loads, storage, strict=True))
    assert (placed.holds.sum(axis=0) == replicas).all()


def test_storage_that_fits_no_classes_is_dealt_round_and_coloured():
    placed = place(3, [1.0, 1.0, 1.0], 2, storage=[2, 2, 2])
    assert placed.loads == (2, 2, 2)
    assert (placed.holds.sum(axis=0) == 2).all()
    assert placed.columns == 3


def test_the_same_call_gives_the_same_placement_and_another_seed_another():
    assert place(30, [1.0] * 6, 3) == place(30, [1.0] * 6, 3)
    assert place(30, [1.0] * 6, 3) != place(30, [1.0] * 6, 3, seed=1)


def test_classes_have_balanced_speed():
    rng = np.random.default_rng(0)
    speeds = rng.choice([1.0, 0.5, 0.2], 100)
    placed = place(1000, speeds.tolist(), 6)
    totals = np.bincount(placed.classes, weights=speeds)
    assert totals.max() - totals.min() <= 0.2 + 1e-9


def test_holders_of_a_chunk_rarely_meet_again():
    placed = place(200, [1.0] * 200, 8)
    shared = placed.holds.astype(int) @ placed.holds.T.astype(int)
    np.fill_diagonal(shared, 0)
    assert shared.max() <= 4  # of 8 chunks each


@pytest.mark.parametrize(
    ("clients_w", "chunks", "replicas"), [(8, 8, 2), (40, 40, 4), (60, 120, 6), (200, 200, 8), (40, 200, 4)]
)
def test_regular_designs_meet_the_bound_on_chunks_before_cover(clients_w, chunks, replicas):
    placed = place(chunks, [1.0] * clients_w, replicas)
    load = chunks * replicas // clients_w
    bound = 1 + (clients_w - replicas) * load + -(-replicas * (load - 1) // 2)
    assert most_before_cover(placed, placed.orders) == bound


def test_a_worker_without_speed_gets_only_what_the_others_have_no_room_for():
    assert place(4, [1.0, 0.0], 1).loads == (4, 0)
    assert place(4, [1.0, 0.0], 2).loads == (4, 4)
    assert place(4, [1.0, 0.0], 1, storage=[3, 4]).loads == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0, [1.0], 1), "0 chunks"),
        ((3, [], 1), "speeds of shape"),
        ((3, [[1.0]], 1), "speeds of shape"),
        ((3, [1.0, -2.0], 1), "client 1 has speed -2.0"),
        ((3, [float("nan"), 1.0], 1), "client 0 has speed nan"),
        ((3, [float("inf"), 1.0], 1), "client 0 has speed inf"),
        ((3, [0.0, 0.0], 1), "every speed is 0"),
        ((3, [1.0, 1.0], 3), "3 replicas on 2 clients"),
        ((3, [1.0, 1.0], 0), "0 replicas on 2 clients"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_what_was_seen(arguments, said):
    with pytest.raises(BadPlacement, match=said):
        place(*arguments)


@pytest.mark.parametrize("storage", [[3], [3, -1], [1.5, 2.0]])
def test_storage_is_one_count_for_each_worker(storage):
    with pytest.raises(BadPlacement, match="one count of 0 or more"):
        place(2, [1.0, 1.0], 1, storage=storage)


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 9)), min_size=1, max_size=8), st.floats(0, 1))
def test_shares_fill_the_room_in_proportion(pairs, part):
    weights = np.array([weight for weight, _ in pairs])
    room = np.array([room for _, room in pairs])
    total = float(np.floor(part * room.sum()))
    shares = fill(total, weights, room)
    assert (shares <= room + 1e-9).all()
    assert abs(shares.sum() - total) < 1e-6
    open_weighted = (shares < room - 1e-6) & (weights > 1e-3)
    level = shares[open_weighted] / weights[open_weighted]
    assert level.size == 0 or np.ptp(level) < 1e-3 * max(level.max(), 1.0)
    loads = whole_loads(shares, room)
    assert loads.sum() == total
    assert (np.abs(loads - shares) < 1.0 + 1e-5).all()
    assert (loads <= room).all()
