"""The loss-change gate: an even schedule, and more exchanges after the loss of a client has risen.

A model that is used while it trains on data that change (new classes, a sensor that sees something new,
clients that join late) should be exchanged when they change, which no schedule can know. The gate spends its
budget evenly, and multiplies the rate of each check by

    (loss / level) squared, between 1/2 and 8; 1 within 25% of the level

`loss` is the largest of all clients in the steps since the last check, as one client with new data suffices
(SelSync exchanges for any one client too). `level` is what it was before: an exponentially weighted mean of
its logarithm over 32 checks, so a lasting change loses its effect. What was spent early is missing later: the
rate follows from what is left.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from fedgc.gates.budget import ROUNDING
from fedgc.gates.budget_gate import BudgetGate
from fedgc.gates.reports import Decision, Reports

POWER: Final = 2.0
LEAST: Final = 0.5
MOST: Final = 8.0
BAND: Final = math.log(1.25)
MEMORY: Final = 32  # checks

Track = tuple[int | str, int, float]  # a source, its steps since the last sync, and the sum of their losses


class LossState(NamedTuple):
    """The gate's state, plain data; `credit` is a share of a sync, `level` a mean of log losses."""

    gap: int
    checks: int
    spent: float
    credit: float
    level: float
    losses: int  # checks with a loss, of which `level` is a mean
    tracks: tuple[Track, ...]


@dataclass(frozen=True, slots=True)
class LossChange(BudgetGate[LossState]):
    """Sync evenly within a budget, and more often after the largest loss of a client has risen.

    >>> from fedgc.gates import Report
    >>> gate, syncs = LossChange(0.25), []
    >>> state = gate.init()
    >>> for check in range(16):
    ...     loss = 1.0 if check < 8 else 4.0
    ...     report = Report("a", 1, 1, 0.0, loss)
    ...     state, decision = gate.step(state, Reports((report,), rounds_left=15 - check))
    ...     syncs.append(decision.sync)
    >>> [check for check, sync in enumerate(syncs) if sync]
    [4, 8, 9, 15]
    """

    name: ClassVar[str] = "loss-change"
    reads_losses: ClassVar[bool] = True
    summary: ClassVar[str] = "within gate.budget, evenly, and more often after the loss of a client has risen"

    def init(self) -> LossState:
        """Return the state with nothing spent and no loss known."""
        return LossState(gap=0, checks=0, spent=0.0, credit=0.0, level=0.0, losses=0, tracks=())

    def step(self, state: LossState, reports: Reports) -> tuple[LossState, Decision]:
        """Add the rate of this check to the credit; a credit of one sync is spent."""
        state = LossState(*state)  # JSON returns a list
        budget, passed = self.limits, state.gap + 1
        pace = budget.even(state.checks, state.spent, reports, densest=1 / self.min_gap)
        tracks = _tracks(state.tracks if state.gap else (), reports)
        loss = _largest(state.tracks if state.gap else (), tracks)
        weight = 1.0 if loss is None or not state.losses else _weight(math.log(loss) - state.level)
        credit = state.credit + min(pace.rate * weight, 1.0)
        wanted = Decision(
            pace.affordable and (credit >= 1 - ROUNDING or reports.rounds_left == 0),
            f"the budget pays for {pace.words}, times {weight:.2g} for the loss"
            if pace.affordable
            else "the budget has no sync to spare",
        )
        decided = self.gaps.hold(passed, wanted, reports)
        level, losses = state.level, state.losses
        if loss is not None:
            losses = min(losses + 1, MEMORY)
            level += (math.log(loss) - level) / losses
        return LossState(
            gap=0 if decided.sync else passed,
            checks=state.checks + 1,
            spent=state.spent + budget.cost(reports, sync=decided.sync),
            credit=max(credit - decided.sync, 0.0),
            level=level,
            losses=losses,
            tracks=tuple(tracks.values()),
        ), decided


def _weight(change: float) -> float:
    """Return the factor on the rate for a change of the log loss."""
    if abs(change) <= BAND:
        return 1.0
    return min(max(math.exp(POWER * min(change, 10.0)), LEAST), MOST)


def _tracks(before: tuple[Track, ...], reports: Reports) -> Mapping[int | str, Track]:
    """Return the steps and losses of all sources since the last sync; those without a report keep theirs."""
    tracks = {source: (source, steps, total) for source, steps, total in before}
    for item in reports.items:
        if item.steps > 0 and math.isfinite(item.loss):
            tracks[item.source] = (item.source, item.steps, item.loss * item.steps)
    return tracks


def _largest(before: tuple[Track, ...], tracks: Mapping[int | str, Track]) -> float | None:
    """Return the largest mean loss of a source in its steps since the last check, if one is above zero."""
    earlier = {source: (steps, total) for source, steps, total in before}
    means = []
    for source, steps, total in tracks.values():
        known, spent = earlier.get(source, (0, 0.0))
        if steps > known:
            means.append((total - spent) / (steps - known))
    return max((mean for mean in means if mean > 0 and math.isfinite(mean)), default=None)
