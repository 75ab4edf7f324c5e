"""The least time of a local step, so that a fast machine can stand in for a slower one."""

import math
from collections.abc import Callable

from fedgc.errors import BadSetting


class Pace:
    """Rests after each step for what is left of its least time, and measures what the step took.

    A command interrupts the rest. What is left of it is owed, and rested before the next step.
    """

    def __init__(
        self, clock: Callable[[], float], rest: Callable[[float], object], least_s: float = 0.0
    ) -> None:
        """`rest` waits for so many seconds, or less if a command comes."""
        if not (math.isfinite(least_s) and least_s >= 0):
            raise BadSetting(f"setting pace-s: saw {least_s!r}, needed seconds, 0 or more")
        self.clock, self._rest, self._least_s = clock, rest, least_s
        self._owed_s = 0.0

    @property
    def owes(self) -> bool:
        """Whether a part of a step's rest is left."""
        return self._owed_s > 0

    def after_step(self, began: float) -> float:
        """Rest for what is left of the step's least time; return the seconds since `began`."""
        worked = self.clock() - began
        if worked >= self._least_s:
            return worked
        self._rest(self._least_s - worked)
        passed = self.clock() - began
        self._owed_s = max(0.0, self._least_s - passed)
        return passed

    def catch_up(self) -> float:
        """Rest for what is owed; return the seconds that it took."""
        began = self.clock()
        self._rest(self._owed_s)
        passed = self.clock() - began
        self._owed_s = max(0.0, self._owed_s - passed)
        return passed
