"""The weighted mean of local updates (FedAvg, McMahan et al. 2017).

    sum over clients of samples * (start - end), divided by the sum of the weights

A client that did half the steps has a shorter update, and counts less by that alone. Weighting by steps as
well would count it for a quarter, and data that only slow clients hold would not be learned (under label skew
with persistent stragglers that cost five to seven points of accuracy). Its update is not scaled up either (as
in FedNova, arXiv 2007.07481), so that the noise of few steps stays small.
"""

from collections.abc import Collection, Sequence
from operator import mul
from typing import Final

from fedgc import messages
from fedgc.messages import Add, Command, Joined, Progress, Report, Reveal
from fedgc.round.aggregator import Aggregator, Result, Wait
from fedgc.round.local.lateness import UpdateLateness
from fedgc.round.local.reports import StepReports
from fedgc.round.local.weights import bounded_weights


class WeightedMean(Aggregator):
    """The mean of the updates that come, each weighted by its client's samples."""

    def __init__(self, reports: StepReports, wire: messages.Wire, now: float) -> None:
        """Every able client owes an update; its numbers travel in the format `wire`.

        Where updates count in later rounds as well (`Plan.counts_late`), a client counts once in a round, and
        one that has hardly begun trains on.
        """
        self.reports: Final = reports
        self._roster = reports.roster
        self._wire: messages.Wire = wire
        able = reports.able()
        self._owing = dict.fromkeys(able)
        self._trains_on: dict[int, None] = {}  # clients that are asked after this round
        if reports.roster.plan.counts_late:
            new = [w for w in able if not self._is_counted(w)]
            due = [w for w in new if reports.hands_in(w, now)]
            due = due if due or reports.roster.came else new
            self._owing = dict.fromkeys(due)
            self._trains_on = {w: None for w in able if w not in self._owing}
        self._steps: dict[int, int] = {}  # of each client's next update
        self._added: dict[int, int] = {}
        self._lateness = UpdateLateness(reports)
        self._ended = False  # at the upload deadline
        samples = {w: reports.weight(w) for w in able}
        self._weights = bounded_weights(samples, reports.roster.plan.largest_share, reports.pinned)
        reports.collecting = True

    def ask(self) -> Sequence[Command]:
        """Return the request to every client."""
        return [self._reveal(w) for w in self._owing]

    def accept(self, w: int, attempt: int, norm: float = 0.0) -> Add | str:  # noqa: ARG002  rules bound it
        """Take an update into the sum, once its client has reported its steps."""
        if w not in self._owing or attempt:
            return f"update of attempt {attempt} is not owed: in the sum, given up, or never asked for"
        steps = self._steps.get(w)
        if not steps:
            return "update of a client that has not reported its steps"
        del self._owing[w]
        self._added[w] = steps
        self._roster.statistics.open[w] = 0
        number = self._roster.assignment.number
        return Add(self._roster.plan.clients[w], number, attempt, (self._weights[w],))

    def heard(self, event: Progress | Report) -> Sequence[Command]:
        """Enter the steps of a client's next update; a client without steps sends none."""
        refused = self.reports.heard(event)
        if not isinstance(event, Report) or self._roster.here(event):
            return refused
        w, target = self._roster.w[event.client], self._roster.assignment.target
        if refused:  # without a report that counts, its update does not
            self.lost(w)
            return refused
        if w in self._trains_on and not self._is_counted(w) and event.steps >= target:
            return (self.ask_later(w),)
        if w in self._owing:
            if w not in self._steps:
                self._lateness.again(w, event.now)
            self._steps[w] = event.steps
            if not event.steps:
                del self._owing[w]
        return ()

    def ask_later(self, w: int) -> Reveal:
        """Return the request to a client that trains on."""
        del self._trains_on[w]
        self._owing[w] = None
        return self._reveal(w)

    @property
    def behind(self) -> Collection[int]:
        """The clients whose updates come after this round, and count then; without a session none can."""
        clients, deaf = self._roster.plan.clients, self._roster.deaf
        late = (*self._owing, *self._trains_on) if self._roster.plan.counts_late else ()
        return [w for w in late if clients[w] not in deaf]

    @property
    def trains_on(self) -> Collection[int]:
        """Those of them that were not asked yet."""
        return self._trains_on

    def returned(self, event: Joined) -> Sequence[Command]:
        """Ask a client again for the update that it owes, or let it train on, if it has kept steps."""
        w = self._roster.w[event.client]
        steps = self.reports.kept(w, event)
        self.reports.enter(w, event, steps, event.now, owes=True)
        if not steps:
            self.lost(w)
        if w in self._trains_on:
            return [self.reports.work(w, live=event.live, order=self.reports.numbers(w))]
        if w not in self._owing:
            return ()
        self._lateness.again(w, event.now)
        # A new process of the client has no work yet.
        return [self.reports.work(w, live=event.live, order=()), self._reveal(w)]

    def lost(self, w: int, *, gone: bool = True) -> None:  # noqa: ARG002  either way it sends no update
        """Leave the client out of the mean."""
        self._owing.pop(w, None)
        self._trains_on.pop(w, None)

    def restarted(self, w: int) -> None:
        """Still wait for the update: `returned` sees whether the client has kept its steps."""

    @property
    def owing(self) -> Collection[int]:
        """The clients whose update is awaited."""
        return self._owing

    def expire(self, *, final: bool) -> Sequence[int]:  # noqa: ARG002  nothing else can come
        """Leave out the clients that owe an update, and return them."""
        if self._roster.plan.counts_late:
            self._ended = True
            self._roster.statistics.awaited |= {*self._owing, *self._roster.behind}
            return ()
        late = tuple(self._owing)
        for w in late:
            self.reports.give_up(w)
        self._owing.clear()
        return late

    def offered(self, w: int) -> None:
        """Note that a client has begun to send: its update is not late."""
        self._lateness.offered(w)

    def failed(self, w: int, now: float) -> None:
        """Leave the client out; note it if the round waited longer than it would have without an offer."""
        if w in self._owing and self._lateness.is_overdue(w, now):
            self._roster.statistics.awaited.add(w)
        self.lost(w, gone=False)

    def wait(self, now: float) -> Wait | None:
        """Wait for updates that are owed, until most have come and the others are late."""
        later = self._comes_later
        if self._ended or not (self._owing or later):
            return None
        until = self._lateness.until(self._owing, self._added.keys(), now, later)
        if now < until:
            return Wait(until=until)
        if not self._roster.plan.counts_late:
            self._note_late(now)
        return None

    def result(self, now: float) -> Result:  # noqa: ARG002  the time changes nothing
        """Return the sum of the weights, the mean steps, and the chunks without any client in the mean."""
        late, number = self._roster.late, self._roster.w
        counted = {number[client]: each.steps for client, each in late.items() if client in number}
        counted |= self._added
        weights = [each.weight for each in late.values()] + [self._weights[w] for w in self._added]
        all_steps = [*(each.steps for each in late.values()), *self._added.values()]
        weight = sum(weights)
        steps = sum(map(mul, all_steps, weights)) / weight if weights else 0.0
        covered = {chunk for each in late.values() for chunk in each.chunks}
        missing = tuple(c for c in self.reports.lacking(tuple(self._added)) if c not in covered)
        return Result(weight, counted, missing=missing, steps=steps)

    def _note_late(self, now: float) -> None:
        """Note the clients without which the round ends; one without a model has nothing to send."""
        statistics = self._roster.statistics
        for w in self._owing:
            if not self._lateness.is_excused(w):
                statistics.awaited.add(w)
                statistics.failure[w] = f"sent nothing within {self._lateness.waited_s(w, now):.0f} s"

    @property
    def _comes_later(self) -> int:
        """The number of clients that were not asked in this round, and whose updates may come in it."""
        trains_on, counted = self._trains_on, self._roster.counted
        return len(trains_on) - len(counted & trains_on.keys()) + len(self._roster.behind)

    def _is_counted(self, w: int) -> bool:
        """Whether an earlier update of a client is in the sum: it counts once in a round."""
        return self._roster.plan.clients[w] in self._roster.late

    def _reveal(self, w: int) -> Reveal:
        plan, number = self._roster.plan, self._roster.assignment.number
        return Reveal(plan.clients[w], number, 0, "local", None, self._wire)
