"""One round as a state machine without I/O: events in, commands out.

A round goes from one common model to the next decision. `Run` begins it and hands it events; the driver
executes its commands. `TABLE` (fedgc/round/table.py) is the transition table.

    WORKING      Clients train, and report. Once the scheduler has enough, the gate decides, once, whether the
                 updates are worth an exchange. If so, the round may wait for more. It waits at most until a
                 deadline; a gate that was not asked by then is asked with the work at hand.
    COLLECTING   The finished work is fixed, and the aggregator asks for it. Lost or late vectors are repaired
                 if the kind of work allows it (`fedgc.round.coded`), else left out.
    AGREEING     Masked: the set of vectors in the sum is fixed, and clients sign it.
    UNMASKING    Masked: enough have signed; they give the shares that uncover the masks.
    CLOSED       synced       coded: the sum over all chunks is exact up to rounding (an update that is far
                              longer than usual counts in part); local: the updates in the mean cover all
                              chunks
                 approximate  the sum lacks chunks, which the round names
                 skipped      not worth an exchange: clients continue from where they are
                 empty        nothing was finished, or no vector came
                 aborted      masked: too few clients were left; the server learned nothing of any update
                 stopped      the run was stopped

The scheduler assigns work to clients (`Scheduler`); the aggregator decides the requests and how vectors enter
the sum (`Aggregator`); the round decides when. These hold for every order of events:

*   No part of a client's work enters the sum twice, and in a synced round each part has entered once.
*   A lost client's work does not count until the client is back and reports it again. A loss after `Add`
    does not change the sum.
*   An event that does not belong to the round is refused with a reason and counted against its client, except
    events of an earlier round, which crossed a command on their way.
*   The round always ends: collecting takes at most one upload deadline and three times the longer of that and
    of the time to get the model and work; signatures and shares take at most one upload deadline each.

Two clients, chunks 0 and 1 on both, codewords of half a model:

    start                     Work(a, order 0 1)  Work(b, order 1 0)
    Progress(a, 0)            -                         one replica of chunk 0
    Progress(b, 1)            -                         the gate is asked: exchange
    Progress(a, 1)            no Skip(b, 1): b has done its own
    Progress(b, 0)            Reveal(a)  Reveal(b)      two replicas of each: codewords of half a model
    Codeword(a)               Add(a)
    Lost(b)                   Repair(a, column b)       a sends b's half as well
    Codeword(a, attempt 1)    Add(a)  Close(a, synced)
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter

from fedgc.gates import Decision, Reports
from fedgc.messages import (
    SUMMED,
    Close,
    Command,
    Event,
    Failed,
    Joined,
    Leaving,
    Loaded,
    Lost,
    Outcome,
    Progress,
    Report,
    Stop,
    Tick,
    UpdateDue,
)
from fedgc.round.aggregator import JUST_WAIT, Aggregator, Result
from fedgc.round.coded.scheduler import CodedScheduler
from fedgc.round.collecting import Collecting
from fedgc.round.deadline import WorkingDeadline
from fedgc.round.departures import Departures
from fedgc.round.dropouts import Dropouts
from fedgc.round.local.scheduler import LocalScheduler
from fedgc.round.plan import Plan
from fedgc.round.roster import Assignment, Roster
from fedgc.round.scheduler import Scheduler, Supply, WorkSummary
from fedgc.round.states import State, Transition
from fedgc.round.statistics import RoundStatistics
from fedgc.round.table import TABLE
from fedgc.round.waiting import Waiting

__all__ = ["TABLE", "Assignment", "Round", "State", "Transition"]


class Round:
    """The state machine. `start` once, then `handle` every event; `next_tick` says when to send a `Tick`."""

    def __init__(self, plan: Plan, assignment: Assignment, decide: Callable[[Reports], Decision]) -> None:
        """`decide` asks the gate."""
        self.plan = plan
        self.assignment = assignment
        self._enter(State.WORKING)
        self.outcome: Outcome | None = None
        self.reason, self.completes = "", False
        self.result: Result | None = None  # set at the end of collecting
        self.short: tuple[int, ...] = ()  # numbers of the chunks that the sum lacks
        self.error: float | None = None  # of an approximate sum, relative to its size, if known
        self.started_at = self.closed_at = self.working_s = 0.0
        self.behind: frozenset[str] = frozenset()  # clients whose updates count in a later round
        self.collecting: Collecting | None = None  # set at the start of collecting
        self._decide = decide
        self._worth_it = False  # the gate has decided to exchange
        self._look_at = math.inf  # when to ask the scheduler again without an event
        self.roster = Roster(plan, assignment, plan.deadline_s * max(1.0, assignment.target / plan.steps))
        self._deadline = WorkingDeadline(self.roster)
        self._departures = Departures(self.roster, self._deadline)
        self._training_s = assignment.model_limit_s + self.roster.limit_s  # to receive the model, and train
        self.scheduler: Scheduler = (
            CodedScheduler(self.roster) if plan.work == "coded" else LocalScheduler(self.roster)
        )
        self._dropouts = Dropouts(self.roster, self.scheduler, self._deadline, self._departures)

    # ---- input and output

    def start(self, now: float, present: Sequence[Joined]) -> tuple[Command, ...]:
        """Give work to all clients that are present."""
        self.started_at = self.roster.started_at = now
        given = self._give(present, self.assignment.carried)
        self._deadline.start(now, (each.client for each in present))
        return self._completed([*given, *self._advance(now)], now)

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Return the commands that follow from this event; refuse it if it is unexpected."""
        kind = type(event)
        if kind is Tick and event.now < self.next_tick:
            return ()
        transition = self._row.get(kind)
        if transition is not None:
            handler: Callable[[Event], Sequence[Command]] = attrgetter(transition.handler)(self)
            return self._completed(handler(event), event.now)
        if self.outcome is not None:
            return tuple(self.roster.refuse(event, f"round {self.assignment.number} is closed"))
        return tuple(self.roster.refuse(event, f"{kind.__name__} is not expected while {self.state.value}"))

    @property
    def next_tick(self) -> float:
        """When the round next needs a `Tick`."""
        if self.collecting is not None:
            return self.collecting.next_tick
        return min(self._deadline.at, self._look_at)

    @property
    def statistics(self) -> RoundStatistics:
        """The statistics of this round."""
        return self.roster.statistics

    @property
    def summary(self) -> WorkSummary:
        """Results of the round's work."""
        return self.scheduler.summary

    @property
    def loading(self) -> frozenset[str]:
        """The clients whose model may be in transit."""
        return frozenset(self._deadline.loading)

    @property
    def forced(self) -> bool:
        """Whether the exchange was made, or made early, for a client that is leaving."""
        return self._departures.forced

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return (done, total, aim), for display."""
        return self.scheduler.progress

    @property
    def waiting(self) -> Waiting:
        """The clients that this state waits for, and until when."""
        collects = self.collecting if self.state is State.COLLECTING else None
        until = self.next_tick if collects is None else collects.until
        return Waiting(frozenset(self.plan.clients[w] for w in self._awaited()), until)

    def _awaited(self) -> Collection[int]:
        if self.collecting is None:
            return self.scheduler.awaited or self.roster.behind
        return self.collecting.aggregator.owing if self.state is State.COLLECTING else ()

    def late_came(self, now: float) -> tuple[Command, ...]:
        """Return what follows once an update of an earlier round is in the sum."""
        if self.state is State.WORKING:
            return self._completed(self._advance(now), now)
        collects = self.collecting if self.state is State.COLLECTING else None
        return self._completed(collects.late_came(now), now) if collects is not None else ()

    # ---- working

    def _give(self, present: Sequence[Joined], carried: Collection[str] = ()) -> list[Command]:
        for event in present:
            self.roster.enter(event.client, live=event.live)
        given = self.scheduler.give(present, carried)
        self._deadline.sent(given)
        return given

    def _loaded(self, event: Loaded) -> list[Command]:
        if event.version == self.assignment.version:
            if event.client in self._deadline.loading:
                self.roster.model_at[self.roster.w[event.client]] = event.now
            self._deadline.loaded(event.client, event.now)
        return []

    def _joined(self, event: Joined) -> list[Command]:
        self._dropouts.restarted(event)
        return [*self._give([event]), *self.scheduler.reassign(), *self._advance(event.now)]

    def _leaving(self, event: Leaving) -> list[Command]:
        """Let others do the rest of a leaving client's work, and collect while it is there."""
        w = self.roster.w.get(event.client)
        if w not in self.roster.live or w is None:
            return []
        self._departures.note(w)
        self._deadline.gone(event.client)
        if self._hands_in(self.scheduler.leaves(w)):
            self._departures.leaves(event, w)
        return [*self.scheduler.reassign(), *self._advance(event.now)]

    @staticmethod
    def _hands_in(has_reported: bool) -> bool:
        """Whether a client that leaves has something to hand in."""
        return has_reported

    def _lost(self, event: Lost) -> list[Command]:
        self._deadline.gone(event.client)
        if self._dropouts.lost(event) is None and not self.plan.counts_late:
            return []
        return [*self.scheduler.reassign(), *self._advance(event.now)]

    def _failed(self, event: Failed) -> list[Command]:
        why_not = self._dropouts.failed(event)
        if why_not:
            return self.roster.refuse(event, why_not)
        if event.chunks:  # the client has tried, so it has the model
            self._deadline.loaded(event.client, event.now)
        self._deadline.gone(event.client)
        return [*self.scheduler.reassign(), *self._advance(event.now)]

    def _reported(self, event: Progress | Report) -> list[Command]:
        if event.client in self._deadline.loading and event.round == self.assignment.number:
            self._deadline.loaded(event.client, event.now)
        given, more = self.scheduler.heard(event), self._advance(event.now)
        return [*given, *more] if more else given

    def _advance(self, now: float) -> list[Command]:
        """Ask the gate once there is enough work; collect once more is not worth waiting for."""
        scheduler = self.scheduler
        stalled = scheduler.stalled(now, self._deadline.loading)
        supply = scheduler.supply
        if supply is Supply.IMPOSSIBLE:
            return self._without_work(now)
        if not self._worth_it and supply is Supply.ENOUGH and not self._pass_gate(now):
            return self._close("skipped", now)
        wait = scheduler.wait(now) if self._worth_it else JUST_WAIT
        if wait is None:
            return [*stalled.commands, *self._collect(now)]
        self._look_at = min(wait.until, stalled.until)
        return [*stalled.commands, *wait.commands]

    def _pass_gate(self, now: float) -> bool:
        decision = self._departures.decided(self._decide, self.scheduler.reports(), now)
        self.reason = decision.reason
        self._worth_it = decision.sync
        return decision.sync

    def _time_passed(self, event: Tick) -> list[Command]:
        """At the deadline, go on with the finished work."""
        if event.now >= self._deadline.at and self.roster.behind and self.scheduler.supply is Supply.SOME:
            self._deadline.extend(event.now)  # the run gives up clients that are behind for too long
        if event.now < self._deadline.at:
            return self._advance(event.now)
        if self.scheduler.supply in (Supply.IMPOSSIBLE, Supply.NOTHING):
            return self._without_work(event.now)
        idle = self.roster.live - {w for w, held in self.scheduler.holds.items() if held.amount}
        self.statistics.awaited |= {w for w in idle if not self.statistics.failure[w]}  # it may have failed
        return self._collect_early(event.now)

    def _without_work(self, now: float) -> list[Command]:
        """Close without finished work, unless updates of earlier rounds are in the sum."""
        return self._collect_early(now) if self.roster.late else self._close("empty", now)

    def _asked(self, event: UpdateDue) -> list[Command]:
        """Go on with the finished work before the deadline."""
        if self.scheduler.supply in (Supply.IMPOSSIBLE, Supply.NOTHING):
            return self._close("empty", event.now)
        return self._collect_early(event.now)

    def _collect_early(self, now: float) -> list[Command]:
        if not self._worth_it and not self._pass_gate(now):
            return self._close("skipped", now)
        if self._deadline.is_hurried(now) and not self.forced:
            self._departures.forced = True
            self.reason = f"{self.reason}; {self._departures.reason}"
        return self._collect(now)

    # ---- collecting

    def _aggregate(self, now: float) -> Aggregator:
        return self.scheduler.collect(now)

    def _collect(self, now: float) -> list[Command]:
        """Fix the finished work, and ask for the needed vectors."""
        self.collecting = Collecting(self._aggregate(now), self._dropouts, self._training_s, now)
        self._enter(State.COLLECTING)
        self.working_s = now - self.started_at
        return self.collecting.start(now)

    def _completed(self, commands: Sequence[Command], now: float) -> tuple[Command, ...]:
        """Return the commands, and those that follow if all vectors are in the sum."""
        collects = self.collecting if self.state is State.COLLECTING else None
        if collects is None or not collects.complete:
            return tuple(commands)
        return (*commands, *self._complete(collects.aggregator, now))

    def _complete(self, aggregator: Aggregator, now: float) -> list[Command]:
        """Close the round with the result."""
        self.result = result = aggregator.result(now)
        if not result.counted:
            return self._close("empty", now)
        self.short, self.error = result.missing, result.error
        self.statistics.awaited.update(result.unsent_s)
        return self._close("approximate" if result.missing else "synced", now)

    # ---- closing

    def _stopped(self, event: Stop) -> list[Command]:
        self.reason, self.completes = event.reason, event.complete
        return self._close("stopped", event.now)

    def _close(self, outcome: Outcome, now: float) -> list[Command]:
        """Release all clients; they may delete their work unless the next round continues it."""
        summed = outcome in SUMMED
        if self.collecting is None:
            self.working_s = now - self.started_at
        elif self.result is None:
            self.result = self.collecting.aggregator.result(now)
        if summed and self.result is not None:
            self.statistics.count(self.result.counted)
        if outcome == "empty":
            self.reason = ""  # the gate's, of an exchange that did not take place
        self._enter(State.CLOSED)
        self.outcome, self.closed_at = outcome, now
        clients, number = self.plan.clients, self.assignment.number
        frees = summed or self.completes
        behind = set() if outcome == "stopped" else self._left_behind()
        self.scheduler.settle(behind, final=summed or outcome == "stopped")
        return [Close(clients[w], number, outcome, frees) for w in sorted(self.roster.live - behind)]

    def _left_behind(self) -> set[int]:
        """Return the clients whose updates come in a later round; their work is finished when it counts."""
        behind = set(self.collecting.aggregator.behind) if self.collecting is not None else set()
        for w in behind:
            late = self.roster.late.get(self.plan.clients[w])
            self.statistics.comes_later(w, late.steps if late is not None else 0)
        self.behind = frozenset(self.plan.clients[w] for w in behind)
        return behind

    def _enter(self, state: State) -> None:
        self.state: State = state
        self._row: Mapping[type, Transition] = TABLE[state]
