import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.codewords import encode
from fedgc.codes import Coefficients, block_size, fold
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


def test_strided_slice_is_encoded_like_its_copy():
    wide = np.arange(20.0)
    row = ((1.0, -1.0),)
    assert encode((0,), row, {0: wide[::2]}).tolist() == encode((0,), row, {0: wide[::2].copy()}).tolist()


ONE = np.ones(3)


@pytest.mark.parametrize(
    ("update", "said"),
    [
        (np.ones((3, 1)), r"an update is float64 \(3, 1\)"),
        (np.ones(3, int), "an update is int64"),
        (np.ones(3, np.float16), "an update is float16"),
    ],
)
def test_unencodable_input_is_refused_with_seen_value(update, said):
    with pytest.raises(BadVector, match=said):
        fold((1.0,), update, np.zeros(3, update.dtype))


def test_buffer_of_wrong_size_or_type_is_refused():
    with pytest.raises(BadVector, match="array for a codeword: saw float32"):
        fold((1.0,), ONE, np.zeros(3, np.float32))
    for offset in (-1, 4):
        with pytest.raises(BadVector, match="2 blocks of 3 are too short for them"):
            fold((1.0, 1.0), ONE, np.zeros(3), offset)


def test_coefficients_have_one_equal_length_row_per_chunk():
    with pytest.raises(BadVector, match="1 rows of coefficients for 2 chunks"):
        Coefficients((0, 1), ((1.0,),))
    with pytest.raises(BadVector, match="differ in length"):
        Coefficients((0, 1), ((1.0,), (1.0, 2.0)))
