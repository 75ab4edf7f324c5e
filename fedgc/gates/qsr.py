"""The quadratic synchronization rule (QSR): the period grows as the learning rate falls.

Gu et al., "A quadratic synchronization rule for distributed deep learning", ICLR 2024, arXiv 2310.14423.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from fedgc.errors import BadSetting
from fedgc.gates.gaps import LONGEST_GAP, Gaps
from fedgc.gates.gate import Gate, GateSettings
from fedgc.gates.reports import Decision, Reports

MOST_STEPS: Final = 2**53  # a period beyond any run; larger ones are not exact in a float


@dataclass(frozen=True, slots=True)
class QSR(Gate[tuple[int, int]]):
    """Sync every H = max(base, (growth / learning rate)^2) local steps, rounded down.

    H counts local steps from one sync to the next. It is fixed at the first check after a sync, from the
    learning rate at that time, and rounded up to whole checks of `check_steps` local steps. `growth` is the
    paper's alpha. During a warm-up the learning rate is small and H large: the paper uses the H of the end of
    the warm-up; here `max_gap` bounds it.

    >>> gate = QSR(base=4, growth=0.2, check_steps=4)
    >>> state, quick = gate.step(gate.init(), Reports((), learning_rate=0.1))
    >>> state, slow = gate.step(state, Reports((), learning_rate=0.05))
    >>> quick.sync, slow.sync, state
    (True, False, (1, 4))
    """

    summary: ClassVar[str] = "a period of (growth / learning rate) squared local steps, at least base"

    base: int
    growth: float
    check_steps: int = 1
    max_gap: int | None = LONGEST_GAP
    min_gap: int = 1

    def __post_init__(self) -> None:
        if self.base < 1:
            raise BadSetting(f"gate qsr: saw base {self.base}, needed at least 1 step")
        if not (math.isfinite(self.growth) and self.growth > 0):
            raise BadSetting(f"gate qsr: saw growth {self.growth}, needed above 0")
        if self.check_steps < 1:
            raise BadSetting(f"gate qsr: saw check_steps {self.check_steps}, needed at least 1")
        self._gaps()

    @classmethod
    def make(cls, settings: GateSettings, *, base: int = 16, growth: float = 0.2) -> Self:
        """Return the rule; `base` is the least period in local steps, `growth` the paper's alpha."""
        return cls(base, growth, settings.check_steps, settings.max_gap, settings.min_gap)

    def describe(self) -> str:
        """Return base and growth."""
        return f"gate.options base={self.base}, growth={self.growth:g}"

    def _gaps(self) -> Gaps:
        return Gaps("qsr", self.min_gap, self.max_gap)

    def init(self) -> tuple[int, int]:
        """Return the state before the first check, with the period unknown."""
        return 0, 0

    def step(self, state: tuple[int, int], reports: Reports) -> tuple[tuple[int, int], Decision]:
        """Fix the period at the first check after a sync, then count."""
        passed, period = state
        passed += 1
        if passed == 1:
            period = self._period(reports.learning_rate)
        wanted = Decision(passed >= period, f"check {passed} of {period}, by the learning rate")
        decided = self._gaps().hold(passed, wanted, reports)
        return (0 if decided.sync else passed, period), decided

    def _period(self, learning_rate: float | None) -> int:
        if learning_rate is None or not (math.isfinite(learning_rate) and learning_rate >= 0):
            raise BadSetting(f"gate qsr: saw learning rate {learning_rate}, needed 0 or more")
        ratio = self.growth / learning_rate if learning_rate else math.inf
        steps = max(self.base, MOST_STEPS if ratio >= math.sqrt(MOST_STEPS) else math.floor(ratio**2))
        return -(-steps // self.check_steps)
