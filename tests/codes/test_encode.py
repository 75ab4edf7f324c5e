import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codes import Coefficients, block_size, encode, fold
from fedgc.errors import BadVector

TILE = 32_768


def encoded_slowly(chunks, matrix, updates, size):
    """Pad, cut, multiply, add: everything copied."""
    blocks = len(matrix[0])
    length = -(-size // blocks)
    total = np.zeros(length)
    for chunk, row in zip(chunks, matrix, strict=True):
        padded = np.zeros(length * blocks)
        padded[:size] = updates[chunk]
        for factor, block in zip(row, padded.reshape(blocks, length), strict=True):
            total += factor * block
    return total


@given(
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(0, 40) | st.sampled_from([TILE - 1, TILE + 1, 3 * TILE + 7]),
    st.sampled_from([np.float64, np.float32]),
    st.integers(0, 99),
)
def test_tiles_and_short_blocks_equal_padding_and_copying(count, blocks, size, dtype, seed):
    rng = np.random.default_rng(seed)
    chunks = tuple(rng.permutation(20)[:count].tolist())
    matrix = tuple(map(tuple, rng.standard_normal((count, blocks)).tolist()))
    updates = {chunk: rng.standard_normal(size).astype(dtype) for chunk in chunks}
    codeword = encode(chunks, matrix, updates)
    assert codeword.dtype == dtype
    assert codeword.shape == (block_size(size, blocks),)
    allowed = {np.float64: 1e-12, np.float32: 1e-4}[dtype]
    np.testing.assert_allclose(codeword, encoded_slowly(chunks, matrix, updates, size), rtol=0, atol=allowed)
    folded = np.zeros_like(codeword)
    for chunk, row in zip(chunks, matrix, strict=True):
        cut = int(rng.integers(0, size + 1))  # in two pieces, the later one first
        fold(row, updates[chunk][cut:], folded, cut)
        fold(row, updates[chunk][:cut], folded)
    np.testing.assert_allclose(folded, codeword, rtol=0, atol=allowed)


def test_the_codeword_is_written_where_the_caller_has_room():
    room = np.full(2, 9.0)
    assert encode((0,), ((1.0, 2.0),), {0: np.arange(4.0)}, out=room) is room
    assert room.tolist() == [4.0, 7.0]


def test_a_slice_with_gaps_is_encoded_as_its_copy():
    wide = np.arange(20.0)
    row = ((1.0, -1.0),)
    assert encode((0,), row, {0: wide[::2]}).tolist() == encode((0,), row, {0: wide[::2].copy()}).tolist()


ONE = np.ones(3)


@pytest.mark.parametrize(
    ("chunks", "matrix", "updates", "said"),
    [
        ((), (), {}, "no chunks"),
        ((0,), (), {0: ONE}, "0 rows of coefficients for 1 chunks"),
        ((0, 1), ((1.0,), (1.0, 2.0)), {0: ONE, 1: ONE}, r"rows of \[1, 2\] coefficients"),
        ((0,), ((),), {0: ONE}, r"rows of \[0\] coefficients"),
        ((0, 5), ((1.0,), (1.0,)), {0: ONE}, "no update of chunk 5"),
        ((0,), ((1.0,),), {0: np.ones((3, 1))}, r"chunk 0 is float64 \(3, 1\)"),
        ((0,), ((1.0,),), {0: np.ones(3, int)}, "chunk 0 is int64"),
        ((0,), ((1.0,),), {0: np.ones(3, np.float16)}, "chunk 0 is float16"),
        (
            (0, 1),
            ((1.0,), (1.0,)),
            {0: ONE, 1: np.ones(4)},
            "chunk 1 has 4 numbers of float64, that of chunk 0 3",
        ),
        ((0, 1), ((1.0,), (1.0,)), {0: ONE, 1: np.ones(3, np.float32)}, "chunk 1 has 3 numbers of float32"),
    ],
)
def test_what_cannot_be_encoded_is_refused_with_what_was_seen(chunks, matrix, updates, said):
    with pytest.raises(BadVector, match=said):
        encode(chunks, matrix, updates)


def test_room_of_another_size_or_type_is_refused():
    with pytest.raises(
        BadVector, match=r"array for a codeword: saw float64 \(2,\): float64 \(3,\) is needed"
    ):
        encode((0,), ((1.0,),), {0: ONE}, out=np.zeros(2))
    with pytest.raises(BadVector, match="array for a codeword: saw float32"):
        fold((1.0,), ONE, np.zeros(3, np.float32))
    for offset in (-1, 4):
        with pytest.raises(BadVector, match="2 blocks of 3 are too short for them"):
            fold((1.0, 1.0), ONE, np.zeros(3), offset)


def test_coefficients_have_one_row_of_equal_length_for_each_chunk():
    with pytest.raises(BadVector, match="1 rows of coefficients for 2 chunks"):
        Coefficients((0, 1), ((1.0,),))
    with pytest.raises(BadVector, match="differ in length"):
        Coefficients((0, 1), ((1.0,), (1.0, 2.0)))
