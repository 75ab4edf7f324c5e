"""Frontiers as a picture: accuracy against syncs, megabytes and seconds, one point for each arm and seed.

Each scene has three fields side by side; scenes are stacked in the order of the table. Costs are on a
logarithmic x axis, accuracy on the y axis from the scene's minimum to its maximum; grid lines are at each
power of ten and each ten points. Our arms are blue, baselines red, BSP black; better is up and to the left.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.trial import Measured
from fedgc.sim.timeline import encoded

WIDTH: Final = 400
HEIGHT: Final = 260
EDGE: Final = 12
DOT: Final = 3
COSTS: Final = ("syncs", "megabytes", "seconds")
OURS: Final = (31, 90, 160)
BASELINE: Final = (205, 70, 60)
REFERENCE: Final = (0, 0, 0)
RULE: Final = (225, 225, 225)
FRAME: Final = (120, 120, 120)

Pixels = NDArray[np.uint8]


def frontier(measured: Sequence[Measured]) -> bytes:
    """Return the picture as a PNG file."""
    known = [each for each in measured if not each.failed]
    scenes = [list(group) for _, group in groupby(known, key=lambda each: each.scene)]
    rows = [np.hstack([field(group, cost) for cost in COSTS]) for group in scenes]
    return encoded(np.vstack(rows) if rows else np.full((HEIGHT, WIDTH, 3), 255, np.uint8))


def field(group: Sequence[Measured], cost: str) -> Pixels:
    """Return one scene against one cost."""
    pixels = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
    costs = np.log10([max(float(getattr(each, cost)), 1e-9) for each in group])
    points = np.asarray([each.points for each in group])
    across, up = _Axis(costs, WIDTH), _Axis(points, HEIGHT)
    for power in range(int(np.ceil(across.low)), int(np.floor(across.high)) + 1):
        pixels[EDGE:-EDGE, across.at(power)] = RULE
    for level in range(int(np.ceil(up.low / 10)) * 10, int(up.high) + 1, 10):
        pixels[HEIGHT - 1 - up.at(level), EDGE:-EDGE] = RULE
    pixels[[EDGE - 1, -EDGE], EDGE:-EDGE] = FRAME
    pixels[EDGE:-EDGE, [EDGE - 1, -EDGE]] = FRAME
    for each, x, y in zip(group, costs, points, strict=True):
        row, column = HEIGHT - 1 - up.at(y), across.at(x)
        color = REFERENCE if each.arm.name == "BSP" else OURS if each.arm.ours else BASELINE
        pixels[row - DOT : row + DOT, column - DOT : column + DOT] = color
    return pixels


class _Axis:
    """The linear scale from some numbers to pixels, with a margin."""

    def __init__(self, values: NDArray[np.float64], pixels: int) -> None:
        self.low, self.high = float(values.min()), float(values.max())
        self._scale = (pixels - 4 * EDGE) / max(self.high - self.low, 1e-9)

    def at(self, value: float) -> int:
        return 2 * EDGE + round((float(value) - self.low) * self._scale)
