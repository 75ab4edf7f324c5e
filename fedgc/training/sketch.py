"""Sixteen numbers by which copies of an update are compared without being sent.

Number j is the sum of s_i x_i over all i with i mod 16 = j, with random signs s: a projection whose squared
length is that of x in the mean, and under which two copies that differ by e differ by e's length, roughly.
The signs are a function of (seed, version, chunk), so that all holders use the same. A sign costs one bit
of a hash, x is walked in blocks, and nothing else of its size is made.

Charikar, Chen, Farach-Colton, "Finding frequent items in data streams" (2002), is the count sketch; its
random buckets are not needed where only lengths of differences matter.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.messages import SKETCH_NUMBERS
from fedgc.training.randomness import draws

# What turns the signs of eight numbers that the bits of one byte ask to turn, the highest bit first.
FLIPS: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.uint64) << np.uint64(
    63
)


class Sketch:
    """A running sketch: add the vector's pieces in order, each a multiple of 64 numbers but the last."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._words = 0
        self._sums = np.zeros(SKETCH_NUMBERS)
        self._room = np.empty((0, 8), np.uint64)  # for a piece with its signs

    def add(self, piece: NDArray[np.float64]) -> None:
        """Add the next numbers of the vector."""
        filled = np.pad(piece, (0, -piece.size % 64)) if piece.size % 64 else piece
        words = filled.size // 64
        signs = draws(self._start, self._words, words).astype("<u8").view(np.uint8)
        if len(self._room) < len(signs):
            self._room = np.empty((len(signs), 8), np.uint64)
        bits = self._room[: len(signs)]
        np.take(FLIPS, signs, axis=0, out=bits, mode="clip")  # "raise" takes ten times as long
        np.bitwise_xor(bits, filled.view(np.uint64).reshape(-1, 8), out=bits)
        signed = bits.view(np.float64).reshape(words, -1)
        self._sums += signed.sum(axis=0).reshape(-1, SKETCH_NUMBERS).sum(axis=0)
        self._words += words

    def numbers(self) -> tuple[float, ...]:
        """Return the sketch of what was added so far."""
        return tuple(self._sums.tolist())
