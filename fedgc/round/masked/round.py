"""A round of secure aggregation: either kind of work, another aggregator, two more states.

The scheduler decides the work and the waiting, as without masks. The differences are:

*   Each client receives the exchange together with its work, so that it makes its masks while it trains.
*   A site decodes, averages and weights by itself. Nothing can be repaired: a lost client is left out. A
    client that is back after its vector entered the sum gets no work, but may sign and give its shares.
*   The server learns no losses, and of norms only what the gate needs.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from fedgc.errors import NotRecoverable, printable
from fedgc.gates import Decision, Reports
from fedgc.messages import Command, Event, Failed, Joined, Lost, Shares, Signed, Tick
from fedgc.round.aggregator import Aggregator
from fedgc.round.machine import Assignment, Round, State
from fedgc.round.masked.aggregator import MaskedAggregator
from fedgc.round.masked.key_agreement import MaskedExchange
from fedgc.round.plan import Plan
from fedgc.round.scheduler import WorkSummary

ENDING: Final = (State.AGREEING, State.UNMASKING)
TOO_FEW: Final = "too few sites are left to unmask the sum"
RETURN_S: Final = 180.0  # for shares, at least: Flower takes a minute to notice that a client's app has died


class MaskedRound(Round):
    """A round with one exchange of a masked federation."""

    def __init__(
        self,
        plan: Plan,
        assignment: Assignment,
        decide: Callable[[Reports], Decision],
        exchange: MaskedExchange,
    ) -> None:
        super().__init__(plan, assignment, decide)
        self._exchange = exchange
        self._ends_at = math.inf  # when the answers of this state are too late
        self._shares_s = max(plan.upload_deadline_s, RETURN_S)  # without them the run ends
        self._masked = MaskedAggregator(self.roster, self.scheduler, exchange)

    @property
    def summary(self) -> WorkSummary:
        """Results of the round's work, without losses."""
        return replace(self.scheduler.summary, losses=())

    def _give(self, present: Sequence[Joined], carried: Collection[str] = ()) -> list[Command]:
        given = super()._give(present, carried)
        begins = (self._exchange.begin(each.client, self.assignment.number) for each in present)
        return [*given, *(each for begin in begins for each in begin)]

    @staticmethod
    def _hands_in(has_reported: bool) -> bool:  # noqa: ARG004  a site does not say how far it is
        """Whether a client that leaves has something to hand in: nobody knows before its vector has come."""
        return True

    def _aggregate(self, now: float) -> Aggregator:  # noqa: ARG002  the time changes nothing
        self._masked.collect()
        return self._masked

    def _complete(self, aggregator: Aggregator, now: float) -> list[Command]:  # noqa: ARG002  it is `_masked`
        """Fix the set of survivors once all vectors are in; abort the exchange if they are too few."""
        try:
            commands = self._masked.agree()
        except NotRecoverable as error:
            return self._abort(printable(error), now)
        self._enter(State.AGREEING)
        self._ends_at = now + self.plan.upload_deadline_s
        return self._can_still(now) or list(commands)

    @property
    def next_tick(self) -> float:
        """When the round next needs a `Tick`."""
        return self._ends_at if self.state in ENDING else super().next_tick

    def _awaited(self) -> Collection[int]:
        return self._masked.unanswered if self.state in ENDING else super()._awaited()

    # ---- agreeing and unmasking

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Pass over an answer that came after enough others: the sum needs no more, nobody is at fault."""
        return () if isinstance(event, Signed | Shares) and self._is_over(event) else super().handle(event)

    def _is_over(self, event: Signed | Shares) -> bool:
        number = self.assignment.number + (self.outcome is not None)
        return event.client in self.roster.w and event.round < number

    def _signed(self, event: Signed) -> list[Command]:
        """Enter a signature; with enough of them, ask for the shares."""
        masked = self._masked
        why_not = self.roster.here(event) or masked.sign(self.roster.w[event.client], event.signature)
        if why_not:
            return self.roster.refuse(event, why_not)
        if not masked.signed:
            return []
        if not masked.can_open(self.roster.live):  # after the request, this model cannot be masked again
            return self._abort(TOO_FEW, event.now)
        self._enter(State.UNMASKING)
        self._ends_at = event.now + self._shares_s
        return list(masked.unlock())

    def _shared(self, event: Shares) -> list[Command]:
        """Enter a site's shares; with enough of them, uncover the masks."""
        masked = self._masked
        why_not = self.roster.here(event) or masked.open(self.roster.w[event.client], event.packet)
        if why_not:
            return [*self.roster.refuse(event, why_not), *self._can_still(event.now)]
        if not masked.opened:
            return []
        try:
            masks = masked.uncover()
        except NotRecoverable as error:
            return self._abort(printable(error), event.now)
        return [masks, *super()._complete(masked, event.now)]

    def _back(self, event: Joined) -> Sequence[Command]:
        entered = self.roster.enter(event.client, live=event.live)
        return () if entered is None else self._masked.returned(event)

    def _away(self, event: Lost) -> list[Command]:
        """Keep a vector that is in the sum; abort if too few sites are left to unmask it."""
        return [] if self._dropouts.lost(event) is None else self._can_still(event.now)

    def _failed_last(self, event: Failed) -> list[Command]:
        """Note that a client will not answer; a failure of named chunks concerns only its work."""
        if not event.chunks and not self.roster.here(event):
            self._masked.cannot(self.roster.w[event.client])
        why_not = self._dropouts.failed(event)
        refused = self.roster.refuse(event, why_not) if why_not else []
        return [*refused, *self._can_still(event.now)]

    def _can_still(self, now: float) -> list[Command]:
        if self._masked.can_still(self.roster.live):
            return []
        return self._abort(TOO_FEW, now)

    def _too_late(self, event: Tick) -> list[Command]:
        shares = self.state is State.UNMASKING
        asked, within_s = (
            ("shares", self._shares_s) if shares else ("signatures", self.plan.upload_deadline_s)
        )
        return self._abort(f"too few {asked} in {within_s:.0f} s", event.now)

    def _passed_over(self, _: Event) -> list[Command]:
        """Ignore an event that is too late for this state."""
        return []

    def _abort(self, reason: str, now: float) -> list[Command]:
        self.reason = reason
        return self._close("aborted", now)
