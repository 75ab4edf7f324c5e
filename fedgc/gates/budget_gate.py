"""The base class of gates with a budget: the settings that they share, and their checks."""

from dataclasses import dataclass
from typing import ClassVar, Self

from fedgc.gates.budget import Budget, Unit, budget_of
from fedgc.gates.gaps import LONGEST_GAP, Gaps
from fedgc.gates.gate import Gate, GateSettings, State


@dataclass(frozen=True, slots=True)
class BudgetGate(Gate[State]):
    """A gate whose exchanges are limited by `budget`.

    `budget` is a share of the checks, or megabytes or seconds of the whole run (`unit`).
    """

    name: ClassVar[str]
    advice: ClassVar[str] = "a larger gate.budget, or gate.name = every, exchanges more"

    budget: float
    max_gap: int | None = LONGEST_GAP
    min_gap: int = 1
    unit: Unit = "share"

    def __post_init__(self) -> None:
        self.limits.fits(self.gaps)

    @classmethod
    def make(cls, settings: GateSettings) -> Self:
        """Return the gate with the budget of the settings, or the default one."""
        return cls(budget_of(settings), settings.max_gap, settings.min_gap, settings.unit)

    def describe(self) -> str:
        """Return the budget."""
        return self.limits.describe()

    @property
    def limits(self) -> Budget:
        """The budget with its rules."""
        return Budget(self.name, self.budget, self.unit)

    @property
    def gaps(self) -> Gaps:
        """The bounds on the gap between two exchanges."""
        return Gaps(self.name, self.min_gap, self.max_gap)
