"""The running sum of a round's codewords: one array of the model's size, whatever the number of devices.

`Add` says with which weight a codeword enters each block of the sum; block k of b blocks is the numbers
k L to (k + 1) L, L = ceil(size / b), the last block short. A tile at a time, so that nothing else of the
model's size is made.
"""

import numpy as np

from fedgc.codes import block_size
from fedgc.errors import BadVector
from fedgc.flower.pieces import Vector

TILE = 65_536  # numbers


class RunningSum:
    """Add codewords, take the mean, clear.

    >>> total = RunningSum(3)
    >>> total.add((1.0, 10.0), np.float32([1, 2]))
    >>> total.mean(2).tolist()
    [0.5, 1.0, 5.0]
    """

    def __init__(self, size: int) -> None:
        self._sum: Vector = np.zeros(size, np.float32)
        self._product: Vector = np.empty(min(TILE, size), np.float32)

    def add(self, weights: tuple[float, ...], codeword: Vector) -> None:
        """Add the codeword to every block of the sum, with that block's weight."""
        length = block_size(self._sum.size, len(weights))
        if codeword.shape != (length,):
            raise BadVector(f"codeword: saw shape {codeword.shape}, needed ({length},)")
        for block, weight in enumerate(weights):
            target = self._sum[block * length : (block + 1) * length]
            for start in range(0, target.size if weight else 0, TILE):
                part = target[start : start + TILE]
                product = self._product[: part.size]
                np.multiply(codeword[start : start + part.size], np.float32(weight), out=product)
                np.add(part, product, out=part)

    def mean(self, samples: int) -> Vector:
        """Return the sum divided by the number of samples."""
        mean: Vector = self._sum / np.float32(samples)
        return mean

    def clear(self) -> None:
        """Begin anew."""
        self._sum.fill(0)
