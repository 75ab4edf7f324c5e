import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codes import FrameCode, fold, freeze, place
from fedgc.errors import BadPlacement


@given(st.integers(1, 4), st.integers(0, 999))
def test_folded_as_they_come_the_codewords_give_the_plain_sum(blocks, seed):
    """Progress comes client by client; what is frozen is folded at once and its update freed."""
    rng = np.random.default_rng(seed)
    placement = place(7, [1.0] * 8, 4)
    code = FrameCode(placement, blocks)
    updates = rng.standard_normal((7, 9))
    length = -(-9 // blocks)
    codewords = {w: np.zeros(length) for w in range(8)}
    held = {w: {} for w in range(8)}
    done = np.zeros((8, 7), bool)
    frozen = np.zeros_like(done)
    for w, chunk in rng.permutation(np.argwhere(placement.holds)).tolist():
        done[w, chunk] = True
        held[w][chunk] = updates[chunk].copy()
        newly = freeze(done, frozen, blocks) & ~frozen
        frozen = frozen | newly
        solution = code.solve(frozen, correlation=0.0)
        for other, folded in np.argwhere(newly).tolist():
            told = solution.coefficients(other)
            row = told.matrix[told.chunks.index(folded)]
            fold(row, held[other].pop(folded), codewords[other])
    assert (frozen.sum(axis=0) == blocks).all()
    final = code.solve(frozen)
    assert final.exact
    np.testing.assert_allclose(
        final.decode({v: codewords[v] for v in final.needed}, 9), updates.sum(axis=0), rtol=0, atol=1e-9
    )


def test_what_is_frozen_stays_so():
    done = np.array([[True], [False], [True]])
    frozen = freeze(done, np.zeros_like(done), 2)
    done[1] = True
    assert freeze(done, frozen, 2).tolist() == frozen.tolist()


def test_what_was_never_finished_cannot_be_frozen():
    with pytest.raises(BadPlacement, match="must be part of what is finished"):
        freeze(np.zeros((2, 1), bool), np.ones((2, 1), bool), 1)
    with pytest.raises(BadPlacement, match="0 blocks"):
        freeze(np.zeros((2, 1), bool), np.zeros((2, 1), bool), 0)
