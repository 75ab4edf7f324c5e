"""A sketch of an update: 16 numbers by which replicas are compared without sending them.

Number j is the sum of s_i x_i over all i with i mod 16 = j, with random signs s. In expectation the sketch
has the squared norm of x, so the distance of two sketches estimates that of two replicas. The signs are a
function of the run's seed and the model version, equal on all clients. x is read in blocks.

It is a count sketch (Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", 2002) without
random buckets, which distances do not need.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.messages import SKETCH_NUMBERS
from fedgc.training.randomness import draws

# For each byte, the XOR masks that flip the signs of eight numbers by its bits, the highest bit first.
FLIPS: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.uint64) << np.uint64(
    63
)


class Sketch:
    """A running sketch: add the vector's pieces in order, each a multiple of 64 numbers but the last."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._words = 0
        self._sums = np.zeros(SKETCH_NUMBERS)
        self._room = np.empty((0, 8), np.uint64)  # buffer for a signed piece

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
        """Return the sketch of the numbers added so far."""
        return tuple(self._sums.tolist())
