"""The interface of a policy: a method to compute the sum of all updates under given conditions.

A policy plays all rounds of a scenario in order and may learn from earlier ones. Round r+1 begins when round
r is over. Times are seconds, sizes whole updates, work is in units (one client's equal share of the data).

Assumptions that favor a baseline are listed in its file. None favor fedgc.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedgc.errors import BadSetting
from fedgc.sim.clock import NEVER, Conditions, Line, Scenario
from fedgc.sim.clock.conditions import Float


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one round: never over (`seconds` infinite), exact, or without `missing` of the data.

    `sent` whole updates were uploaded, in vectors of at most `size`; `computed` units were finished,
    `counted` of them are in the sum.
    """

    seconds: float
    working_s: float
    sent: float
    computed: float
    counted: float
    missing: float = 0.0
    size: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.working_s <= self.seconds or not 0 <= self.missing <= 1:
            raise BadSetting(f"{self!r}: needed times in order and a share that is missing")

    @property
    def exact(self) -> bool:
        """Return whether the round gave the whole sum."""
        return self.seconds < NEVER and self.missing == 0.0

    @property
    def discarded(self) -> float:
        """Return the units of finished work that are in no sum."""
        return self.computed - self.counted


class Policy(Protocol):
    """A method to compute the sum that can be compared with others."""

    @property
    def name(self) -> str:
        """Return the name in tables."""

    @property
    def exact(self) -> bool:
        """Return whether it waits for the whole sum."""

    @property
    def blocks(self) -> int:
        """Return the number of blocks that an update is cut into; 1 if it is sent whole."""

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Play all rounds."""


def done_s(conditions: Conditions, units_w: Float) -> Float:
    """Return when each client has done its units; one that dies before starts again when it returns.

    >>> from dataclasses import replace
    >>> from fedgc.sim.clock import working
    >>> there = working([[1.0], [1.0]])
    >>> there = replace(there, dies_s_w=np.array([0.5, np.inf]), returns_s_w=np.array([3.0, np.inf]))
    >>> done_s(there, np.ones(2)).tolist()
    [4.0, 1.0]
    """
    begun_w = conditions.down_s_w + conditions.control_s_w
    first_w = begun_w + conditions.after_s(units_w)
    again_w: Float = np.where(first_w > conditions.dies_s_w, conditions.returns_s_w + first_w, first_w)
    return again_w


def last(values: Float) -> float:
    """Return the largest value, 0 without any."""
    return float(values.max()) if values.size else 0.0
