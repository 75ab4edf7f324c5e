"""The compression of SparseLoCo as its authors publish it (Sarfi et al., arXiv 2508.15706), as a rival.

Of each chunk of 4096 numbers the k largest are sent, with plain indices of 12 bits. All values share one
table of four: they are cut into four equal bins over six standard deviations about their mean, and a bin
stands for the mean of its values.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.codecs import Bytes, Codec

CHUNK: Final = 4096
INDEX_BITS: Final = 12
BINS: Final = 4
SIGMAS: Final = 6.0


class SparseLoCo(Codec):
    """Top-k in chunks of 4096 numbers, 12 bits an index and 2 bits a value, decay 0.95."""

    summary = "SparseLoCo as published"

    def __init__(self, kept: int, decay: float = 0.95) -> None:
        """Send this many numbers of each chunk."""
        self._kept, self.decay = kept, decay

    def encode(self, vector: NDArray[np.float32], rng: np.random.Generator) -> Bytes:  # noqa: ARG002  no chance
        """Return the table, the levels and the indices."""
        rows = _chunks(vector)
        positions = np.argsort(-np.abs(rows), axis=1, kind="stable")[:, : self._kept]
        values = np.take_along_axis(rows, positions, axis=1)
        step = SIGMAS * values.std(ddof=1) / BINS
        levels = np.clip(np.rint((values - values.mean()) / (step or 1.0)) + BINS // 2, 0, BINS - 1).astype(
            int
        )
        sums = np.bincount(levels.ravel(), values.ravel(), BINS)
        table = (sums / np.maximum(np.bincount(levels.ravel(), minlength=BINS), 1)).astype("<f4")
        bits = [_bits(levels, 2), _bits(positions, INDEX_BITS)]
        return np.concatenate([table.view(np.uint8), *(np.packbits(each) for each in bits)])

    def decode(self, data: Bytes, size: int) -> NDArray[np.float32]:
        """Return the numbers; those that were not sent are 0."""
        count = -(-size // CHUNK) * self._kept
        ends = 16, 16 + -(-2 * count // 8)
        levels = _numbers(data[ends[0] : ends[1]], count, 2)
        positions = _numbers(data[ends[1] :], count, INDEX_BITS).reshape(-1, self._kept)
        rows = np.zeros((len(positions), CHUNK), np.float32)
        np.put_along_axis(rows, positions, data[:16].view("<f4")[levels].reshape(positions.shape), axis=1)
        return rows.ravel()[:size]

    def largest(self, size: int) -> int:
        """Return the bytes of `size` numbers."""
        count = -(-size // CHUNK) * self._kept
        return 16 + -(-2 * count // 8) + -(-INDEX_BITS * count // 8)


def _chunks(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    rows = np.zeros((-(-vector.size // CHUNK), CHUNK), np.float32)
    rows.ravel()[: vector.size] = vector
    return rows


def _bits(numbers: NDArray[np.int64], count: int) -> NDArray[np.uint8]:
    return (numbers.reshape(-1, 1) >> np.arange(count) & 1).astype(np.uint8).ravel()


def _numbers(data: Bytes, count: int, bits: int) -> NDArray[np.int64]:
    return np.unpackbits(data, count=count * bits).reshape(count, bits).astype(np.int64) @ (
        1 << np.arange(bits)
    )
