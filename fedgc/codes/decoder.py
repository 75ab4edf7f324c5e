"""The running sum of one solution, in which a codeword is known by its client.

With R the code's columns, g^(k) = sum over codewords of R[k, column] * z. A repair stands in for part of
a lost codeword: it is added under the lost client's name, whose column it uses.
"""

import numpy as np
from numpy.typing import DTypeLike

from fedgc.codes.arrays import Vector
from fedgc.codes.running_sum import RunningSum
from fedgc.codes.solution import Solution
from fedgc.errors import BadVector


class Decoder:
    """The running sum of one solution: a codeword is known by the client whose column it uses.

    >>> from fedgc.codes import FrameCode, place
    >>> placed = place(2, [1.0, 1.0], 1)
    >>> decoder = Decoder(FrameCode(placed, 1).solve(placed.holds), 3)
    >>> decoder.add(0, np.array([1.0, 2.0, 3.0]), 0)
    >>> decoder.add(1, np.array([10.0]), 2)
    >>> decoder.total().tolist()
    [1.0, 2.0, 13.0]
    """

    def __init__(self, solution: Solution, size: int, dtype: DTypeLike = np.float64) -> None:
        self._matrix_bw = solution.matrix_bw
        self._needed = solution.needed
        self._sum = RunningSum(size, solution.blocks, dtype)

    def add(self, w: int, piece: Vector, offset: int) -> None:
        """Add part of the codeword of `client` (or of a repair for it) that starts at `offset`."""
        if w not in self._needed:
            raise BadVector(f"client {w} sends no codeword for this sum")
        try:
            self._sum.add(self._matrix_bw[:, w].tolist(), piece, offset)
        except BadVector as error:
            raise BadVector(f"client {w}: {error}") from None

    def total(self) -> Vector:
        """Return the sum so far: a view, which later codewords change."""
        return self._sum.total()
