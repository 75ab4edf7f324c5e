import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codes import FrameCode, adopt, place


def fewest_slowly(done, blocks):
    """The least number of clients that keep every chunk covered, by trying all sets."""
    clients_w = len(done)
    need = np.minimum(done.sum(axis=0), blocks)
    for size in range(clients_w + 1):
        for chosen in itertools.combinations(range(clients_w), size):
            if (done[list(chosen)].sum(axis=0) >= need).all():
                return size
    return clients_w


@given(st.integers(0, 500), st.integers(1, 3))
def test_greedy_pruning_keeps_at_most_two_excess_clients(seed, blocks):
    rng = np.random.default_rng(seed)
    placement = place(8, [1.0] * 8, 4)
    done = placement.holds & (rng.random((8, 8)) < 0.8)
    left = FrameCode(placement, blocks).prune(done).any(axis=1).sum()
    assert fewest_slowly(done, blocks) <= left <= fewest_slowly(done, blocks) + 2


def test_costliest_upload_is_dropped_first():
    placement = adopt([{0, 1}] * 3, 2)
    for costly in range(3):
        cost = [1.0] * 3
        cost[costly] = 5.0
        pruned = FrameCode(placement, 2).prune(placement.holds, cost=cost)
        assert np.flatnonzero(~pruned.any(axis=1)).tolist() == [costly]


def test_short_chunk_keeps_every_replica():
    placement = place(6, [1.0] * 6, 3)
    done = placement.holds.copy()
    done[np.flatnonzero(done[:, 0])[:2], 0] = False
    pruned = FrameCode(placement, 2).prune(done)
    assert pruned[:, 0].sum() == 1


def test_tight_limit_keeps_more_clients():
    rng = np.random.default_rng(0)
    placement = place(40, [1.0] * 40, 8)
    done = placement.holds & (rng.random((40, 40)) < 0.9)
    code = FrameCode(placement, 4)
    sizes = [code.prune(done, limit=limit).any(axis=1).sum() for limit in (0.1, 1.5, 3.0, np.inf)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


def test_pruning_without_finished_work_keeps_no_client():
    placement = place(4, [1.0] * 2, 2)
    assert not FrameCode(placement, 1).prune(np.zeros((2, 4), bool)).any()
