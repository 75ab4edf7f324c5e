"""The gate with a fixed period. Period 1 is bulk-synchronous parallel training (BSP)."""

from dataclasses import dataclass
from typing import ClassVar, Self

from fedgc.errors import BadSetting
from fedgc.gates.gaps import Gaps
from fedgc.gates.gate import Gate, GateSettings
from fedgc.gates.reports import Decision, Reports


@dataclass(frozen=True, slots=True)
class Every(Gate[int]):
    """Sync every `period` checks, for any updates.

    >>> gate = Every(2)
    >>> state, first = gate.step(gate.init(), Reports(()))
    >>> state, second = gate.step(state, Reports(()))
    >>> first.sync, second.sync
    (False, True)
    """

    summary: ClassVar[str] = "an exchange every gate.period rounds"

    period: int
    max_gap: int | None = None
    min_gap: int = 1

    def __post_init__(self) -> None:
        if self.period < 1:
            raise BadSetting(f"gate every: saw period {self.period}, needed at least 1")
        self._gaps()

    @classmethod
    def make(cls, settings: GateSettings) -> Self:
        """Return the gate with the period of the settings."""
        return cls(settings.period, settings.max_gap, settings.min_gap)

    @property
    def always_syncs(self) -> bool:
        """Whether the period is one check."""
        return self.period == self.min_gap == 1

    def describe(self) -> str:
        """Return the period."""
        return f"gate.period {self.period}"

    def _gaps(self) -> Gaps:
        return Gaps("every", self.min_gap, self.max_gap)

    def init(self) -> int:
        """Return 0: no check has passed since the last sync."""
        return 0

    def step(self, state: int, reports: Reports) -> tuple[int, Decision]:
        """Count the checks since the last sync."""
        passed = state + 1
        due = passed >= self.period
        decided = self._gaps().hold(passed, Decision(due, _of_period(passed, self.period)), reports)
        return 0 if decided.sync else passed, decided


def _of_period(passed: int, period: int) -> str:
    if passed < period:
        return f"round {passed} of {period} between syncs"
    return f"every {period}" if period > 1 else "every round"
