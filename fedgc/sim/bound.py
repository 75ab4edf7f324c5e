"""What no policy can beat: all devices work without pause on different data, and nobody waits for anybody.

Where the data comes in chunks that are not split, no device's last chunk counts in part: `whole_chunks_s`.

May import: replay, policy.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedgc.replay import Conditions, Line, Weather
from fedgc.sim.policy import Result


@dataclass(frozen=True, slots=True)
class FluidBound:
    """N * blocks / sum of speeds, then the fastest upload of one block."""

    blocks: int = 1
    exact: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Return its name in tables."""
        return f"fluid bound, blocks {self.blocks}"

    def play(self, weather: Weather, line: Line) -> tuple[Result, ...]:  # noqa: ARG002 - an empty line is faster
        """Return the bound of every round."""
        results = []
        for conditions in weather:
            units = float(conditions.devices * self.blocks)
            working_s = conditions.fluid_s(units)
            seconds = working_s + float(conditions.up_s_w.min()) / self.blocks
            size = 1.0 / self.blocks
            results.append(Result(seconds, working_s, conditions.devices * size, units, units, size=size))
        return tuple(results)


def whole_chunks_s(conditions: Conditions, pieces: int) -> float:
    """Return the time in which all devices together finish the data in whole chunks, `pieces` a device.

    It knows beforehand how fast each device is, and lets each have any chunk: no placement is so good.

    >>> from fedgc.replay import working
    >>> whole_chunks_s(working([[1.0], [1.5], [9.0]]), 1)
    2.0
    """
    devices = conditions.devices
    most = devices * pieces
    ends = [conditions.after_s(np.full(devices, place / pieces)) for place in range(1, most + 1)]
    return float(np.sort(np.concatenate(ends))[most - 1])
