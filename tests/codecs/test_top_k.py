"""Test top-k in blocks with 2-bit values."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codecs import make_codec
from fedgc.codecs.top_k import TILE, TopK
from fedgc.errors import BadSetting, BadVector

RNG = np.random.default_rng(0)


def normal(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def kept_slowly(block: np.ndarray, kept: int) -> set[int]:
    """Return the positions of the largest numbers; among equal ones, the first."""
    return set(sorted(range(block.size), key=lambda at: (-abs(block[at]), at))[:kept])


@given(
    numbers=st.lists(
        st.sampled_from([0.0, 0.5, -0.5, 1.0, -2.0, 1e30, -1e-30, 3e38]), min_size=1, max_size=70
    ),
    block=st.integers(1, 20),
    share=st.floats(0.01, 1),
)
def test_largest_numbers_of_each_block_are_sent(numbers, block, share):
    vector, codec = np.float32(numbers), TopK(share=share, block=block)
    data = codec.encode(vector, RNG)
    assert data.nbytes == codec.largest(vector.size)
    decoded = codec.decode(data, vector.size)
    for first in range(0, vector.size, block):
        part, back = vector[first : first + block], decoded[first : first + block]
        kept = kept_slowly(part, max(1, round(share * part.size)))
        sent = set(np.flatnonzero(back).tolist())
        assert sent <= kept
        assert len(set(np.abs(back[list(kept)]).tolist())) <= 2
        assert (np.sign(back) * np.sign(part) >= 0).all()
        magnitudes = np.abs(part[list(kept)])
        assert np.abs(back).max() <= magnitudes.max() * (1 + 2**-8)


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 3 * TILE + 4096 + 5])
def test_tiles_are_parts_of_decoded_vector(size):
    codec, vector = TopK(), normal(size)
    data = codec.encode(vector, RNG)
    whole = np.concatenate([tile.copy() for _, tile in codec.tiles(data, size)])
    np.testing.assert_array_equal(whole, codec.decode(data, size))
    starts = [first for first, _ in codec.tiles(data, size)]
    assert starts == sorted(starts)
    assert np.count_nonzero(whole) == size // 4096 * 128 + (
        max(1, round(size % 4096 / 32)) if size % 4096 else 0
    )


@pytest.mark.parametrize(("share", "least"), [(1 / 16, 60), (1 / 32, 110), (1 / 64, 190), (1 / 128, 340)])
def test_bytes_are_near_entropy_of_positions(share, least):
    size, kept = 4096 * 50, round(share * 4096)
    codec = TopK(share=share)
    assert 4 * size / codec.largest(size) > least
    position_bits = math.log2(math.comb(4096, kept))
    best = (position_bits + 2 * kept + 32) / 8
    assert codec.largest(4096) < best + kept * 0.6 / 8 + 4, "at most 0.6 bits a position above the entropy"


def test_two_magnitudes_lose_at_most_fifth_of_sent_energy():
    vector = normal(4096 * 40)
    codec = TopK()
    decoded = codec.decode(codec.encode(vector, RNG), vector.size)
    sent = decoded != 0
    lost = np.square(vector[sent] - decoded[sent]).sum() / np.square(vector[sent]).sum()
    assert lost < 0.02  # a single magnitude loses 0.03


def test_zeros_and_equal_numbers_are_sent():
    codec = TopK()
    assert not codec.decode(codec.encode(np.zeros(5000, np.float32), RNG), 5000).any()
    equal = codec.decode(codec.encode(np.full(4096, -3, np.float32), RNG), 4096)
    assert equal[:128].tolist() == [-3.0] * 128
    assert not equal[128:].any()


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_non_finite_number_is_refused(odd):
    vector = normal(9000)
    vector[8500] = odd
    with pytest.raises(BadVector, match="NaN or Inf has no form in top-k"):
        TopK().encode(vector, RNG)


def test_largest_float_stays_finite():
    vector = np.full(10, np.finfo(np.float32).max, np.float32)
    codec = TopK(share=1.0)
    assert np.isfinite(codec.decode(codec.encode(vector, RNG), 10)).all()


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("share=0", "saw share=0.0, needed above 0 and at most 1"),
        ("share=1.5", "saw share=1.5, needed above 0 and at most 1"),
        ("share=nan", "saw share=nan, needed above 0 and at most 1"),
        ("block=0", "saw block=0, needed 1 to 65536"),
        ("block=65537", "saw block=65537, needed 1 to 65536"),
        ("decay=1.1", "saw decay=1.1, needed 0 to 1"),
    ],
)
def test_option_out_of_range_is_refused(option, says):
    with pytest.raises(BadSetting, match=f"setting links.codec: {says}"):
        make_codec(f"top-k {option}")


def test_other_number_of_positions_is_refused():
    codec = TopK(share=0.25, block=16)
    data = codec.encode(normal(16), RNG)
    for change, says in ((0xFF, "exactly 4 positions"), (0x00, "exactly 4 positions")):
        bad = data.copy()
        bad[-1] = change
        with pytest.raises(BadVector, match=says):
            codec.decode(bad, 16)
    with pytest.raises(BadVector, match="saw 1 bytes, needed"):
        codec.decode(data[:1], 16)


@given(seed=st.integers(0, 2**32 - 1))
def test_any_bytes_give_sent_numbers_or_refusal(seed):
    codec = TopK(share=0.1, block=60)
    data = np.random.default_rng(seed).integers(0, 256, codec.largest(150), np.uint8)
    try:
        with np.errstate(invalid="ignore"):
            decoded = codec.decode(data, 150)
    except BadVector:
        return
    assert np.count_nonzero(decoded) <= 15
