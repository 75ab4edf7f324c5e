"""Encoding and decoding of a whole round in one process."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedgc.codes import RunningSum, Solution, block_size, fold
from fedgc.codes.arrays import Vector


def encode(chunks: Sequence[int], matrix: Sequence[Sequence[float]], updates: Mapping[int, Vector]) -> Vector:
    """Return the codeword of these chunks.

    >>> encode((7,), ((1.0, 10.0),), {7: np.array([1.0, 2.0, 3.0])}).tolist()
    [31.0, 2.0]
    """
    first = updates[chunks[0]]
    codeword = np.zeros(block_size(first.size, len(matrix[0])), first.dtype)
    for chunk, row in zip(chunks, matrix, strict=True):
        fold(row, updates[chunk], codeword)
    return codeword


def codeword_of(solution: Solution, w: int, updates: Mapping[int, Vector]) -> Vector:
    """Return the codeword of a needed client.

    >>> from fedgc.codes import FrameCode, place
    >>> placed = place(2, [1.0, 1.0], 2)
    >>> solution = FrameCode(placed, 2).solve(placed.holds)
    >>> updates = {0: np.array([1.0, 2.0, 3.0]), 1: np.array([10.0, 20.0, 30.0])}
    >>> codewords = {w: codeword_of(solution, w, updates) for w in solution.needed}
    >>> np.round(decode(solution, codewords, 3), 9).tolist()
    [11.0, 22.0, 33.0]
    """
    mixture = solution.coefficients(w)
    return encode(mixture.chunks, mixture.matrix, updates)


def decode(solution: Solution, codewords: Mapping[int, Vector], size: int) -> Vector:
    """Return the sum over all chunks, or its best estimate if replicas are missing."""
    total = RunningSum(size, solution.blocks)
    for w in sorted(solution.needed):
        total.add(solution.column(w).tolist(), codewords[w])
    return total.total()
