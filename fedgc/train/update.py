"""What a finished trajectory gives: samples * (start - end), measured and mixed without keeping it.

See `flat.py` for why the update has this form. Only `end` is kept; the update is made of it when it is
measured (a block at a time) and when it is mixed (a chunk at a time).

May import: codes, errors, messages; flat, sketch of this room.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedgc.codes import block_size, fold
from fedgc.errors import TaskFailed
from fedgc.messages import Mix
from fedgc.train.flat import Vector
from fedgc.train.sketch import Sketch

BLOCK: Final = 1 << 16  # numbers measured at a time: stays in the second-level cache


@dataclass(frozen=True, slots=True)
class Measure:
    """Length and sketch of the mean step, update / samples."""

    squared_norm: float
    sketch: tuple[float, ...]


def update_of(start: Vector, end: Vector, samples: int) -> Vector:
    """Return the update of a chunk."""
    update: Vector = np.subtract(start, end)
    update *= np.float32(samples)
    return update


def measure(start: Vector, end: Vector, samples: int, sign_key: int) -> Measure:
    """Measure the mean step, or raise TaskFailed where the update is not finite."""
    squared_norm, sketch = 0.0, Sketch(sign_key)
    for first in range(0, start.size, BLOCK):
        piece = slice(first, first + BLOCK)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is named below
            update = update_of(start[piece], end[piece], samples)
        finite = np.isfinite(update)
        if not finite.all():
            at = int(np.argmin(finite))
            raise TaskFailed(f"the update is {update[at]} at {first + at}, needed finite numbers")
        step = start[piece].astype(np.float64) - end[piece]
        sketch.add(step)
        squared_norm += float(np.square(step, out=step).sum())  # not BLAS: its threads change the rounding
    return Measure(squared_norm, sketch.numbers())


def mixed(start: Vector, ends: Iterable[tuple[Vector, int]], mix: Mix) -> Vector:
    """Return the codeword of these (end, samples), one for each chunk of the mix, in its order."""
    codeword: Vector = np.zeros(block_size(start.size, mix.blocks), dtype=np.float32)
    for (end, samples), row in zip(ends, mix.matrix, strict=True):
        fold(row, update_of(start, end, samples), codeword)
    return codeword
