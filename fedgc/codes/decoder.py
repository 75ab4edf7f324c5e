"""The server's running sum: d numbers, whatever the number of workers.

The sum over all chunks is, block by block, g^(k) = sum over codewords of R[k, column] * z. A codeword
may come in pieces of any size and order; each enters the sum as it comes and is not kept. A repair
stands in for part of a lost codeword: it is added under the lost worker's name, whose column it uses.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from fedgc.codes.arrays import Vector
from fedgc.codes.encode import TILE, block_size
from fedgc.errors import BadVector

if TYPE_CHECKING:  # a solution decodes with this room, so the name alone is needed here
    from fedgc.codes.solution import Solution


class RunningSum:
    """Adds codewords up under the weights told with each; owns its sums.

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
        """Return the sum so far: a view, which later codewords change."""
        return self._sums.reshape(-1)[: self._size]


class Decoder:
    """The running sum of one solution: a codeword is known by the worker whose column it uses.

    >>> from fedgc.codes import FrameCode, place
    >>> placed = place(2, [1.0, 1.0], 1)
    >>> decoder = Decoder(FrameCode(placed, 1).solve(placed.holds), 3)
    >>> decoder.add(0, np.array([1.0, 2.0, 3.0]), 0)
    >>> decoder.add(1, np.array([10.0]), 2)
    >>> decoder.total().tolist()
    [1.0, 2.0, 13.0]
    """

    def __init__(self, solution: "Solution", size: int, dtype: DTypeLike = np.float64) -> None:
        self._matrix_bw = solution.matrix_bw
        self._needed = solution.needed
        self._sum = RunningSum(size, solution.blocks, dtype)

    def add(self, worker: int, piece: Vector, offset: int) -> None:
        """Add part of the codeword of `worker` (or of a repair for it) that starts at `offset`."""
        if worker not in self._needed:
            raise BadVector(f"worker {worker} sends no codeword for this sum")
        try:
            self._sum.add(self._matrix_bw[:, worker].tolist(), piece, offset)
        except BadVector as error:
            raise BadVector(f"worker {worker}: {error}") from None

    def total(self) -> Vector:
        """Return the sum so far: a view, which later codewords change."""
        return self._sum.total()


def _is_finite(part: Vector) -> bool:
    """Tell by one dot product, and look closer only where that overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(part @ part)) or bool(np.isfinite(part).all())
