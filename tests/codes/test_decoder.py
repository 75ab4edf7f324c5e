import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codes import Decoder, FrameCode, RunningSum, place
from fedgc.errors import BadVector


@given(
    st.integers(1, 6),
    st.integers(0, 50) | st.sampled_from([70_001]),
    st.sampled_from([np.float64, np.float32]),
    st.data(),
)
def test_pieces_in_any_order_and_size_give_the_sum(blocks, size, dtype, data):
    placement = place(9, [1.0] * 12, 6)
    solution = FrameCode(placement, blocks).solve(placement.holds)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    updates = rng.standard_normal((9, size)).astype(dtype)
    decoder = Decoder(solution, size, dtype)
    pieces = []
    for w in solution.needed:
        codeword = solution.encode(w, dict(enumerate(updates)))
        cuts = sorted(rng.integers(0, codeword.size + 1, 3).tolist())
        for start, end in zip([0, *cuts], [*cuts, codeword.size], strict=True):
            pieces.append((w, codeword[start:end], start))
    for index in rng.permutation(len(pieces)):
        decoder.add(*pieces[index])
    total = decoder.total()
    assert total.dtype == dtype
    assert total.shape == (size,)
    allowed = {np.float64: 1e-9, np.float32: 1e-3}[dtype]
    np.testing.assert_allclose(total, updates.astype(np.float64).sum(axis=0), rtol=0, atol=allowed)


def a_decoder():
    placement = place(4, [1.0] * 2, 1)
    return Decoder(FrameCode(placement, 1).solve(placement.holds), 5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_codeword_that_is_not_finite_is_refused_and_leaves_the_sum_alone(bad):
    decoder = a_decoder()
    decoder.add(0, np.ones(5), 0)
    with pytest.raises(BadVector, match="client 1: a codeword holds NaN or Inf"):
        decoder.add(1, np.array([1.0, 2.0, bad]), 0)
    assert decoder.total().tolist() == [1.0] * 5


def test_numbers_whose_squares_overflow_are_welcome():
    decoder = a_decoder()
    decoder.add(0, np.full(5, 1e200), 0)
    assert decoder.total().tolist() == [1e200] * 5


@pytest.mark.parametrize(
    ("w", "piece", "offset", "said"),
    [
        (7, np.ones(5), 0, "client 7 sends no codeword"),
        (0, np.ones((5, 1)), 0, r"float64 \(5, 1\)"),
        (0, np.ones(5, int), 0, "int64"),
        (0, np.ones(5), 1, "client 0: numbers 1 to 6 of a codeword: it has 5"),
        (0, np.ones(2), -1, "numbers -1 to 1"),
    ],
)
def test_a_piece_that_does_not_fit_is_refused_with_what_was_seen(w, piece, offset, said):
    with pytest.raises(BadVector, match=said):
        a_decoder().add(w, piece, offset)


def test_sizes_and_types_of_sums_are_checked():
    placement = place(4, [1.0] * 2, 1)
    solution = FrameCode(placement, 1).solve(placement.holds)
    with pytest.raises(BadVector, match="a vector of -1 numbers"):
        Decoder(solution, -1)
    with pytest.raises(BadVector, match="sums of int32"):
        Decoder(solution, 5, np.int32)


def test_a_running_sum_is_told_the_weight_of_every_block():
    with pytest.raises(BadVector, match="1 weights: one for each of 2 blocks"):
        RunningSum(4, 2).add((1.0,), np.ones(2))


@given(st.integers(0, 40), st.integers(1, 6), st.lists(st.integers(0, 99), max_size=5))
def test_a_running_sum_is_what_one_would_write_down(size, blocks, seeds):
    length, expected, total = -(-size // blocks), np.zeros(size), RunningSum(size, blocks)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        weights, codeword = rng.standard_normal(blocks), rng.standard_normal(length)
        total.add(weights.tolist(), codeword)
        for at in range(size):
            expected[at] += weights[at // length] * codeword[at % length]
    np.testing.assert_allclose(total.total(), expected, atol=1e-12)
