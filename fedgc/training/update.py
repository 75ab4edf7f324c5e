"""Updates, samples * (start - end): their norm and sketch, and their codewords (gradient coding).

See `flat` for the definition. Only `end` is stored; the update is computed from it block by block, so only
the codeword needs memory, and the update of local work none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedgc.codes import block_size, fold
from fedgc.errors import TaskFailed
from fedgc.large_vectors import Readable
from fedgc.messages import Mix
from fedgc.training.flat import Vector
from fedgc.training.sketch import Sketch

BLOCK: Final = 1 << 16  # numbers measured at a time: stays in the second-level cache
HUGE: Final = float(np.finfo(np.float32).max)
Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Measure:
    """Squared norm and sketch of the mean step, update / samples, and the norm of the model before it."""

    squared_norm: float
    sketch: tuple[float, ...]
    model_norm: float


def update_of(start: Vector, end: Vector, samples: int) -> Vector:
    """Return the update of a chunk."""
    with np.errstate(over="ignore", invalid="ignore"):  # overflows are reported when it is measured
        update: Vector = np.subtract(start, end)
        if samples != 1:
            update *= np.float32(samples)
    return update


class MeanUpdate:
    """The difference of two models, start - end, computed as it is read.

    >>> MeanUpdate(np.float32([3, 4, 5]), np.float32([1, 1, 1]))[1:].tolist()
    [3.0, 4.0]
    """

    dtype = np.dtype(np.float32)

    def __init__(self, start: Vector, end: Readable) -> None:
        self.size: Final = start.size
        self._start, self._end = start, end

    def __getitem__(self, part: slice) -> Vector:
        return update_of(self._start[part], self._end[part], 1)


def measure(start: Vector, end: Vector, samples: int, sign_key: int) -> Measure:
    """Measure the mean step, or raise TaskFailed if the update is not finite."""
    squared_norm, squared_start, sketch = 0.0, 0.0, Sketch(sign_key)
    room = min(BLOCK, start.size)
    narrow, wide, squares = np.empty(room, np.float32), np.empty(room), np.empty(room)
    harmless = (HUGE / 2 / samples) ** 2
    for first in range(0, start.size, BLOCK):
        begin, over = start[first : first + BLOCK], end[first : first + BLOCK]
        step = wide[: begin.size]
        with np.errstate(over="ignore", invalid="ignore"):  # overflows are reported below
            step[...] = np.subtract(begin, over, out=narrow[: begin.size])
        squared = float(
            np.square(step, out=squares[: begin.size]).sum()
        )  # BLAS's threads change the rounding
        if not squared < harmless:
            _check_fits(update_of(begin, over, samples), first)
        sketch.add(step)
        squared_norm += squared
        squared_start += float(np.square(begin, out=squares[: begin.size], dtype=np.float64).sum())
    return Measure(squared_norm, sketch.numbers(), math.sqrt(squared_start))


def _check_fits(update: Vector, first: int) -> None:
    finite = np.isfinite(update)
    if not finite.all():
        at = int(np.argmin(finite))
        raise TaskFailed(f"the update is {update[at]} at {first + at}, needed finite numbers")


def mixed(start: Vector, ends: Sequence[tuple[Vector, int]], mix: Mix) -> Vector:
    """Return the codeword of `mix`; `ends` holds (end, samples) for each chunk, in the order of the mix."""
    codeword: Vector = np.zeros(block_size(start.size, mix.blocks), dtype=np.float32)
    _fold_all(start, ends, mix.matrix, codeword)
    return codeword


def _fold_all(start: Vector, ends: Sequence[tuple[Vector, int]], matrix: Rows, codeword: Vector) -> None:
    for first in range(0, start.size, BLOCK):
        begin = start[first : first + BLOCK]
        for (end, samples), row in zip(ends, matrix, strict=True):
            fold(row, update_of(begin, end[first : first + BLOCK], samples), codeword, first)
