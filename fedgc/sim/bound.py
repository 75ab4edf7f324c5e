"""What no policy can beat: all devices work without pause on different data, and nobody waits for anybody.

May import: replay, policy.
"""

from dataclasses import dataclass

from fedgc.replay import Line, Weather
from fedgc.sim.policy import Result


@dataclass(frozen=True, slots=True)
class FluidBound:
    """N * blocks / sum of speeds, then the fastest upload of one block."""

    blocks: int = 1

    @property
    def name(self) -> str:
        """Return its name in tables."""
        return f"fluid bound, blocks {self.blocks}"

    @property
    def exact(self) -> bool:
        """It bounds the whole sum."""
        return True

    def play(self, weather: Weather, line: Line) -> tuple[Result, ...]:  # noqa: ARG002 - an empty line is faster
        """Return the bound of every round."""
        results = []
        for conditions in weather:
            units = float(conditions.devices * self.blocks)
            working_s = conditions.fluid_s(units)
            seconds = working_s + float(conditions.up_s_w.min()) / self.blocks
            results.append(Result(seconds, working_s, conditions.devices / self.blocks, units, units))
        return tuple(results)
