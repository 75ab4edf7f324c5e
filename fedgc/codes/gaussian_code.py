"""The Gaussian code of arXiv 2405.19509: an independent normal column for each client.

It is implemented as published, for comparison. Its stability depends on the condition of small Gaussian
matrices, which is good in the median and unbounded in the worst case.
"""

import numpy as np

from fedgc.codes.arrays import Float
from fedgc.codes.code import Code
from fedgc.codes.placement import Placement


class GaussianCode(Code):
    """A code whose R has independent standard normal entries; every finished replica is mixed in.

    >>> placed = Placement(2, ((0, 1), (1, 0)), (0, 1), (0.25, 0.75))
    >>> code = GaussianCode(placed, 2, np.random.default_rng(0))
    >>> code.solve(np.ones((2, 2), bool)).exact
    True
    """

    summary = "a Gaussian column for each client (arXiv 2405.19509)"

    @classmethod
    def make(cls, placement: Placement, blocks: int, seed: int) -> "GaussianCode":
        """Draw the columns from the seed."""
        return cls(placement, blocks, np.random.default_rng([seed, blocks]))

    def __init__(self, placement: Placement, blocks: int, rng: np.random.Generator) -> None:
        super().__init__(placement, blocks)
        self._matrix_bw = rng.standard_normal((blocks, placement.clients_w))

    @property
    def matrix_bw(self) -> Float:
        """Return R, a column for each client."""
        return self._matrix_bw
