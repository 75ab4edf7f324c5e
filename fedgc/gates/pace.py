"""The pace gate: the schedule of a budget, without a measure.

It exchanges when the pace of the budget (budget.py) makes an exchange due, whatever the clients have done. It
is the null arm of every comparison of gates: a gate that measures has to be better at as many exchanges.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

from fedgc.gates.budget import ROUNDING, Budget, Unit, budget_of
from fedgc.gates.gaps import LONGEST_GAP, Gaps
from fedgc.gates.gate import Gate, GateSettings
from fedgc.gates.reports import Decision, Reports


class PaceState(NamedTuple):
    """The gate's state: checks since the last sync, all checks, and what was spent."""

    gap: int
    checks: int
    spent: float


@dataclass(frozen=True, slots=True)
class Pace(Gate[PaceState]):
    """Sync when the budget pays for it: rarely at first, more often towards the end of the run.

    `budget` is a share of the checks, or megabytes or seconds of the whole run (`unit`).

    >>> gate, state, syncs = Pace(0.5), Pace(0.5).init(), []
    >>> for left in range(7, -1, -1):
    ...     state, decision = gate.step(state, Reports((), rounds_left=left))
    ...     syncs.append(decision.sync)
    >>> [at for at, sync in enumerate(syncs) if sync]
    [2, 4, 6, 7]
    """

    summary: ClassVar[str] = "within gate.budget, more often towards the end of the run"
    advice: ClassVar[str] = "a larger gate.budget, or gate.name = every, exchanges more"

    budget: float
    max_gap: int | None = LONGEST_GAP
    min_gap: int = 1
    unit: Unit = "share"

    def __post_init__(self) -> None:
        self._budget().fits(self._gaps())

    @classmethod
    def make(cls, settings: GateSettings) -> Self:
        """Return the gate with the budget of the settings, or the default one."""
        return cls(budget_of(settings), settings.max_gap, settings.min_gap, settings.unit)

    def describe(self) -> str:
        """Return the budget."""
        return self._budget().describe()

    def _budget(self) -> Budget:
        return Budget("pace", self.budget, self.unit)

    def _gaps(self) -> Gaps:
        return Gaps("pace", self.min_gap, self.max_gap)

    def init(self) -> PaceState:
        """Return the state with nothing spent."""
        return PaceState(gap=0, checks=0, spent=0.0)

    def step(self, state: PaceState, reports: Reports) -> tuple[PaceState, Decision]:
        """Compare the checks since the last sync with the pace of the budget."""
        state = PaceState(*state)  # JSON returns a list
        passed, budget = state.gap + 1, self._budget()
        pace = budget.pace(state.checks, state.spent, reports, densest=1 / self.min_gap)
        if pace.affordable:
            wanted = Decision(passed * pace.rate >= 1 - ROUNDING, f"the budget pays for {pace.words}")
        else:
            wanted = Decision(sync=False, reason="the budget has no sync to spare")
        decided = self._gaps().hold(passed, wanted, reports)
        spent = state.spent + budget.cost(reports, sync=decided.sync)
        return PaceState(0 if decided.sync else passed, state.checks + 1, spent), decided
