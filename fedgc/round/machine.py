"""One round: events in, commands out. Three tables at the end of this file say what reacts to what.

A round goes from one common model to the next decision. The data is cut in chunks; where data may be shared,
every chunk is held by several clients: what a slow or dead one has not finished, another has. AGREEING and
UNMASKING share a table; a closed round refuses all.

    WORKING      Clients train to `target` steps since the last common model, and report. Once enough have,
                 the *gate* says, once, whether what was learned is worth an exchange. If it is, the round may
                 wait for more. It does not wait beyond a deadline, which counts from when all that were there
                 at the start have the model (one that does not come is waited for only so long); nobody who
                 joins moves it. A gate that was not asked by then is asked with whatever there is.
      coded        A client trains its chunks one by one; a finished chunk is a *copy*. As copies come in,
                   others are told to skip that chunk, or which to take next. Enough is one copy of every
                   chunk that can be had; an exchange waits for `aim` copies of each, as many as paid of late
                   (`aiming`).
      local        A client trains one model on all of its chunks. Enough is a quorum of the clients
                   that are left; an exchange waits for those that are nearly done.
    COLLECTING   What there is is fixed, and asked for. What is finished from now on counts only where it
                 stands in for something of that.
      coded        `blocks` copies of every chunk (as many as were aimed for) let each client send 1/blocks of
                   a model. Each mixes its finished chunks into one such *codeword*, so that a weighted sum of
                   codewords is the sum over all chunks. A codeword that is lost is made good by other holders
                   of its chunks, who may have to train on them first. One that takes much longer than most
                   did is asked of them too: the first counts. Where a line is known to be as slow as that,
                   all go on with the chunks that they left, so as to have them by then.
      local        Each client sends its update, whatever its steps; one that is lost is left out.
      masked       Either kind of work between sites: each sends its update under masks.
    AGREEING     Masked: whose vectors are in the sum is fixed, and they sign that.
    UNMASKING    Masked: enough have signed; they give their shares of what is left of the masks.
    CLOSED       synced       coded: the sum over all chunks is exact, up to the rounding of numbers on their
                              way; local: every chunk was trained on by somebody in the mean
                 approximate  some chunks are missing; which is said, and in coded work how much it matters
                 skipped      not worth an exchange: clients carry on from where they are, as far as the next
                              plan leaves them their chunks
                 empty        there was nothing to add up: nobody had finished anything, or nothing of it came
                 aborted        masked: too few were left, so there is no sum, and nothing was learned of any
                 stopped      somebody asked for it

Coded work is exact. An update is cut into `blocks` pieces, the rows of update_c. Client j mixes chunk c in
with U_jc, one factor for each piece; R_j, one factor for each too, says where its codeword goes. With them

    sum over clients j, chunks c of  R_j (U_jc . update_c)  =  sum over chunks c of  update_c.

Client j's codeword is the inner sum over its chunks; each (j, c) is a *term*. A repair is a part of j's
column that somebody else sends (attempt 1 and up; attempt 0 is a client's own codeword). What must always
hold: no term enters the sum twice, and in a synced round each has entered once (once part of its repair is
in, a codeword is refused for good); a copy on a lost client counts no more until the client is back and says
that it has it; a loss after `Add` changes nothing in the sum (under masks, whoever is lost may be missed when
they are opened); what does not belong here is refused with a reason, and counted where it is a client of this
plan, except what is of a round before and merely crossed a command on its way. It always ends: collecting at
the latest after one upload deadline and three times the longer of that and of what getting the model and
working may take; and one upload deadline each for signatures and shares.

Two clients, chunks 0 and 1 on both, blocks = 2, coded:

    start                     Work(a, order 0 1)  Work(b, order 1 0)
    Progress(a, 0)            -                         one copy of chunk 0
    Progress(b, 1)            -                         the gate is asked: exchange
    Progress(a, 1)            no Skip(b, 1): b has done its own
    Progress(b, 0)            Reveal(a)  Reveal(b)      2 copies of each: codewords of half a model
    Codeword(a)               Add(a)
    Lost(b)                   Repair(a, column b)       a sends b's half as well
    Codeword(a, attempt 1)    Add(a)  Close(a, synced)

A round does no I/O, reads no clock and holds no vector: `run` begins it and hands it events, and the driver
carries out what it says. What is worked on, who is given what, and what a report means, is for the *effort*
(`chunks` for coded work, `attendance` for local, `sites` around either); which vector is owed, taken
or lost, for the collection (`collect`, `masked`); who is asked for what is lost or late, for `repairs`; when
is said here.

May import: chunks, attendance, sites, collect, masked, effort, keying, statistics, plan, gate, messages.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from fedgc.codes import Solution
from fedgc.errors import NotRecoverable
from fedgc.gates import Decision, Reports
from fedgc.messages import (
    Close,
    Codeword,
    Command,
    Event,
    Failed,
    Joined,
    Loaded,
    Lost,
    Outcome,
    Progress,
    Refuse,
    Repair,
    Report,
    Reveal,
    Shares,
    Signed,
    Stop,
    Take,
    Tick,
    Work,
)
from fedgc.round.coded.scheduler import CodedScheduler
from fedgc.round.local.scheduler import LocalScheduler
from fedgc.round.masked.aggregator import MaskedSum
from fedgc.round.masked.key_agreement import MaskedExchange
from fedgc.round.masked.scheduler import MaskedScheduler
from fedgc.round.plan import Plan
from fedgc.round.scheduler import Aggregation, Assignment, Roster, Scheduler
from fedgc.round.statistics import RoundStatistics

__all__ = ["Assignment", "Round", "State", "WORKING", "COLLECTING", "UNMASKING"]

TOO_FEW: Final = "too few sites are left to unmask the sum"
PATIENCE: Final = 3  # times the longer of sending and training: so long may what is lost be asked of others


class State(Enum):
    """Where a round stands."""

    WORKING = "working"
    COLLECTING = "collecting"
    AGREEING = "agreeing"
    UNMASKING = "unmasking"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Exchange:
    """What is fixed once collecting begins; `until` bounds all extensions of the upload deadline."""

    sum: Aggregation
    until: float


class Round:
    """The machine. `start` once, then `handle` every event; `next_tick` says when to send a `Tick`."""

    def __init__(
        self,
        plan: Plan,
        assignment: Assignment,
        decide: Callable[[Reports], Decision],
        exchange: MaskedExchange | None = None,
    ) -> None:
        """`drawn` is the exchange of a masked round."""
        self.plan = plan
        self.assignment = assignment
        self.outcome: Outcome | None = None
        self.reason = ""
        self.short: tuple[int, ...] = ()  # numbers of the chunks that the sum lacks
        self.error: float | None = None  # of an approximate sum, relative to its size, as far as can be told
        self.started_at = self.closed_at = self.working_s = 0.0
        self.next_tick = 0.0
        self._decide = decide
        self._worth_it = False  # the gate has said so
        self._exchange: Exchange | None = None
        self._roster = Roster(plan, assignment, plan.deadline_s * max(1.0, assignment.target / plan.steps))
        self._loading = set(plan.clients) & assignment.loading  # their model may be on its way to them
        self._awaited: set[str] = set()  # of these, those for whom the deadline waits
        self._loaded_at = 0.0  # when the last of them had it
        self._deadline = 0.0  # the end of the working phase
        self._upload_until = 0.0  # when whoever owes a vector is waited for no longer
        self._masked: MaskedSum | None = None  # once all its vectors are in
        inner: Scheduler = (
            CodedScheduler(self._roster) if plan.work == "coded" else LocalScheduler(self._roster)
        )
        self.scheduler: Scheduler = (
            inner if exchange is None else MaskedScheduler(inner, self._roster, exchange)
        )

    # ---- in and out

    def start(self, now: float, present: Sequence[Joined]) -> tuple[Command, ...]:
        """Give work to everybody who is there."""
        self.started_at = self._loaded_at = self._roster.started_at = now
        given = self._noted(self.scheduler.begin(present))
        self._awaited = self._loading & {each.client for each in present}
        self._set_deadline()
        return (*given, *self._enough_yet(now))

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Return what follows from this event; what does not belong here is refused."""
        if self.outcome is not None:
            return tuple(self._refuse(event, f"round {self.assignment.number} is closed"))
        kind = type(event)
        if kind is Tick and event.now < self.next_tick:
            return ()
        if self._exchange is None and (follow := WORKING.get(kind)) is not None:
            return tuple(follow(self, event))
        if self._masked is not None and kind in UNMASKING:
            return tuple(UNMASKING[kind](self, self._masked, event))
        if self._exchange is not None and self._masked is None and kind in COLLECTING:
            return tuple(COLLECTING[kind](self, self._exchange, event))
        return tuple(self._refuse(event, f"{kind.__name__} is not expected while {self.state.value}"))

    @property
    def state(self) -> State:
        """Where the round stands."""
        if self.outcome is not None:
            return State.CLOSED
        if self._masked is not None:
            return State.UNMASKING if self._masked.asked else State.AGREEING
        return State.WORKING if self._exchange is None else State.COLLECTING

    @property
    def statistics(self) -> RoundStatistics:
        """What is counted."""
        return self._roster.statistics

    @property
    def solution(self) -> Solution | None:
        """What was solved, once collecting has begun; local work has nothing to solve."""
        return self.scheduler.solution

    @property
    def collected(self) -> Aggregation | None:
        """What is collected, once that has begun."""
        return self._exchange.sum if self._exchange else None

    @property
    def loading(self) -> frozenset[str]:
        """The clients whose model may be on its way to them."""
        return frozenset(self._loading)

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return (what is done, what there is to do, what is aimed for): what a person watches."""
        return self.scheduler.progress

    # ---- working

    def _set_deadline(self) -> None:
        """The working phase counts from when whoever began has the model; that has a limit."""
        limit_s = self._roster.limit_s
        at_most = self.started_at + self.assignment.model_limit_s + limit_s
        self._deadline = at_most if self._awaited else min(at_most, self._loaded_at + limit_s)

    def _noted(self, given: list[Command]) -> list[Command]:
        """Keep in mind who is sent the model."""
        self._loading |= {each.client for each in given if isinstance(each, Work)}
        return given

    def _has_model(self, client: str, now: float) -> None:
        if client in self._awaited:
            self._loaded_at = now
        self._gets_no_model(client)

    def _gets_no_model(self, client: str) -> None:
        """No model is on its way to this client any more."""
        self._loading.discard(client)
        self._awaited.discard(client)
        self._set_deadline()
        self.next_tick = min(self._deadline, self.scheduler.look_again)

    def _loaded(self, event: Loaded) -> list[Command]:
        if event.version == self.assignment.version:
            if event.client in self._loading:
                self._roster.model_at[self._roster.w[event.client]] = event.now
            self._has_model(event.client, event.now)
        return []

    def _joined(self, event: Joined) -> list[Command]:
        given = self._noted(self.scheduler.give([event]))
        return [*given, *self.scheduler.stirred(), *self._enough_yet(event.now)]

    def _lost(self, event: Lost) -> list[Command]:
        self._gets_no_model(event.client)
        gone = self._off_the_books(event)
        return [*self.scheduler.stirred(), *self._enough_yet(event.now)] if gone else []

    def _failed(self, event: Failed) -> list[Command]:
        why_not = self._strike(event)
        if why_not:
            return self._refuse(event, why_not)
        if event.chunks:  # that it has tried
            self._has_model(event.client, event.now)
        self._gets_no_model(event.client)
        return [*self.scheduler.stirred(), *self._enough_yet(event.now)]

    def _reported(self, event: Progress | Report) -> list[Command]:
        if event.client in self._loading and event.round == self.assignment.number:
            self._has_model(event.client, event.now)
        given, more = self.scheduler.heard(event), self._enough_yet(event.now)
        return [*given, *more] if more else given

    def _enough_yet(self, now: float) -> list[Command]:
        """Ask the gate once there is enough for it; collect once more is not worth waiting for."""
        scheduler = self.scheduler
        if scheduler.hopeless:
            return self._close("empty", now)
        if not self._worth_it and scheduler.ready and not self._pass_gate():
            return self._close("skipped", now)
        more = scheduler.more(now) if self._worth_it else []
        if more is None:
            return self._collect(now)
        self.next_tick = min(self._deadline, scheduler.look_again)
        return more

    def _pass_gate(self) -> bool:
        decision = self._decide(self.scheduler.reports())
        self.reason = decision.reason
        self._worth_it = decision.sync
        return decision.sync

    def _time_passed(self, event: Tick) -> list[Command]:
        """At the deadline the round goes on with what there is."""
        if event.now < self._deadline:
            return self._enough_yet(event.now)
        if not self.scheduler.some:
            return self._close("empty", event.now)
        if not self._worth_it and not self._pass_gate():
            return self._close("skipped", event.now)
        return self._collect(event.now)

    def _collect(self, now: float) -> list[Command]:
        """Fix what there is, and ask for the vectors that are needed."""
        limit_s = self.plan.upload_deadline_s
        collected = self.scheduler.collect()
        self._exchange = Exchange(collected, now + limit_s + PATIENCE * max(limit_s, self._training_s))
        self.working_s = now - self.started_at
        self._upload_until = now + limit_s
        return [*collected.needed(), *self.scheduler.meanwhile(), *self._mend(self._exchange, now)]

    # ---- collecting

    def _received(self, exchange: Exchange, event: Codeword) -> list[Command]:
        w = self._roster.w.get(event.client)
        if w is None or event.round != self.assignment.number:
            return self._refuse(event, f"a codeword outside round {self.assignment.number}")
        answer = exchange.sum.accept(w, event.attempt)
        if isinstance(answer, str):
            return self._refuse(event, answer)
        if isinstance(answer, Refuse):
            return [answer]  # no fault of the client's
        return [answer, *self._close_if_complete(exchange, event.now)]

    def _returned(self, exchange: Exchange, event: Joined) -> list[Command]:
        """A returning client may still send what it owes, or finish what is missing."""
        again = self._noted(self.scheduler.returned(event))
        done = self.assignment.version, self.assignment.target
        trains = _trains(again, {each.chunk for each in event.kept if (each.version, each.reached) == done})
        if trains or any(isinstance(each, Reveal | Repair) for each in again):
            self._extend(exchange, event.now, trains=trains)
        return [*again, *self._mend(exchange, event.now)]

    def _loaded_late(self, _: Exchange, event: Loaded) -> list[Command]:
        if event.version == self.assignment.version:
            self._loading.discard(event.client)
        return []

    def _lost_late(self, exchange: Exchange, event: Lost) -> list[Command]:
        self._loading.discard(event.client)
        if not self._off_the_books(event):
            return []
        exchange.sum.lost(self._roster.w[event.client])
        return self._mend(exchange, event.now)

    def _failed_late(self, exchange: Exchange, event: Failed) -> list[Command]:
        why_not = self._strike(event)
        if why_not:
            return self._refuse(event, why_not)
        self.scheduler.without(self._roster.w[event.client])
        return self._mend(exchange, event.now)

    def _reported_late(self, exchange: Exchange, event: Progress | Report) -> list[Command]:
        if event.round == self.assignment.number:
            self._loading.discard(event.client)
        return [*self.scheduler.heard_late(event), *self._mend(exchange, event.now)]

    def _upload_deadline(self, exchange: Exchange, event: Tick) -> list[Command]:
        """See who is late. At the deadline whoever owes is waited for no longer, at the very end nobody."""
        if event.now < self._upload_until:
            return self._close_if_complete(exchange, event.now)
        late = exchange.sum.owing
        for w in late:
            self.statistics.failure[w] = "upload too slow"
            self.scheduler.too_slow(w)
            exchange.sum.lost(w)
        if not late or event.now >= exchange.until:  # only open terms are left, or no time is
            exchange.sum.give_up()
        self._upload_until = min(event.now + self.plan.upload_deadline_s, exchange.until)
        return self._mend(exchange, event.now)

    def _mend(self, exchange: Exchange, now: float) -> list[Command]:
        """Have made good what can be, and close once nothing is awaited."""
        asked = self.scheduler.mend()
        if asked:
            self._extend(exchange, now, trains=_trains(asked))
        return [*asked, *self._close_if_complete(exchange, now)]

    @property
    def _training_s(self) -> float:
        """How long one that has not even got the model may take to train."""
        return self.assignment.model_limit_s + self._roster.limit_s

    def _extend(self, exchange: Exchange, now: float, *, trains: bool = False) -> None:
        """Who is asked late gets as long as the others had, to train as to send, but the round must end."""
        limit_s = self.plan.upload_deadline_s + (self._training_s if trains else 0.0)
        self._upload_until = max(self._upload_until, min(now + limit_s, exchange.until))

    def _close_if_complete(self, exchange: Exchange, now: float) -> list[Command]:
        """Close once nothing is awaited any more; until then, see who is late."""
        if not exchange.sum.complete:
            hurried = self.scheduler.hurry(now)
            if hurried:
                self._extend(exchange, now, trains=_trains(hurried))
            self.next_tick = min(self._upload_until, self.scheduler.hurry_at)
            return hurried
        if isinstance(exchange.sum, MaskedSum):
            return self._agree(exchange.sum, now)
        if not exchange.sum.counted:
            return self._close("empty", now)
        self.short, self.error = self.scheduler.missing()
        return self._close("approximate" if self.short else "synced", now)

    # ---- masked: agreeing and unmasking

    def _agree(self, masked: MaskedSum, now: float) -> list[Command]:
        """Fix whose vectors are in the sum; with too few of them the exchange is aborted."""
        try:
            told = masked.agree()
        except NotRecoverable as error:
            return self._abort(str(error), now)
        self._masked = masked
        self.next_tick = now + self.plan.upload_deadline_s
        return self._can_still(masked, now) or list(told)

    def _signed(self, masked: MaskedSum, event: Signed) -> list[Command]:
        """One more signature; with enough of them, ask for the shares."""
        if masked.asked:
            return []  # more than were needed
        why_not = self._roster.here(event) or masked.sign(self._roster.w[event.client], event.signature)
        if why_not:
            return self._refuse(event, why_not)
        if not masked.signed:
            return []
        if not masked.can_open(self.scheduler.live):  # once they are asked, this model is masked no more
            return self._abort(TOO_FEW, event.now)
        self.next_tick = event.now + self.plan.upload_deadline_s
        return list(masked.unlock())

    def _shared(self, masked: MaskedSum, event: Shares) -> list[Command]:
        """One more site's shares; with enough of them, the masks are known."""
        why_not = self._roster.here(event) or masked.open(self._roster.w[event.client], event.packet)
        if why_not:
            return [*self._refuse(event, why_not), *self._can_still(masked, event.now)]
        if not masked.opened:
            return []
        try:
            masks = masked.uncover()
        except NotRecoverable as error:
            return self._abort(str(error), event.now)
        self.short, self.error = self.scheduler.missing()
        return [masks, *self._close("approximate" if self.short else "synced", event.now)]

    def _back(self, _: MaskedSum, event: Joined) -> list[Command]:
        return self.scheduler.returned(event)

    def _away(self, masked: MaskedSum, event: Lost) -> list[Command]:
        """A vector that is in the sum stays in it; but somebody must be left to unmask it."""
        return self._can_still(masked, event.now) if self._off_the_books(event) else []

    def _failed_last(self, masked: MaskedSum, event: Failed) -> list[Command]:
        """It lives, but will not answer; one that names chunks speaks of its work, and may answer."""
        if not event.chunks and not self._roster.here(event):
            masked.cannot(self._roster.w[event.client])
        why_not = self._strike(event)
        refused = self._refuse(event, why_not) if why_not else []
        return [*refused, *self._can_still(masked, event.now)]

    def _can_still(self, masked: MaskedSum, now: float) -> list[Command]:
        if masked.can_still(self.scheduler.live):
            return []
        return self._abort(TOO_FEW, now)

    def _too_late(self, masked: MaskedSum, event: Tick) -> list[Command]:
        asked = "shares" if masked.asked else "signatures"
        return self._abort(f"too few {asked} in {self.plan.upload_deadline_s:g} s", event.now)

    def _passed_over(self, *_: object) -> list[Command]:
        """What comes too late for this phase is of no use to it, and does no harm."""
        return []

    def _stopped_last(self, _: MaskedSum, event: Stop) -> list[Command]:
        return self._stopped(event)

    def _abort(self, reason: str, now: float) -> list[Command]:
        self.reason = reason
        return self._close("aborted", now)

    # ---- the end

    def _stopped(self, event: Stop) -> list[Command]:
        self.reason = event.reason
        return self._close("stopped", event.now)

    def _stopped_late(self, _: Exchange, event: Stop) -> list[Command]:
        return self._stopped(event)

    def _close(self, outcome: Outcome, now: float) -> list[Command]:
        """Let everybody go; what they keep may be forgotten unless the next round goes on from it."""
        if self._exchange is None:
            self.working_s = now - self.started_at
        elif outcome in ("synced", "approximate"):
            self.statistics.count(self._exchange.sum.counted)
        self.outcome, self.closed_at = outcome, now
        frees = outcome in ("synced", "approximate")
        clients, number = self.plan.clients, self.assignment.number
        return [Close(clients[w], number, outcome, frees) for w in self.scheduler.live]

    # ---- what both phases do

    def _off_the_books(self, event: Lost) -> bool:
        w = self._roster.w.get(event.client)
        if w is None or not self.scheduler.lost(w):
            return False
        self.statistics.failure[w] = "lost"
        return True

    def _strike(self, event: Failed) -> str:
        """Take what a client cannot give off the books; return why not."""
        why_not = self._roster.here(event)
        if why_not:
            return why_not
        w = self._roster.w[event.client]
        why_not = self.scheduler.struck(w, event)
        if not why_not:
            self.statistics.failure[w] = event.reason
        return why_not

    def _refuse(self, event: Event, reason: str) -> list[Command]:
        return self._roster.refuse(event, reason)


