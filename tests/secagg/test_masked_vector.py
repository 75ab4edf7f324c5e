"""Test vectors that are masked as they are read: the same words for every size and order of parts."""

import hashlib

import numpy as np
import pytest

from fedgc.secagg import MaskedVector, Quantizer, RingSum
from fedgc.secagg.keystream import BLOCK_WORDS, RUN_WORDS, Strand, add_strands
from fedgc.secagg.masked_vector import Shield

SIZE = RUN_WORDS + BLOCK_WORDS + 9  # numbers: two runs of the streams, and a short tile
STRANDS = tuple(Strand(bytes([at] * 32), minus=at == 2) for at in range(3))
CHANCE = bytes(range(32))
NOISE = Shield(np.float32(0.5), 300.0, b"noise" * 6 + b"!!")


def update_of(size):
    """Numbers in and beyond the clip, by integer arithmetic."""
    return (((np.arange(size) * 7919) % 20011 - 10005) / 8000).astype(np.float32)


def vector(bits=20, ring=32, strands=STRANDS, shield=None):
    return MaskedVector(Quantizer(1.0, bits, ring, 1000), update_of(SIZE), 777, strands, CHANCE, shield)


@pytest.mark.parametrize(
    ("bits", "ring", "golden"),
    [(4, 8, "ac90a1bd179ee1f130c4da7eaf4a6e8f"), (8, 16, "9b0fa3107fb7aac4918de390836877cb"),
     (20, 32, "137fb874206fe411c2a8720e036e9981")],
)  # fmt: skip
def test_words_are_those_of_vector_masked_as_whole(bits, ring, golden):
    """Golden: of the version that expanded all masks first, which needs four times the memory."""
    masked = vector(bits, ring)
    assert hashlib.sha256(masked[:].tobytes()).hexdigest()[:32] == golden


PARTS = [
    *((part, None) for part in (BLOCK_WORDS, 50_001, 3 * BLOCK_WORDS - 1, RUN_WORDS)),
    (RUN_WORDS - 9, NOISE),  # each part makes the noise of its run anew, so that small ones take long
]


@pytest.mark.parametrize(("part", "shield"), PARTS)
def test_words_do_not_depend_on_parts_that_are_read(part, shield):
    whole, masked = vector(shield=shield)[:], vector(shield=shield)
    parts = [slice(first, first + part) for first in range(0, masked.size, part)]
    for each in (*parts, *reversed(parts)):
        assert np.array_equal(masked[each], whole[each])


def test_noise_of_each_run_differs():
    quantizer, size = Quantizer(1.0, 20, 32, 1000), RUN_WORDS + BLOCK_WORDS
    words = MaskedVector(quantizer, np.zeros(size, np.float32), 1, (), CHANCE, NOISE)[:size].view(np.int32)
    assert not np.array_equal(words[:BLOCK_WORDS], words[RUN_WORDS:])
    assert words.std() == pytest.approx(300, rel=0.01)


def test_sum_of_tiles_is_sum_of_vectors():
    masked, plain = vector(), vector(strands=())[:]
    ring = RingSum(Quantizer(1.0, 20, 32, 1000), SIZE)
    ring.add(masked)
    ring.add(masked[:])
    ring.remove([*STRANDS, *STRANDS])
    assert np.array_equal(ring._words, plain + plain)
    words = masked[:]
    add_strands(words, [strand.opposite() for strand in STRANDS])
    assert np.array_equal(words, plain)
