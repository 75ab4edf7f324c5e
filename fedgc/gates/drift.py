"""The drift gate: sync when the clients have moved far enough from their last common model.

    drift = mean over clients of ||w_i - w_common||^2          one number for each client

The variance of the client models is this drift less the squared distance of their average from w_common.
Averaging when a bound on that variance is exceeded, with the drift as the bound, is Federated Dynamic
Averaging (FDA; Theologitis et al., EDBT 2025, arXiv 2405.20988). The right threshold depends on model, data
and learning rate and changes by orders of magnitude during training, so it is controlled automatically:

*   The pace at which the budget is spent rises through a run whose end is known (budget.py).
*   The first interval ends by that pace, and the drift measured there initializes the threshold.
*   From then on log(threshold) integrates, at each check, GAIN * (1 if the drift reached it else 0, less the
    rate that the budget leaves): too many syncs raise it, too few lower it, at any scale of the drift.
*   A gap may be STRETCH times shorter or longer than the pace. Outside that range the pace decides, so a
    jump in drift neither exhausts the budget early nor leaves it unspent. A sync forced by the pace or
    by `max_gap` shows that the threshold is off; it is reset to the drift measured there, scaled to the
    wanted gap (drift grows about linearly in the gap).

Shared momentum (FedCM, arXiv 2106.10874) makes every local step alpha * gradient + (1 - alpha) * shared step.
The second part is the same on all clients. If it were included, it would dominate the drift and turn the gate
into a fixed period. A client knows that part exactly, and reports the rest.
"""

import math
import sys
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from fedgc.gates.budget import ROUNDING, SyncRate
from fedgc.gates.budget_gate import BudgetGate
from fedgc.gates.gate import Measure
from fedgc.gates.reports import Decision, Reports

GAIN: Final = 0.3  # of the integral; 0.05 overshot the budget three times in training runs
STRETCH: Final = 3.0


class DriftState(NamedTuple):
    """The gate's state, numbers only; a threshold of 0 means not yet measured."""

    gap: int
    checks: int
    spent: float
    threshold: float


@dataclass(frozen=True, slots=True)
class Drift(BudgetGate[DriftState]):
    """Sync when the mean squared distance from the last common model reaches a controlled threshold.

    >>> from fedgc.gates import Report
    >>> gate = Drift(0.5)
    >>> state, first = gate.step(gate.init(), Reports((Report("a", 1, 1, 3.0, 0.0),)))
    >>> state, second = gate.step(state, Reports((Report("a", 2, 1, 6.0, 0.0),)))
    >>> first.sync, second.sync
    (False, True)
    """

    name: ClassVar[str] = "drift"
    summary: ClassVar[str] = "within gate.budget, when clients have moved far enough from the common model"
    measure: ClassVar[Measure] = "distance"

    def init(self) -> DriftState:
        """Return the state with nothing spent and no drift measured."""
        return DriftState(gap=0, checks=0, spent=0.0, threshold=0.0)

    def step(self, state: DriftState, reports: Reports) -> tuple[DriftState, Decision]:
        """Compare the drift with the threshold, within the pace of the budget, and adjust the threshold."""
        state = DriftState(*state)  # JSON returns a list
        passed, budget = state.gap + 1, self.limits
        pace = budget.pace(state.checks, state.spent, reports, densest=1 / self.min_gap)
        drift = _mean_drift(reports)
        wish = drift >= state.threshold > 0
        decided = self.gaps.hold(passed, self._within(pace, passed, drift, state.threshold), reports)
        if decided.sync and not wish:
            threshold = _restarted(drift, passed * pace.rate) or state.threshold
        else:
            threshold = _steered(state.threshold, GAIN * (wish - pace.rate))
        spent = state.spent + budget.cost(reports, sync=decided.sync)
        return DriftState(0 if decided.sync else passed, state.checks + 1, spent, threshold), decided

    def _within(self, pace: SyncRate, passed: int, drift: float, threshold: float) -> Decision:
        """Decide by the pace outside its range, by the threshold inside."""
        overdue = passed * pace.rate
        if not pace.affordable:
            return Decision(sync=False, reason="the budget has no sync to spare")
        if pace.rate * self.min_gap >= 1 - ROUNDING:
            return Decision(sync=True, reason="the budget pays for a sync wherever one may be")
        if overdue >= (STRETCH if threshold > 0 else 1.0):
            return Decision(sync=True, reason=f"drift {drift:.3g}, but the budget pays for {pace.words}")
        if threshold <= 0:
            return Decision(sync=False, reason=f"drift {drift:.3g}, no threshold yet")
        if drift < threshold:
            return Decision(sync=False, reason=f"drift {drift:.3g} is below {threshold:.3g}")
        if overdue < 1 / STRETCH:
            return Decision(
                sync=False, reason=f"drift {drift:.3g}, but the budget only pays for {pace.words}"
            )
        return Decision(sync=True, reason=f"drift {drift:.3g} reached {threshold:.3g}")


def _mean_drift(reports: Reports) -> float:
    """Return the mean over the clients that work, or 0 without any."""
    items = reports.working()
    return sum(item.squared_norm / len(items) for item in items)


def _steered(threshold: float, by: float) -> float:
    return min(threshold * math.exp(by), sys.float_info.max)


def _restarted(drift: float, paces: float) -> float:
    """Return the drift expected at the wanted gap, from one measured after `paces` such gaps."""
    return min(drift / paces, sys.float_info.max) if paces > 0 else 0.0
