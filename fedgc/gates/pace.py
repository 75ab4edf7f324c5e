"""The pace gate: the schedule of a budget, without a measure.

It exchanges when the pace of the budget (budget.py) makes an exchange due, whatever the clients have done. It
is the null arm of every comparison of gates: a gate that measures has to be better at as many exchanges.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fedgc.gates.budget import ROUNDING
from fedgc.gates.budget_gate import BudgetGate
from fedgc.gates.reports import Decision, Reports


class PaceState(NamedTuple):
    """The gate's state: checks since the last sync, all checks, and what was spent."""

    gap: int
    checks: int
    spent: float


@dataclass(frozen=True, slots=True)
class Pace(BudgetGate[PaceState]):
    """Sync when the budget pays for it: rarely at first, more often towards the end of the run.

    >>> gate, state, syncs = Pace(0.5), Pace(0.5).init(), []
    >>> for left in range(7, -1, -1):
    ...     state, decision = gate.step(state, Reports((), rounds_left=left))
    ...     syncs.append(decision.sync)
    >>> [at for at, sync in enumerate(syncs) if sync]
    [2, 4, 6, 7]
    """

    name: ClassVar[str] = "pace"
    summary: ClassVar[str] = "within gate.budget, more often towards the end of the run"

    def init(self) -> PaceState:
        """Return the state with nothing spent."""
        return PaceState(gap=0, checks=0, spent=0.0)

    def step(self, state: PaceState, reports: Reports) -> tuple[PaceState, Decision]:
        """Compare the checks since the last sync with the pace of the budget."""
        state = PaceState(*state)  # JSON returns a list
        passed, budget = state.gap + 1, self.limits
        pace = budget.pace(state.checks, state.spent, reports, densest=1 / self.min_gap)
        if pace.affordable:
            wanted = Decision(passed * pace.rate >= 1 - ROUNDING, f"the budget pays for {pace.words}")
        else:
            wanted = Decision(sync=False, reason="the budget has no sync to spare")
        decided = self.gaps.hold(passed, wanted, reports)
        spent = state.spent + budget.cost(reports, sync=decided.sync)
        return PaceState(0 if decided.sync else passed, state.checks + 1, spent), decided
