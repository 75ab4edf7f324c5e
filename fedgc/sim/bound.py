"""What no policy can beat: all clients work without pause on different data, and nobody waits for anybody.

Where the data comes in chunks that are not split, no client's last chunk counts in part: `whole_chunks_s`.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedgc.sim.clock import Conditions, Line, Scenario
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

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:  # noqa: ARG002 - an empty line is faster
        """Return the bound of every round."""
        results = []
        for conditions in scenario:
            units = float(conditions.clients * self.blocks)
            working_s = conditions.fluid_s(units)
            seconds = working_s + float(conditions.up_s_w.min()) / self.blocks
            size = 1.0 / self.blocks
            results.append(Result(seconds, working_s, conditions.clients * size, units, units, size=size))
        return tuple(results)


def whole_chunks_s(conditions: Conditions, pieces: int) -> float:
    """Return the time in which all clients together finish the data in whole chunks, `pieces` a client.

    It knows beforehand how fast each client is, and lets each have any chunk: no placement is so good.

    >>> from fedgc.sim.clock import working
    >>> whole_chunks_s(working([[1.0], [1.5], [9.0]]), 1)
    2.0
    """
    clients = conditions.clients
    most = clients * pieces
    ends = [conditions.after_s(np.full(clients, place / pieces)) for place in range(1, most + 1)]
    return float(np.sort(np.concatenate(ends))[most - 1])
