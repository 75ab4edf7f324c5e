"""What is fixed before the end of a round is never fixed otherwise, and its factors are final."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codes import FrameCode, place
from fedgc.round.coded.early import Early


@given(st.integers(1, 3), st.integers(0, 999))
def test_whatever_comes_later_a_folded_copy_keeps_its_factors(blocks, seed):
    rng = np.random.default_rng(seed)
    placement = place(6, [1.0] * 6, 3)
    early, counting = Early(placement), np.zeros_like(placement.holds)
    folded = {}
    for w, chunk in rng.permutation(np.argwhere(placement.holds)).tolist():
        counting[w, chunk] = True
        if rng.random() < 0.5:
            room = early.room(w, counting, placement.holds, blocks)
            rows = dict(zip(room.fold.chunks, room.fold.matrix, strict=True))
            assert blocks > 1 or rows or room.spare, "what hangs on nobody else can always be freed"
            assert not folded.keys() & {(w, chunk) for chunk in rows}, "once"
            folded |= {(w, chunk): row for chunk, row in rows.items()}
            counting[w, list(room.spare)] = False
        if rng.random() < 0.1:
            gone = int(rng.integers(len(counting)))
            counting[gone] = False
            early.forget(gone)
            folded = {key: row for key, row in folded.items() if key[0] != gone}
    mixed = early.mixed(counting)
    solution = FrameCode(placement, early.blocks or 1).solve(mixed, correlation=0.0)
    for (w, chunk), row in folded.items():
        told = solution.coefficients(w)
        np.testing.assert_allclose(told.matrix[told.chunks.index(chunk)], row, rtol=1e-12)
    if early.stands:
        replicas = mixed.sum(axis=0)
        assert set(replicas[counting.any(axis=0)]) <= {*range(early.blocks, 4)}, (
            "no chunk with a copy is short"
        )


def both(clients_w=3, chunks=2):
    placement = place(chunks, [1.0] * clients_w, clients_w)
    return Early(placement), np.zeros_like(placement.holds), placement.holds


def test_a_copy_that_is_fixed_elsewhere_is_spare():
    early, counting, holds = both()
    counting[:, 0] = True
    rooms = [early.room(w, counting, holds, 2) for w in range(3)]
    assert [room.fold.chunks for room in rooms] == [(0,), (0,), ()]
    assert [room.spare for room in rooms] == [(), (), (0,)]


def test_a_copy_is_not_spare_as_long_as_one_that_is_fixed_is_wanting():
    early, counting, holds = both()
    counting[0, 0] = True
    assert early.room(0, counting, holds, 2).fold.chunks == (0,)
    counting[2, 0] = True
    assert early.room(2, counting, holds, 2).spare == ()
    counting[1, 0] = True
    assert early.room(2, counting, holds, 2).spare == (0,)


def test_a_chunk_of_which_nothing_is_folded_any_more_is_fixed_anew():
    early, counting, holds = both()
    counting[:2, 0] = True
    early.room(0, counting, holds, 2)
    early.forget(0)
    counting[0] = False
    counting[2, 0] = True
    assert early.mixed(counting)[:, 0].tolist() == [False, True, True]
    assert not early.stands


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_what_has_enough_copies_is_folded_before_anything_counts_on_others(blocks):
    early, counting, holds = both()
    counting[0] = True
    counting[:blocks, 1] = True
    assert early.room(0, counting, holds, blocks).fold.chunks == ((1,) if blocks > 1 else (0, 1))
