"""The second state of a round: the finished work is fixed, and its vectors enter the sum.

The aggregator decides which client is asked for which vector (`Aggregator`). `Collecting` hands it the events
of clients, and holds the time limits: an upload may take `Plan.upload_deadline_s`, and longer if it was asked
for late, within a limit for all.
"""

from collections.abc import Sequence
from typing import Final

from fedgc.messages import (
    Codeword,
    Command,
    Failed,
    Joined,
    Leaving,
    Loaded,
    Lost,
    Offered,
    Progress,
    Refuse,
    Repair,
    Report,
    Reveal,
    Tick,
)
from fedgc.round.aggregator import Aggregator
from fedgc.round.deadline import trains
from fedgc.round.dropouts import Dropouts

NO_UPDATE: Final = "no update by the upload deadline"  # the failure of a client that is slow, or away
PATIENCE: Final = 3  # times the longer of uploading and training: the limit of repairs


class Collecting:
    """Handles the events of a round that collects (`TABLE`), until the sum is complete."""

    def __init__(
        self,
        aggregator: Aggregator,
        dropouts: Dropouts,
        training_s: float,
        now: float,
    ) -> None:
        """`training_s`: the limit to receive the model, and train."""
        self.aggregator: Final = aggregator
        self._roster = dropouts.roster
        self._dropouts, self._deadline = dropouts, dropouts.deadline
        self.complete = False  # all vectors that can come are in the sum
        self._training_s = training_s
        self._limit_s = self._roster.plan.upload_deadline_s
        self.next_tick = self.until = now + self._limit_s  # `until`: when the wait for owed vectors ends
        self._latest = self.until + PATIENCE * max(self._limit_s, training_s)  # of all extensions of it

    def start(self, now: float) -> list[Command]:
        """Ask for the needed vectors."""
        return [*self.aggregator.ask(), *self._await(now)]

    def received(self, event: Codeword) -> list[Command]:
        """Take a vector into the sum, once."""
        w = self._roster.w.get(event.client)
        number = self._roster.assignment.number
        if w is None or event.round != number:
            return self._roster.refuse(event, f"a codeword outside round {number}")
        answer = self.aggregator.accept(w, event.attempt, event.norm)
        if isinstance(answer, str):
            return [*self._roster.refuse(event, answer), *self._await(event.now)]
        if isinstance(answer, Refuse):
            return [answer]  # the client is not at fault
        return [answer, *self._await(event.now)]

    def returned(self, event: Joined) -> list[Command]:
        """Ask a returning client for what it owes, or let it finish what is missing."""
        again: Sequence[Command] = ()
        if (w := self._dropouts.restarted(event)) is not None:
            self.aggregator.restarted(w)
        if self._roster.enter(event.client, live=event.live) is not None:
            again = self.aggregator.returned(event)
        self._deadline.sent(again)
        done = self._roster.assignment.version, self._roster.assignment.target
        kept = {each.chunk for each in event.kept if (each.version, each.reached) == done}
        if trains(again, kept) or any(isinstance(each, Reveal | Repair) for each in again):
            self._extend(event.now, trains=trains(again, kept))
        return [*again, *self._await(event.now)]

    def loaded(self, event: Loaded) -> list[Command]:
        """Note that a client has the model."""
        if event.version == self._roster.assignment.version:
            self._deadline.loading.discard(event.client)
        return []

    def offered(self, event: Offered) -> list[Command]:
        """Note that a client has begun to send."""
        w = self._roster.w.get(event.client)
        if w is not None and event.round == self._roster.assignment.number:
            self.aggregator.offered(w)
        return []

    def leaving(self, event: Leaving) -> list[Command]:
        """Ask for no more work of a leaving client; it still sends what it owes."""
        self._deadline.loading.discard(event.client)
        w = self._roster.w.get(event.client)
        if w is not None and w in self._roster.live:
            self._dropouts.departures.note(w)
            self._dropouts.scheduler.leaves(w)
        return self._await(event.now)

    def lost(self, event: Lost) -> list[Command]:
        """Repair or leave out what a lost client owes."""
        self._deadline.loading.discard(event.client)
        w = self._dropouts.lost(event)
        if w is not None:
            self.aggregator.lost(w)
        return [] if w is None and not self._roster.plan.counts_late else self._await(event.now)

    def failed(self, event: Failed) -> list[Command]:
        """Repair or leave out what a client cannot give."""
        why_not = self._dropouts.failed(event)
        if why_not:
            return self._roster.refuse(event, why_not)
        self.aggregator.failed(self._roster.w[event.client], event.now)
        return self._await(event.now)

    def late_came(self, now: float) -> list[Command]:
        """Note that an update of an earlier round is in the sum."""
        return self._await(now)

    def reported(self, event: Progress | Report) -> list[Command]:
        """Hand a late report to the aggregator."""
        if event.round == self._roster.assignment.number:
            self._deadline.loading.discard(event.client)
        return [*self.aggregator.heard(event), *self._await(event.now)]

    def time_passed(self, event: Tick) -> list[Command]:
        """Look for late clients; give up those past the deadline, and all at the limit."""
        if event.now < self.until:
            return self._await(event.now)
        for w in self.aggregator.expire(final=event.now >= self._latest):
            self._roster.statistics.failure[w] = NO_UPDATE
            self._roster.statistics.awaited.add(w)
        self.until = min(event.now + self._limit_s, self._latest)
        return self._await(event.now)

    def _extend(self, now: float, *, trains: bool = False) -> None:
        """Give a client that is asked late as long as the others had, within the limit of the round."""
        limit_s = self._limit_s + (self._training_s if trains else 0.0)
        self.until = max(self.until, min(now + limit_s, self._latest))

    def _await(self, now: float) -> list[Command]:
        """Ask for what is lost or late, until the sum is complete."""
        wait = self.aggregator.wait(now)
        if wait is None:
            self.complete = True
            return []
        if wait.commands:
            self._extend(now, trains=trains(wait.commands))
        self.next_tick = min(self.until, wait.until)
        return list(wait.commands)
