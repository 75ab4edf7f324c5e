import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codes import place
from fedgc.codes.place import fill, whole_loads
from fedgc.errors import BadPlacement
from tests.before_cover import most_before_cover


@st.composite
def fleets(draw):
    clients_w = draw(st.integers(1, 12))
    replicas = draw(st.integers(1, clients_w))
    speeds = draw(st.lists(st.floats(0.1, 10.0), min_size=clients_w, max_size=clients_w))
    return draw(st.integers(1, 40)), speeds, replicas


@given(fleets(), st.integers(0, 3))
def test_every_class_holds_each_chunk_once_with_loads_by_speed(fleet, seed):
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


def test_placement_is_deterministic_and_depends_on_seed():
    assert place(30, [1.0] * 6, 3) == place(30, [1.0] * 6, 3)
    assert place(30, [1.0] * 6, 3) != place(30, [1.0] * 6, 3, seed=1)


def test_classes_have_balanced_speed():
    rng = np.random.default_rng(0)
    speeds = rng.choice([1.0, 0.5, 0.2], 100)
    placed = place(1000, speeds.tolist(), 6)
    totals = np.bincount(placed.classes, weights=speeds)
    assert totals.max() - totals.min() <= 0.2 + 1e-9


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_slow_clients_share_no_chunk(replicas, seed):
    slow = np.arange(100) % 5 == 0
    placed = place(1000, np.where(slow, 0.15, 1.0).tolist(), replicas, seed=seed)
    assert placed.holds[slow].any()
    assert placed.holds[slow].sum(axis=0).max() == 1


def test_slow_clients_of_many_classes_rarely_share_chunks():
    slow = np.arange(24) % 3 == 0  # one in each class
    placed = place(1000, np.where(slow, 0.5, 1.0).tolist(), 8)
    slow_holders = placed.holds[slow].sum(axis=0)
    assert slow_holders.mean() == pytest.approx(1.6)
    assert (slow_holders >= 4).mean() < 0.1  # by chance 0.06; if they shared all chunks 0.2


def test_chunk_holders_rarely_meet_again():
    placed = place(200, [1.0] * 200, 8)
    shared = placed.holds.astype(int) @ placed.holds.T.astype(int)
    np.fill_diagonal(shared, 0)
    assert shared.max() <= 4  # of 8 chunks each


@pytest.mark.parametrize(
    ("clients_w", "chunks", "replicas"), [(8, 8, 2), (40, 40, 4), (60, 120, 6), (200, 200, 8), (40, 200, 4)]
)
def test_regular_designs_meet_bound_before_cover(clients_w, chunks, replicas):
    placed = place(chunks, [1.0] * clients_w, replicas)
    load = chunks * replicas // clients_w
    bound = 1 + (clients_w - replicas) * load + -(-replicas * (load - 1) // 2)
    assert most_before_cover(placed, placed.orders) == bound


@given(fleets(), st.integers(1, 50), st.integers(0, 3))
def test_groups_have_same_holders_in_every_class(fleet, groups, seed):
    chunks, speeds, replicas = fleet
    placed = place(chunks, speeds, replicas, groups=groups, seed=seed)
    assert placed.replicas_n.tolist() == [replicas] * chunks
    kinds, sizes = np.unique(placed.holder_cn, axis=1, return_counts=True)
    assert kinds.shape[1] <= min(groups, chunks)
    assert sizes.min() >= chunks // min(groups, chunks)


def test_as_many_groups_as_chunks_change_nothing():
    assert place(30, [1.0, 2.0, 0.5] * 2, 3, groups=30) == place(30, [1.0, 2.0, 0.5] * 2, 3)


def test_lost_client_of_groups_has_fewer_successors():
    """The clients that share a chunk with one client, and so replace its vector, are at most replicas - 1."""
    alone = place(400, [1.0] * 40, 4)
    grouped = place(400, [1.0] * 40, 4, groups=40)
    successors = [
        [(p.holds[:, p.holds[w]].any(axis=1)).sum() - 1 for w in range(40)] for p in (alone, grouped)
    ]
    assert max(successors[1]) <= 3 * 4 < min(successors[0])


def test_client_without_speed_gets_only_leftover_chunks():
    assert place(4, [1.0, 0.0], 1).loads == (4, 0)
    assert place(4, [1.0, 0.0], 2).loads == (4, 4)


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
def test_impossible_placement_request_is_refused_with_seen_value(arguments, said):
    with pytest.raises(BadPlacement, match=said):
        place(*arguments)


@given(st.lists(st.floats(0.0, 5.0), min_size=1, max_size=8), st.integers(0, 9), st.floats(0, 1))
def test_shares_fill_storage_in_proportion(weights, room, part):
    total = float(np.floor(part * room * len(weights)))
    shares = fill(total, np.array(weights), room)
    assert (shares <= room + 1e-9).all()
    assert abs(shares.sum() - total) < 1e-6
    open_weighted = (shares < room - 1e-6) & (np.array(weights) > 1e-3)
    level = shares[open_weighted] / np.array(weights)[open_weighted]
    assert level.size == 0 or np.ptp(level) < 1e-3 * max(level.max(), 1.0)
    loads = whole_loads(shares)
    assert loads.sum() == total
    assert (np.abs(loads - shares) < 1.0 + 1e-5).all()
    assert (loads <= room).all()
