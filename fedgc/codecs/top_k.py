"""Top-k in blocks with 2-bit values (SparseLoCo, Sarfi et al., arXiv 2508.15706).

Of each block of numbers the k of largest magnitude are sent, each as a sign and one of two magnitudes of its
block. What is not sent stays in the client's error-feedback residual, which decays.

The record of a block, with k and the block's size known to both sides:

    magnitudes  2 x bf16, the lower and the upper
    signs       k bits
    levels      k bits, 1 for the upper magnitude
    lows        k times `low` bits  } the sorted positions p_0 < p_1 < ... in the Elias-Fano code (Elias 1974)
    highs       k + rest bits       } of p_j - j, whose lowest `low` bits stand in `lows`

In `highs`, bit j + ((p_j - j) >> low) is set for each j. A position takes about 7 bits where one number in 32
is sent, against 12 bits of a plain index into 4096 and the entropy of 6.4. If more than half of the numbers
are sent, `low` is 0, and `highs` is a mask of the block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.codecs.codec import Bytes, Codec
from fedgc.codecs.formats import to_bf16
from fedgc.errors import BadSetting, BadVector

LARGEST_BLOCK: Final = 1 << 16
TILE: Final = 1 << 17  # numbers encoded at a time: bounded scratch, within the second-level cache
LARGEST_BF16: Final = np.uint32(0x7F7F0000).view(
    np.float32
)  # rounding would make a larger magnitude infinite

Rows = NDArray[np.float32]  # (blocks, size of a block)
Positions = NDArray[np.int64]  # (blocks, k), each row sorted


class TopK(Codec):
    """Sends the share of the numbers of each block that is largest, in 2 bits each, with their positions.

    >>> codec = TopK(share=0.5, block=4)
    >>> data = codec.encode(np.float32([0.0, -4.0, 1.0, 8.0]), np.random.default_rng(0))
    >>> codec.decode(data, 4).tolist()
    [0.0, -4.0, 0.0, 8.0]
    """

    summary = "the largest numbers of each block, in 2 bits each (SparseLoCo)"

    def __init__(self, *, share: float = 1 / 32, block: int = 4096, decay: float = 0.95) -> None:
        """Check the options; `decay` is the factor of the residual in each update."""
        for name, seen, is_possible, needed in (
            ("share", share, 0 < share <= 1, "above 0 and at most 1"),
            ("block", block, 1 <= block <= LARGEST_BLOCK, f"1 to {LARGEST_BLOCK}"),
            ("decay", decay, 0 <= decay <= 1, "0 to 1"),
        ):
            if not is_possible:
                raise BadSetting(f"setting links.codec: saw {name}={seen}, needed {needed}")
        self._share, self._block, self.decay = share, block, decay

    def encode(self, vector: NDArray[np.float32], rng: np.random.Generator) -> Bytes:  # noqa: ARG002  no chance
        """Return the records of all blocks."""
        data = np.empty(self.largest(vector.size), np.uint8)
        for first, at, blocks, record in self._parts(vector.size):
            rows = vector[first : first + blocks * record.size].reshape(blocks, record.size)
            data[at : at + blocks * record.size_bytes] = record.encode(rows).ravel()
        return data

    def decode(self, data: Bytes, size: int) -> NDArray[np.float32]:
        """Return the numbers; those that were not sent are 0."""
        vector = np.zeros(size, np.float32)
        for first, at, blocks, record in self._checked_parts(data, size):
            records = data[at : at + blocks * record.size_bytes].reshape(blocks, record.size_bytes)
            record.decode(records, vector[first : first + blocks * record.size])
        return vector

    def tiles(self, data: Bytes, size: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Return the numbers a tile at a time."""
        for first, at, blocks, record in self._checked_parts(data, size):
            tile = np.zeros(blocks * record.size, np.float32)
            record.decode(data[at : at + blocks * record.size_bytes].reshape(blocks, record.size_bytes), tile)
            yield first, tile

    def largest(self, size: int) -> int:
        """Return the bytes of `size` numbers."""
        whole, rest = divmod(size, self._block)
        return whole * self._record(self._block).size_bytes + (self._record(rest).size_bytes if rest else 0)

    def _checked_parts(self, data: Bytes, size: int) -> Iterator[tuple[int, int, int, "_Record"]]:
        if data.size != self.largest(size):
            raise BadVector(f"saw {data.size} bytes, needed {self.largest(size)} for {size} numbers")
        return self._parts(size)

    def _parts(self, size: int) -> Iterator[tuple[int, int, int, "_Record"]]:
        """Return tiles of equal blocks: first number, first byte, number of blocks, their record."""
        whole, rest = divmod(size, self._block)
        record, step = self._record(self._block), max(1, TILE // self._block)
        for first in range(0, whole, step):
            blocks = min(step, whole - first)
            yield first * self._block, first * record.size_bytes, blocks, record
        if rest:
            yield whole * self._block, whole * record.size_bytes, 1, self._record(rest)

    def _record(self, size: int) -> "_Record":
        return _record_of(size, max(1, round(self._share * size)))


@dataclass(frozen=True, slots=True)
class _Record:
    """The form of the record of a block: its numbers, how many are sent, the low bits of a position."""

    size: int
    kept: int
    low: int

    @property
    def highs(self) -> int:
        """The bits of `highs`."""
        return self.kept + ((self.size - self.kept) >> self.low)

    @property
    def ends(self) -> tuple[int, int, int, int, int]:
        """Where each part of the record ends, in bytes."""
        parts = (4, *(-(-bits // 8) for bits in (self.kept, self.kept, self.kept * self.low, self.highs)))
        return tuple(np.cumsum(parts).tolist())

    @property
    def size_bytes(self) -> int:
        """The bytes of the record."""
        return self.ends[-1]

    def encode(self, rows: Rows) -> Bytes:
        """Return the records of these blocks, a row each."""
        absolute = np.abs(rows)
        if not np.isfinite(absolute.max()):
            raise BadVector("NaN or Inf has no form in top-k")
        positions = self._largest(absolute)
        signs = np.take_along_axis(rows, positions, axis=1) < 0
        kept = np.take_along_axis(absolute, positions, axis=1)
        magnitudes, levels = _two_magnitudes(kept)
        excess = positions - np.arange(self.kept)
        lows = (excess[:, :, None] >> np.arange(self.low) & 1).reshape(len(rows), -1)
        highs = np.zeros((len(rows), self.highs), bool)
        np.put_along_axis(highs, (excess >> self.low) + np.arange(self.kept), True, axis=1)
        bits = (signs, levels, lows.astype(bool), highs)
        return np.hstack([magnitudes.view(np.uint8), *(np.packbits(each, axis=1) for each in bits)])

    def decode(self, records: Bytes, numbers: NDArray[np.float32]) -> None:
        """Write the numbers that were sent into these blocks of zeros."""
        blocks = len(records)
        scales, signs, levels, lows, highs = np.split(records, self.ends[:-1], axis=1)
        magnitudes = np.ascontiguousarray(scales).view("<u2").astype("<u4")
        magnitudes <<= 16
        set_bits = np.unpackbits(highs, axis=1, count=self.highs)
        if (set_bits.sum(axis=1, dtype=np.int64) != self.kept).any():
            raise BadVector(f"saw a block without exactly {self.kept} positions")
        high = (np.flatnonzero(set_bits) % self.highs).reshape(blocks, self.kept) - np.arange(self.kept)
        low_bits = np.unpackbits(lows, axis=1, count=self.kept * self.low)
        low = low_bits.reshape(blocks, self.kept, self.low) @ (1 << np.arange(self.low))
        excess = (high << self.low) + low
        if (excess[:, 1:] < excess[:, :-1]).any() or (excess[:, -1] > self.size - self.kept).any():
            raise BadVector(f"saw positions out of order, needed them sorted and below {self.size}")
        upper = np.unpackbits(levels, axis=1, count=self.kept)
        values = np.take_along_axis(magnitudes.view("<f4"), upper.astype(np.int64), axis=1)
        values *= 1 - 2 * np.unpackbits(signs, axis=1, count=self.kept).astype(np.float32)
        starts = np.arange(0, blocks * self.size, self.size)[:, None]
        numbers[(excess + np.arange(self.kept) + starts).ravel()] = values.ravel()

    def _largest(self, absolute: Rows) -> Positions:
        """Return the sorted positions of the largest numbers; among equal ones, the first."""
        if self.kept == self.size:
            return np.tile(np.arange(self.size), (len(absolute), 1))
        last = self.size - self.kept
        threshold = np.partition(absolute, last, axis=1)[:, last : last + 1]
        chosen = absolute >= threshold
        for row in np.flatnonzero(np.count_nonzero(chosen, axis=1) != self.kept):  # ties
            above = absolute[row] > threshold[row]
            ties = np.flatnonzero(absolute[row] == threshold[row])
            above[ties[: self.kept - np.count_nonzero(above)]] = True
            chosen[row] = above
        return (np.flatnonzero(chosen) % self.size).reshape(len(absolute), self.kept)


@lru_cache(maxsize=64)
def _record_of(size: int, kept: int) -> _Record:
    """Return the shortest record of a block."""
    return min((_Record(size, kept, low) for low in range(17)), key=lambda record: record.size_bytes)


def _two_magnitudes(kept: Rows) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
    """Return two magnitudes for each block (Lloyd 1982, two steps), and which numbers take the upper one."""
    split = kept.mean(axis=1, dtype=np.float64)
    for _ in range(2):
        upper = kept > split[:, None]
        above = np.count_nonzero(upper, axis=1)
        total, high = (
            kept.sum(axis=1, dtype=np.float64),
            np.where(upper, kept, 0).sum(axis=1, dtype=np.float64),
        )
        lower_mean = (total - high) / np.maximum(kept.shape[1] - above, 1)
        upper_mean = high / np.maximum(above, 1)
        split = (lower_mean + upper_mean) / 2
    pair = np.stack([lower_mean, upper_mean], axis=1).astype(np.float32)
    return to_bf16(np.minimum(pair, LARGEST_BF16)).astype("<u2"), upper
