"""The least time of a local step, by which a fast machine can emulate a slower one."""

import math
from collections.abc import Callable

from fedgc.errors import BadSetting


class Pace:
    """Waits after each step until its least time has passed, and measures the step's time.

    A command interrupts the wait; the remainder is waited before the next step.
    """

    def __init__(
        self, clock: Callable[[], float], rest: Callable[[float], object], least_s: float = 0.0
    ) -> None:
        """`rest` waits for the given seconds, or less if a command comes."""
        if not (math.isfinite(least_s) and least_s >= 0):
            raise BadSetting(f"setting pace-s: saw {least_s!r}, needed seconds, 0 or more")
        self.clock, self._rest, self._least_s = clock, rest, least_s
        self._remaining_s = 0.0

    @property
    def behind(self) -> bool:
        """Whether a part of the wait after a step remains."""
        return self._remaining_s > 0

    def after_step(self, began: float) -> float:
        """Wait for the remainder of the step's least time; return the seconds since `began`."""
        worked = self.clock() - began
        if worked >= self._least_s:
            return worked
        self._rest(self._least_s - worked)
        passed = self.clock() - began
        self._remaining_s = max(0.0, self._least_s - passed)
        return passed

    def catch_up(self) -> float:
        """Wait for the remainder of an interrupted wait; return the seconds waited."""
        began = self.clock()
        self._rest(self._remaining_s)
        passed = self.clock() - began
        self._remaining_s = max(0.0, self._remaining_s - passed)
        return passed
