import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.codewords import codeword_of
from fedgc.codes import FrameCode, RunningSum, place
from fedgc.errors import BadVector


@given(
    st.integers(1, 6),
    st.integers(0, 50) | st.sampled_from([70_001]),
    st.sampled_from([np.float64, np.float32]),
    st.data(),
)
def test_pieces_in_any_order_and_size_give_sum(blocks, size, dtype, data):
    placement = place(9, [1.0] * 12, 6)
    solution = FrameCode(placement, blocks).solve(placement.holds)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    updates = rng.standard_normal((9, size)).astype(dtype)
    running = RunningSum(size, blocks, dtype)
    pieces = []
    for w in solution.needed:
        codeword = codeword_of(solution, w, dict(enumerate(updates)))
        cuts = sorted(rng.integers(0, codeword.size + 1, 3).tolist())
        for start, end in zip([0, *cuts], [*cuts, codeword.size], strict=True):
            pieces.append((solution.column(w).tolist(), codeword[start:end], start))
    for index in rng.permutation(len(pieces)):
        running.add(*pieces[index])
    total = running.total()
    assert total.dtype == dtype
    assert total.shape == (size,)
    allowed = {np.float64: 1e-9, np.float32: 1e-3}[dtype]
    np.testing.assert_allclose(total, updates.astype(np.float64).sum(axis=0), rtol=0, atol=allowed)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_codeword_is_refused_and_sum_is_unchanged(bad):
    total = RunningSum(5, 1)
    total.add((1.0,), np.ones(5))
    with pytest.raises(BadVector, match="a codeword holds NaN or Inf"):
        total.add((1.0,), np.array([1.0, 2.0, bad]))
    assert total.total().tolist() == [1.0] * 5


def test_squares_may_overflow():
    total = RunningSum(5, 1)
    total.add((1.0,), np.full(5, 1e200))
    assert total.total().tolist() == [1e200] * 5


@pytest.mark.parametrize(
    ("piece", "offset", "said"),
    [
        (np.ones((5, 1)), 0, r"float64 \(5, 1\)"),
        (np.ones(5, int), 0, "int64"),
        (np.ones(5), 1, "numbers 1 to 6 of a codeword: it has 5"),
        (np.ones(2), -1, "numbers -1 to 1"),
    ],
)
def test_piece_of_wrong_size_is_refused_with_seen_size(piece, offset, said):
    with pytest.raises(BadVector, match=said):
        RunningSum(5, 1).add((1.0,), piece, offset)


def test_sizes_and_types_of_sums_are_checked():
    with pytest.raises(BadVector, match="a vector of -1 numbers"):
        RunningSum(-1, 1)
    with pytest.raises(BadVector, match="sums of int32"):
        RunningSum(5, 1, np.int32)


def test_running_sum_takes_weight_of_every_block():
    with pytest.raises(BadVector, match="1 weights: one for each of 2 blocks"):
        RunningSum(4, 2).add((1.0,), np.ones(2))


@given(st.integers(0, 40), st.integers(1, 6), st.lists(st.integers(0, 99), max_size=5))
def test_running_sum_equals_direct_sum(size, blocks, seeds):
    length, expected, total = -(-size // blocks), np.zeros(size), RunningSum(size, blocks)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        weights, codeword = rng.standard_normal(blocks), rng.standard_normal(length)
        total.add(weights.tolist(), codeword)
        for at in range(size):
            expected[at] += weights[at // length] * codeword[at % length]
    np.testing.assert_allclose(total.total(), expected, atol=1e-12)
