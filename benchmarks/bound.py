"""The fluid bound: the time of a round if all clients work without pause on different data.

`whole_chunks_s` is the tighter bound for chunks that cannot be split.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from fedgc.sim.clock import Conditions, Line, Scenario
from fedgc.sim.clock.conditions import Float
from fedgc.sim.policy import Result

HALVINGS: Final = 60  # of the interval of the fluid bound: beyond the resolution of float64


@dataclass(frozen=True, slots=True)
class FluidBound:
    """The fluid bound as a policy: N * blocks / sum of speeds, then the fastest upload of one block."""

    blocks: int = 1
    exact: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Return the name in tables."""
        return f"fluid bound, blocks {self.blocks}"

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:  # noqa: ARG002 - an empty line is faster
        """Return the bound of every round."""
        results = []
        for conditions in scenario:
            units = float(conditions.clients * self.blocks)
            working_s = fluid_s(conditions, units)
            seconds = working_s + float(conditions.up_s_w.min()) / self.blocks
            size = 1.0 / self.blocks
            results.append(Result(seconds, working_s, conditions.clients * size, units, units, size=size))
        return tuple(results)


def whole_chunks_s(conditions: Conditions, pieces: int) -> float:
    """Return the time in which all clients together finish the data in whole chunks, `pieces` per client.

    It assumes that all speeds are known and that each client can take any chunk, so no placement is faster.

    >>> from fedgc.sim.clock import working
    >>> whole_chunks_s(working([[1.0], [1.5], [9.0]]), 1)
    2.0
    """
    clients = conditions.clients
    most = clients * pieces
    ends = [conditions.after_s(np.full(clients, place / pieces)) for place in range(1, most + 1)]
    return float(np.sort(np.concatenate(ends))[most - 1])


def units_by(conditions: Conditions, when_s: float | Float) -> Float:
    """Return how many units each client could do by then, ignoring failures.

    >>> from fedgc.sim.clock import working
    >>> units_by(working([[1.0, 3.0], [2.0, 2.0]], slice_units=0.5), 1.25).tolist()
    [0.75, 0.625]
    """
    pace_wk, slice_units = conditions.pace_wk, conditions.slice_units
    ends_wk = np.cumsum(pace_wk * slice_units, axis=1)
    laps_w, rest_w = np.divmod(np.maximum(when_s, 0.0), ends_wk[:, -1])
    done_wk = np.clip((rest_w[:, None] - ends_wk) / pace_wk + slice_units, 0.0, slice_units)
    units_w: Float = laps_w * pace_wk.shape[1] * slice_units + done_wk.sum(axis=1)
    return units_w


def fluid_s(conditions: Conditions, units: float) -> float:
    """Return the time in which all clients together do this many distinct units: a lower bound.

    Work that a client did before it died counts, since it may have been sent. A client that returns
    continues with other work.

    >>> from fedgc.sim.clock import working
    >>> fluid_s(working([[1.0], [3.0]]), 4.0)
    3.0
    """
    lap_s = float((conditions.pace_wk * conditions.slice_units).sum(axis=1).max())
    low, high = 0.0, lap_s * max(1.0, units / conditions.slice_units)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        worked_w = units_by(conditions, np.minimum(middle, conditions.dies_s_w))
        again_w = units_by(conditions, middle - conditions.returns_s_w)
        if float((worked_w + again_w).sum()) >= units:
            high = middle
        else:
            low = middle
    return high
