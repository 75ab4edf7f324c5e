"""One interface for every way to get the sum of all updates: rounds of conditions in, what came of each out.

A policy plays all rounds of a scenario one after the other and may learn from those before: `known_paces`
is what a policy with arrays of its own learns, the run learns by itself. Round r+1 begins when round r is
over. Times are seconds, sizes whole updates, work is in units (one client's equal share of the data).

Where a rival is helped, its file says so; never are we.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from fedgc.errors import BadSetting
from fedgc.sim.clock import NEVER, Conditions, Line, Scenario
from fedgc.sim.clock.conditions import Float

RECENT_ROUNDS: Final = 5  # the window of the run's own history


@dataclass(frozen=True, slots=True)
class Result:
    """One round: never over (`seconds` infinite), exact, or short of `missing` of the data.

    `sent` whole updates went up, in vectors of `size` at most; `computed` units were finished, `counted`
    of them are in the sum.
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
        """Whether the round gave the whole sum."""
        return self.seconds < NEVER and self.missing == 0.0

    @property
    def discarded(self) -> float:
        """Units of finished work that are in no sum."""
        return self.computed - self.counted


class Policy(Protocol):
    """Something that can be compared."""

    @property
    def name(self) -> str:
        """Return the name under which it stands in tables."""

    @property
    def exact(self) -> bool:
        """Whether it waits for the whole sum."""

    @property
    def blocks(self) -> int:
        """Into how many blocks an update is cut; 1 where it is sent whole."""

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Play all rounds."""


def known_paces(scenario: Scenario) -> Iterator[tuple[Conditions, Float]]:
    """Yield each round's conditions, and the median pace of the rounds before it (all 1 at first).

    >>> from fedgc.sim.clock import working
    >>> [known.tolist() for _, known in known_paces((working([[2.0], [4.0]]),) * 2)]
    [[1.0, 1.0], [2.0, 4.0]]
    """
    seen: list[Float] = []
    for conditions in scenario:
        yield conditions, np.median(seen[-RECENT_ROUNDS:], axis=0) if seen else np.ones(conditions.clients)
        seen.append(conditions.mean_pace_w)


def done_s(conditions: Conditions, units_w: Float) -> Float:
    """Return when each client has done its units; one that dies before begins anew where it returns.

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
    """Return the largest, 0 where there are none."""
    return float(values.max()) if values.size else 0.0
