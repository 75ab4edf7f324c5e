"""The server's running sum: one vector of d numbers, for any number of clients.

The sum over all chunks is, block by block, g^(k) = sum over codewords of weight[k] * z. A codeword may
arrive in pieces of any size and order; each piece is added on arrival and not kept.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from fedgc.codes.arrays import Vector
from fedgc.codes.encode import TILE, block_size
from fedgc.errors import BadVector


class RunningSum:
    """Adds codewords with the weights given for each, and owns the sum.

    >>> total = RunningSum(3, 2)
    >>> total.add((1.0, 10.0), np.array([1.0, 2.0]))
    >>> total.total().tolist()
    [1.0, 2.0, 10.0]
    """

    def __init__(self, size: int, blocks: int, dtype: DTypeLike = np.float64) -> None:
        if size < 0:
            raise BadVector(f"a vector of {size} numbers: 0 or more are needed")
        if np.dtype(dtype) not in (np.float32, np.float64):
            raise BadVector(f"sums of {np.dtype(dtype)}: float32 or float64 is needed")
        self._size = size
        self._length = block_size(size, blocks)
        self._sums: np.ndarray[tuple[int, int], np.dtype[Any]] = np.zeros((blocks, self._length), dtype)
        self._product = np.empty((blocks, min(TILE, self._length)), dtype)

    def add(self, weights: Sequence[float], piece: Vector, offset: int = 0) -> None:
        """Add the part of a codeword that starts at `offset`, with a weight for each block of the sum."""
        if len(weights) != len(self._sums):
            raise BadVector(f"{len(weights)} weights: one for each of {len(self._sums)} blocks is needed")
        if piece.ndim != 1 or piece.dtype.kind != "f":
            raise BadVector(f"a piece of {piece.dtype} {piece.shape}: a vector of floats is needed")
        if not 0 <= offset <= offset + piece.size <= self._length:
            raise BadVector(f"numbers {offset} to {offset + piece.size} of a codeword: it has {self._length}")
        if not all(_is_finite(piece[at : at + TILE]) for at in range(0, piece.size, TILE)):
            raise BadVector("a codeword holds NaN or Inf")
        factor_b1 = np.asarray(weights, self._sums.dtype)[:, None]
        for at in range(0, piece.size, TILE):
            part = piece[at : at + TILE]
            product = self._product[:, : part.size]
            np.multiply(factor_b1, part, out=product, casting="same_kind")
            sums = self._sums[:, offset + at : offset + at + part.size]
            np.add(sums, product, out=sums)

    def total(self) -> Vector:
        """Return a view of the sum so far; later codewords change it."""
        return self._sums.reshape(-1)[: self._size]


def _is_finite(part: Vector) -> bool:
    """Test by one dot product; check all numbers only if it overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(part @ part)) or bool(np.isfinite(part).all())