def _trains(given: Sequence[Command], kept: Set[int] = frozenset()) -> bool:
    """Whether somebody has to train before it can send, for all that it has `kept`."""
    return any(
        isinstance(each, Take) or (isinstance(each, Work) and set(each.order) - kept) for each in given
    )


WORKING: Final[Mapping[type, Callable[[Round, Any], list[Command]]]] = MappingProxyType(
    {
        Joined: Round._joined,  # a client is there: it is given what is worth doing
        Loaded: Round._loaded,  # it has the model: from here on it has time to work
        Lost: Round._lost,  # it is gone: what it has counts no more
        Failed: Round._failed,  # it lives, but cannot give this
        Progress: Round._reported,  # coded, a copy: skip, steer, ask the gate, collect
        Report: Round._reported,  # local, its steps are done: ask the gate, collect
        Tick: Round._time_passed,  # collect what there is
        Stop: Round._stopped,
    }
)
COLLECTING: Final[Mapping[type, Callable[[Round, Exchange, Any], list[Command]]]] = MappingProxyType(
    {
        Codeword: Round._received,  # into the sum, once
        Joined: Round._returned,  # it may still send what it owes, or finish what is lacking
        Loaded: Round._loaded_late,
        Lost: Round._lost_late,  # coded: what it owes is repaired; local: it is left out
        Failed: Round._failed_late,  # the same for what it cannot give
        Progress: Round._reported_late,  # coded: a repair may have waited for it
        Report: Round._reported_late,  # local: so many steps does its update have
        Tick: Round._upload_deadline,  # others stand in for the late; at the deadline nobody is waited for
        Stop: Round._stopped_late,
    }
)
UNMASKING: Final[Mapping[type, Callable[[Round, MaskedSum, Any], list[Command]]]] = MappingProxyType(
    {
        Signed: Round._signed,  # agreeing: enough of them, and shares are asked for
        Shares: Round._shared,  # unmasking: enough of them, and the masks are known
        Joined: Round._back,  # it is asked again for what it has not answered
        Loaded: Round._passed_over,
        Lost: Round._away,  # its vector is in the sum; are enough left to unmask it?
        Failed: Round._failed_last,  # the same
        Progress: Round._passed_over,
        Report: Round._passed_over,
        Tick: Round._too_late,  # aborted
        Stop: Round._stopped_last,
    }
)
