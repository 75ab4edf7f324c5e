"""One round: events in, commands out. Two tables at the end of this file say what reacts to what.

A round goes from one common model to the next decision. The data is cut in chunks; every chunk is held by
several devices, so that what a slow or dead one has not finished, another has.

    WORKING      Devices train, chunk by chunk, to `target` steps. A finished chunk is a *copy*. As copies
                 come in, the round tells others to skip that chunk, or which to take next. Once every chunk
                 that can be had has one copy, the gate says whether the round is worth an exchange. If it
                 is, the round waits for `aim` copies of every chunk.
    COLLECTING   What is finished is fixed, and with it the number of blocks b: at least b copies of every
                 chunk let each device send 1/b of a model. Each mixes its finished chunks into one such
                 *codeword*, so that a weighted sum of codewords is the sum over all chunks. A codeword that
                 is lost is made good by other holders of the same chunks.
                 Where no device can be steered (all hear nothing between their messages), who finishes what
                 is foreseen, and the coefficients go out with the work: a device that has finished all that
                 they mix sends its codeword with its report. If the finished sets come out as foreseen
                 it is added, and nobody need be asked; else it is forgotten, and all goes as ever.
    CLOSED       synced       the sum over all chunks is exact, up to rounding
                 approximate  some chunks are missing; which, and how much it matters, is said
                 skipped      not worth an exchange: devices carry on from where they are
                 empty        nothing of what was finished could be had
                 stopped      somebody asked for it

Exact, because with R_j the column of device j in the code, and U_jc what it mixes chunk c in with,

    sum over devices j, chunks c of  R_j (U_jc . update_c)  =  sum over chunks c of  update_c.

Device j's codeword is the inner sum over its chunks; each (j, c) is a *term*. A repair is a part of j's
column that somebody else sends (attempt 1 and up; attempt 0 is a device's own codeword). What must always
hold: no term enters the sum twice, and in a synced round each has entered once; a copy on a lost device
counts no more until the device is back and tells it again; a loss after `Add` changes nothing; what does
not belong here is refused with a reason, and counted where it is a device of this plan; it always ends.

Two devices, chunks 0 and 1 on both, blocks = 2:

    start                     Work(a, order 0 1)  Work(b, order 1 0)
    Progress(a, 0)            -                         one copy of chunk 0
    Progress(b, 1)            -                         the gate is asked: exchange
    Progress(a, 1)            Skip is not sent: 2 copies of chunk 1, and b has done its own
    Progress(b, 0)            Reveal(a)  Reveal(b)      2 copies of each: codewords of half a model
    Codeword(a)               Add(a)
    Lost(b)                   Repair(a, column b)       a sends b's half as well
    Codeword(a, attempt 1)    Add(a)  Close(a, synced)

A round does no I/O, reads no clock and holds no vector: `run` begins it and hands it events, and the driver
carries out what it says. Which worker leaves or takes which chunk is kept by `ledger`, which copies are the
same by `copies`, which term is where by `collect`; when is said here.

May import: collect, copies, ledger, tally, plan, codes, gate, messages.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedgc.codes import (
    EPSILON,
    FrameCode,
    Solution,
    Wire,
    amplification_limit,
    carry_on,
    orders_for_round,
    shapes,
    worth_waiting,
)
from fedgc.collect import CodedSum
from fedgc.copies import Copies, Copy, Verdict
from fedgc.gate import Decision, Reports
from fedgc.ledger import Ledger
from fedgc.messages import (
    Close,
    Codeword,
    Command,
    Continue,
    Event,
    Failed,
    Joined,
    Lost,
    Outcome,
    Progress,
    Refuse,
    Skip,
    Stop,
    Take,
    Tick,
    Work,
)
from fedgc.plan import Plan
from fedgc.tally import Tally

NAMED: Final = 8  # chunks that a refusal names, however many were sent


class State(Enum):
    """Where a round stands."""

    WORKING = "working"
    COLLECTING = "collecting"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Assignment:
    """What makes this round this round; `target` counts all steps since the last sync."""

    number: int
    version: int
    target: int
    seed: int
    carried: frozenset[str] = frozenset()  # devices that go on from a skipped round
    rounds_left: int | None = None
    weights: tuple[float, ...] = ()  # of each chunk of the plan, should the round be cut short
    ahead: bool = True  # coefficients may be sent before anybody has finished anything
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of who carries on where it stopped

    @property
    def order_seed(self) -> int:
        """By how much this round shifts the order of work."""
        return self.seed + self.number


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What collecting would be, should the finished sets turn out as they are expected to."""

    solution: Solution
    sum: CodedSum

    def holds(self, done_wc: NDArray[np.bool_], blocks: int) -> bool:
        """Whether all that it mixes is finished, and no more blocks can be had."""
        return self.solution.blocks == blocks and all(
            done_wc[worker, list(self.solution.coefficients(worker).chunks)].all()
            for worker in self.solution.needed
        )


@dataclass(frozen=True, slots=True)
class Exchange:
    """What is fixed once collecting begins; `until` bounds all extensions of the upload deadline."""

    solution: Solution
    sum: CodedSum
    until: float


class Round:
    """The machine. `start` once, then `handle` every event; `next_tick` says when to send a `Tick`."""

    def __init__(self, plan: Plan, assignment: Assignment, decide: Callable[[Reports], Decision]) -> None:
        self.plan = plan
        self.assignment = assignment
        self.copies = Copies()
        self.tally = Tally.empty(len(plan.devices))
        self.outcome: Outcome | None = None
        self.reason = ""
        self.short: tuple[int, ...] = ()  # numbers of the chunks that the sum lacks
        self.error: float | None = None  # of an approximate sum, relative to its size, as far as can be told
        self.started_at = self.closed_at = self.working_s = 0.0
        self.next_tick = 0.0
        self._decide = decide
        self._worth_it = False  # the gate has said so
        self._exchange: Exchange | None = None
        self._foreseen: Foreseen | None = None
        self._came_ahead: set[int] = set()  # workers whose foreseen codeword lies with the driver
        self._ledger = Ledger(plan.placement.holds, plan.most_blocks if plan.blocks_fixed else 1)
        self._worker = {device: w for w, device in enumerate(plan.devices)}
        self._chunk = {chunk.number: c for c, chunk in enumerate(plan.chunks)}
        self._samples = {chunk.number: chunk.samples for chunk in plan.chunks}
        self._alone_c = plan.alone_c
        self._orders = self._with_those_who_carry_on(orders_for_round(plan.placement, assignment.order_seed))
        self._working_limit_s = plan.deadline_s * max(1.0, assignment.target / plan.steps)
        self._told: set[tuple[int, int]] = set()  # copies that the tally knows, also of devices lost since

    # ---- in and out

    def start(self, now: float, present: Sequence[Joined]) -> tuple[Command, ...]:
        """Give work to everybody who is there."""
        self.started_at = now
        self.next_tick = now + self._working_limit_s
        given = self._with_coefficients(self._give_work(present, self.assignment.carried))
        return (*given, *self._enough_yet(now))

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Return what follows from this event; what does not belong here is refused."""
        if self.outcome is not None:
            return tuple(self._refuse(event, f"round {self.assignment.number} is closed"))
        if isinstance(event, Tick) and event.now < self.next_tick:
            return ()
        kind = type(event)
        if self._exchange is None and kind in WORKING:
            return tuple(WORKING[kind](self, event))
        if self._exchange is not None and kind in COLLECTING:
            return tuple(COLLECTING[kind](self, self._exchange, event))
        return tuple(self._refuse(event, f"{kind.__name__} is not expected while {self.state.value}"))

    @property
    def state(self) -> State:
        """Where the round stands."""
        if self.outcome is not None:
            return State.CLOSED
        return State.WORKING if self._exchange is None else State.COLLECTING

    @property
    def solution(self) -> Solution | None:
        """What was solved, once collecting has begun."""
        return self._exchange.solution if self._exchange else None

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return (chunks with a copy, chunks, copies aimed for): what a person watches."""
        covered = sum(1 for copies in self._ledger.copies if copies)
        return covered, len(self.plan.chunks), self._ledger.aim

    @property
    def next_orders(self) -> Mapping[str, tuple[int, ...]]:
        """How devices that are alone with a chunk go on in the next round: from where they stopped."""
        found = {}
        for worker in np.flatnonzero(self.plan.placement.holds[:, self._alone_c].any(axis=1)).tolist():
            order = self._orders[worker]
            left = [at for at, c in enumerate(order) if not self._ledger.done_wc[worker, c]]
            turned = carry_on(order, left[0] if left else 0)
            found[self.plan.devices[worker]] = tuple(self.plan.chunks[c].number for c in turned)
        return found

    def _with_those_who_carry_on(self, orders: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        found = []
        for device, order in zip(self.plan.devices, orders, strict=True):
            asked = self.assignment.orders.get(device, ())
            same = sorted(asked) == sorted(self.plan.chunks[c].number for c in order)
            found.append(tuple(self._chunk[number] for number in asked) if same else tuple(order))
        return tuple(found)

    # ---- working

    def _joined(self, event: Joined) -> list[Command]:
        self._strike_what_is_gone(event)
        return [*self._give_work([event]), *self._hand_out(), *self._enough_yet(event.now)]

    def _lost(self, event: Lost) -> list[Command]:
        if not self._off_the_books(event):
            return []
        return [*self._hand_out(), *self._enough_yet(event.now)]

    def _failed(self, event: Failed) -> list[Command]:
        why_not = self._strike(event)
        if why_not:
            return self._refuse(event, why_not)
        return [*self._hand_out(), *self._enough_yet(event.now)]

    def _finished(self, event: Progress) -> list[Command]:
        """One more copy: others may leave that chunk, and its finisher may be steered."""
        why_not = self._why_not(event)
        if why_not:
            return self._refuse(event, why_not)
        worker, chunk = self._worker[event.device], self._chunk[event.chunk]
        if self._ledger.done_wc[worker, chunk]:
            return []  # a finished chunk is told again when asked for, and that may have crossed the report
        verdict = self.copies.hear(event.chunk, worker, _copy(event))
        if not verdict.agrees:
            return [*self._leave_out(event, verdict), *self._hand_out(), *self._enough_yet(event.now)]
        commands = self._turn(verdict, event.chunk)
        self._book(worker, chunk, event)
        for other, instead in self._ledger.skips(chunk):  # first what to take, then what to leave for it
            commands += self._steer(other, instead)
            commands.append(Skip(self.plan.devices[other], self.assignment.number, event.chunk))
            self.tally.skips += 1
        return [*commands, *self._redirect(worker), *self._enough_yet(event.now)]

    def _ahead_of_time(self, event: Codeword) -> list[Command]:
        """Keep in mind who has sent what nobody has asked for yet, but for the coefficients with the work."""
        worker = self._worker.get(event.device)
        if not event.ahead:
            return self._refuse(event, "Codeword is not expected while working")
        if worker is not None and event.round == self.assignment.number and self._ledger.live_w[worker]:
            self._came_ahead.add(worker)
        return []

    def _enough_yet(self, now: float) -> list[Command]:
        """Ask the gate at one copy of everything; collect at `aim` copies, once waiting does not pay."""
        if not self._ledger.reachable:
            return self._close("empty", now)
        if not self._worth_it and self._ledger.covered_once and not self._pass_gate():
            return self._close("skipped", now)
        commands: list[Command] = []
        while self._worth_it and self._ledger.covered:
            if not self._waiting_pays():
                return [*commands, *self._collect(now)]
            self._ledger.raise_aim(self._ledger.aim + 1)
            commands += self._hand_out()
        return commands

    def _pass_gate(self) -> bool:
        decision = self._decide(self.copies.reports(self._samples, self.assignment.rounds_left))
        self.reason = decision.reason
        self._worth_it = decision.sync
        return decision.sync

    def _waiting_pays(self) -> bool:
        """Whether one more copy of each chunk saves more upload time than it costs to wait for."""
        ledger, plan = self._ledger, self.plan
        if plan.blocks_fixed or ledger.aim >= min(plan.most_blocks, ledger.most_copies()):
            return False
        chunk_s = [self.assignment.target * seconds for seconds in plan.step_s]
        return worth_waiting(ledger.aim, ledger.wait_s(ledger.aim + 1, chunk_s), max(plan.upload_s))

    def _work_deadline(self, event: Tick) -> list[Command]:
        """At the deadline the round goes on with what there is."""
        if not self._ledger.counting_wc.any():
            return self._close("empty", event.now)
        if not self._worth_it and not self._pass_gate():
            return self._close("skipped", event.now)
        return self._collect(event.now)

    def _collect(self, now: float) -> list[Command]:
        """Fix what is finished, and ask for the codewords that are needed."""
        done_wc = self._ledger.counting_wc
        solution, collected, came = self._as_foreseen_or_solved(done_wc)
        limit_s = self.plan.upload_deadline_s
        self._exchange = Exchange(solution, collected, now + (1 + len(self.plan.devices)) * limit_s)
        self.working_s = now - self.started_at
        self.next_tick = now + limit_s
        self.tally.pruned = int(done_wc.any(axis=1).sum()) - len(solution.needed)
        added = [collected.accept(worker, 0) for worker in came]
        asked = [each for each in (*added, *collected.needed()) if not isinstance(each, str)]
        return [*asked, *self._close_if_complete(self._exchange, now)]

    def _as_foreseen_or_solved(
        self, done_wc: NDArray[np.bool_]
    ) -> tuple[Solution, CodedSum, tuple[int, ...]]:
        """Return what to collect, and who has sent it already."""
        blocks, foreseen = self._ledger.blocks, self._foreseen
        if foreseen and foreseen.holds(done_wc, blocks):
            return foreseen.solution, foreseen.sum, tuple(self._came_ahead & foreseen.solution.needed)
        solution, wire = self._solved(done_wc, blocks)
        return solution, CodedSum(self.plan, solution, self.assignment.number, wire), ()

    def _with_coefficients(self, given: list[Command]) -> list[Command]:
        """Foresee who will have finished what; where nobody can be steered, that is often so."""
        ledger = self._ledger
        if not self.assignment.ahead or not ledger.live_w.any() or (ledger.live_w & ledger.hears_w).any():
            return given
        ends_s = [seconds * len(ledger.remaining(w)) for w, seconds in enumerate(self.plan.step_s)]
        done_wc = ledger.foreseen(ends_s)
        blocks = min(ledger.aim, int(done_wc.sum(axis=0).min()))
        if blocks == 0:
            return given
        solution, wire = self._solved(done_wc, blocks)
        self._foreseen = Foreseen(solution, CodedSum(self.plan, solution, self.assignment.number, wire))
        told = {each.device: each for each in self._foreseen.sum.needed()}
        return [
            replace(each, coefficients=told[each.device].mix, wire=told[each.device].wire)
            if isinstance(each, Work) and each.device in told
            else each
            for each in given
        ]

    def _solved(self, done_wc: NDArray[np.bool_], most_blocks: int) -> tuple[Solution, Wire]:
        """Solve for the shortest codewords that the copies allow and the error limit bears, few of them."""
        likeness = self.copies.likeness(self._samples)
        for wire, blocks in shapes(most_blocks, short=self.plan.short_numbers):
            code = FrameCode(self.plan.placement, blocks)
            limit = amplification_limit(self.plan.error_limit, EPSILON[wire])
            solution = code.solve(
                code.prune(done_wc, cost=self.plan.upload_s, limit=limit),
                correlation=likeness,
                weights=self._weights(done_wc),
            )
            if solution.amplification <= limit:
                break
        return solution, wire

    def _weights(self, done_wc: NDArray[np.bool_]) -> tuple[float, ...] | None:
        """Return what chunks count where one is short that a single device has: nobody can stand in."""
        short = bool((self._alone_c & ~done_wc.any(axis=0)).any())
        return self.assignment.weights or None if short else None

    # ---- collecting

    def _received(self, exchange: Exchange, event: Codeword) -> list[Command]:
        worker = self._worker.get(event.device)
        if event.ahead:
            return []  # it came too late to be foreseen: the device is asked, if need be
        if worker is None or event.round != self.assignment.number:
            return self._refuse(event, f"a codeword outside round {self.assignment.number}")
        answer = exchange.sum.accept(worker, event.attempt)
        if isinstance(answer, str):
            return self._refuse(event, answer)
        return [answer, *self._close_if_complete(exchange, event.now)]

    def _returned(self, exchange: Exchange, event: Joined) -> list[Command]:
        """A returning device may still send what it owes, or finish what is missing."""
        worker = self._worker.get(event.device)
        if worker is None:
            return []
        self._strike_what_is_gone(event)
        given = self._give_work([event])
        kept_c = np.isin(np.arange(len(self.plan.chunks)), self._kept(event))
        again = exchange.sum.ask_again(worker, kept_c)
        if again:
            self._extend(exchange, event.now)
        return [*given, *again, *self._mend(exchange, event.now)]

    def _lost_late(self, exchange: Exchange, event: Lost) -> list[Command]:
        if not self._off_the_books(event):
            return []
        exchange.sum.lost(self._worker[event.device])
        return self._mend(exchange, event.now)

    def _failed_late(self, exchange: Exchange, event: Failed) -> list[Command]:
        why_not = self._strike(event)
        if why_not:
            return self._refuse(event, why_not)
        return self._without(exchange, self._worker[event.device], event.now)

    def _finished_late(self, exchange: Exchange, event: Progress) -> list[Command]:
        """What is fixed stays fixed, but a repair may have waited for this copy."""
        why_not = self._why_not(event)
        if why_not:
            return self._refuse(event, why_not)
        worker, chunk = self._worker[event.device], self._chunk[event.chunk]
        if self._ledger.done_wc[worker, chunk]:
            return []
        verdict = self.copies.judge(event.chunk, _copy(event))
        if not verdict.agrees:
            return [*self._leave_out(event, verdict), *self._without(exchange, worker, event.now)]
        self._book(worker, chunk, event)
        return self._mend(exchange, event.now)

    def _without(self, exchange: Exchange, worker: int, now: float) -> list[Command]:
        """Open what this worker owes and cannot send any more; it has the requests for the rest."""
        exchange.sum.ask_again(worker, self._ledger.able_wc[worker])
        return self._mend(exchange, now)

    def _upload_deadline(self, exchange: Exchange, event: Tick) -> list[Command]:
        """Whoever still owes a codeword is not waited for any longer; at the very end nobody is."""
        late = exchange.sum.owing
        for worker in late:
            self.tally.failure[worker] = "upload too slow"
            self._ledger.failed(worker, range(len(self.plan.chunks)))
            exchange.sum.lost(worker)
        if not late or event.now >= exchange.until:  # only open terms are left, or no time is
            exchange.sum.give_up()
        self.next_tick = min(event.now + self.plan.upload_deadline_s, exchange.until)
        return self._mend(exchange, event.now)

    def _mend(self, exchange: Exchange, now: float) -> list[Command]:
        """Ask for repairs of what is open: from who has finished it, else from who can still finish it."""
        ledger = self._ledger
        repairs, takes = exchange.sum.mend(ledger.counting_wc, ledger.askable_wc, ledger.coming())
        self.tally.repairs += len(repairs)
        if repairs or takes:
            self._extend(exchange, now)
        return [*repairs, *(self._take(*each) for each in takes), *self._close_if_complete(exchange, now)]

    def _extend(self, exchange: Exchange, now: float) -> None:
        """Who is asked late gets as long as the others had, but the round must end."""
        self.next_tick = max(self.next_tick, min(now + self.plan.upload_deadline_s, exchange.until))

    def _close_if_complete(self, exchange: Exchange, now: float) -> list[Command]:
        """Close once nothing is awaited any more."""
        if not exchange.sum.complete:
            return []
        if not exchange.sum.added:
            return self._close("empty", now)
        missing = {chunk for _, chunk in exchange.sum.missing} | set(exchange.solution.short)
        self.short = tuple(self.plan.chunks[c].number for c in sorted(missing))
        if not self.short:
            return self._close("synced", now)
        self.error = math.hypot(exchange.solution.error or 0.0, exchange.sum.missing_error())
        return self._close("approximate", now)

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
        else:
            added = self._exchange.sum.added
            for worker, _ in {(worker, c) for worker, part in added for c in part.terms.chunks}:
                self.tally.counted[worker] += 1
        self.outcome, self.closed_at = outcome, now
        frees = outcome not in ("skipped", "empty")
        live: list[int] = np.flatnonzero(self._ledger.live_w).tolist()
        return [Close(self.plan.devices[w], self.assignment.number, outcome, frees) for w in live]

    # ---- what both phases do to the books

    def _off_the_books(self, event: Lost) -> bool:
        worker = self._worker.get(event.device)
        if worker is None or not self._ledger.live_w[worker]:
            return False
        self._came_ahead.discard(worker)
        self._ledger.lost(worker)
        self.tally.failure[worker] = "lost"
        return True

    def _strike(self, event: Failed) -> str:
        """Take what a device cannot give off the books, all of it where it names nothing; return why not."""
        worker = self._worker.get(event.device)
        if worker is None or event.round != self.assignment.number:
            return f"a failure outside round {self.assignment.number}"
        chunks = [self._chunk[number] for number in event.chunks if number in self._chunk]
        if event.chunks and not chunks:
            return f"chunks {event.chunks[:NAMED]} are not in round {self.assignment.number}"
        if not self._ledger.failed(worker, chunks or range(len(self.plan.chunks))):
            return "it was said before"
        self.tally.failure[worker] = event.reason
        return ""

    def _strike_what_is_gone(self, event: Joined) -> None:
        """A device may come back and load less than it could when the plan was made."""
        worker = self._worker.get(event.device)
        if worker is not None:
            names = {held.name for held in event.holds}
            self._ledger.failed(worker, [c for c, chunk in self._held(worker) if chunk.name not in names])

    def _why_not(self, event: Progress) -> str:
        """Return why this copy does not count, or nothing."""
        worker, chunk = self._worker.get(event.device), self._chunk.get(event.chunk)
        if worker is None or not self._ledger.live_w[worker]:
            return f"device {event.device} is not in round {self.assignment.number}"
        if event.round != self.assignment.number:
            return f"progress of round {event.round}, this is round {self.assignment.number}"
        if chunk is None or not self._ledger.able_wc[worker, chunk]:
            return f"chunk {event.chunk} is not this device's"
        if event.reached != self.assignment.target:
            return f"chunk {event.chunk} reached {event.reached} steps, needed {self.assignment.target}"
        if event.samples != self._samples[event.chunk]:
            return f"chunk {event.chunk} has {event.samples} samples, needed {self._samples[event.chunk]}"
        return ""

    def _leave_out(self, event: Progress, verdict: Verdict) -> list[Command]:
        self._ledger.failed(self._worker[event.device], [self._chunk[event.chunk]])
        return self._refuse(
            event, f"chunk {event.chunk} differs from the first copy by {verdict.distance:.2%}"
        )

    def _turn(self, verdict: Verdict, number: int) -> list[Command]:
        """Strike the copies that the majority speaks against, and count those that it speaks for."""
        commands: list[Command] = []
        for worker in verdict.wrong:
            self._ledger.failed(worker, [self._chunk[number]])
            self.tally.refused[worker] += 1
            reason = f"chunk {number} differs from two later copies, which agree"
            commands.append(Refuse(self.plan.devices[worker], self.assignment.number, reason))
        for worker in verdict.right:
            self._ledger.restored(worker, self._chunk[number])
        return commands

    def _book(self, worker: int, chunk: int, event: Progress) -> None:
        self._ledger.finished(worker, chunk)
        if (worker, chunk) in self._told:
            return  # told again after a return: no new work
        self._told.add((worker, chunk))
        self.tally.finished[worker] += 1
        self.tally.busy_s[worker] += event.seconds
        self.tally.step_s[worker].append(event.seconds / event.reached)

    # ---- commands

    def _give_work(self, present: Sequence[Joined], carried: Collection[str] = ()) -> list[Command]:
        """Give these devices what is worth doing; one that is not in this plan waits for the next."""
        planned = {self._worker[event.device]: event for event in present if event.device in self._worker}
        self._ledger.joined({worker: event.live for worker, event in planned.items()})
        self._came_ahead -= planned.keys()
        given: list[Command] = []
        for worker, event in planned.items():
            order = self._ledger.queue(worker, self._orders[worker], self._kept(event))
            given.append(self._work(worker, order, carry=event.device in carried))
        return given

    def _kept(self, event: Joined) -> list[int]:
        """Return the chunks that a device has finished before, as far as they belong to this round."""
        here = (self.assignment.version, self.assignment.target)
        known = (each for each in event.kept if each.chunk in self._chunk)
        return [self._chunk[each.chunk] for each in known if (each.version, each.reached) == here]

    def _held(self, worker: int) -> list[tuple[int, Any]]:
        return [(c, self.plan.chunks[c]) for c in sorted(self._orders[worker])]

    def _work(self, worker: int, order: Sequence[int], *, carry: bool) -> Work | Continue:
        device, this = self.plan.devices[worker], self.assignment
        numbers = tuple(self.plan.chunks[c].number for c in order)
        limit_s = self._working_limit_s
        if carry:
            return Continue(device, this.number, this.target, numbers, limit_s)
        names = tuple((chunk.number, chunk.name) for _, chunk in self._held(worker))
        return Work(device, this.number, this.version, this.target, numbers, names, this.seed, limit_s)

    def _take(self, worker: int, chunk: int) -> Take:
        self.tally.takes += 1
        return Take(self.plan.devices[worker], self.assignment.number, self.plan.chunks[chunk].number)

    def _steer(self, worker: int, chunk: int | None) -> list[Command]:
        return [] if chunk is None else [self._take(worker, chunk)]

    def _redirect(self, worker: int) -> list[Command]:
        """Let a finisher leave what it has just begun for what nobody does, or else take the best next.

        It hears one command after the other, and may have begun the next chunk before it hears the last:
        so the better one is in front when it leaves the other, and again when it gets that back.
        """
        switched = self._ledger.switch(worker)
        if switched is None:
            return self._steer(worker, self._ledger.steer(worker))
        begun, instead = switched
        first = self._take(worker, instead)
        self.tally.skips += 1
        skip = Skip(first.device, first.round, self.plan.chunks[begun].number)
        return [first, skip, self._take(worker, begun), self._take(worker, instead)]

    def _hand_out(self) -> list[Command]:
        return [self._take(worker, chunk) for worker, chunk in self._ledger.hand_out()]

    def _refuse(self, event: Event, reason: str) -> list[Command]:
        """Tell the sender, where there is one, and count it against a device of this plan."""
        device = getattr(event, "device", None)
        if isinstance(event, Lost) or not device or (isinstance(event, Codeword) and event.ahead):
            return []
        worker = self._worker.get(device)
        if worker is not None:
            self.tally.refused[worker] += 1
        return [Refuse(device, self.assignment.number, reason)]


def _copy(event: Progress) -> Copy:
    return Copy(event.reached, event.squared_norm, event.loss, event.sketch)


WORKING: Final[Mapping[type, Callable[[Round, Any], list[Command]]]] = MappingProxyType(
    {
        Joined: Round._joined,  # a device is there: it is given what is worth doing
        Lost: Round._lost,  # it is gone: its copies count no more
        Failed: Round._failed,  # it lives, but cannot give these chunks
        Progress: Round._finished,  # a copy: skip, steer, ask the gate, collect
        Codeword: Round._ahead_of_time,  # foreseen: it is added if what was foreseen comes true
        Tick: Round._work_deadline,  # collect what there is
        Stop: Round._stopped,
    }
)
COLLECTING: Final[Mapping[type, Callable[[Round, Exchange, Any], list[Command]]]] = MappingProxyType(
    {
        Codeword: Round._received,  # into the sum, once
        Joined: Round._returned,  # it may still send what it owes
        Lost: Round._lost_late,  # what it owes is repaired
        Failed: Round._failed_late,  # the same for what it cannot give
        Progress: Round._finished_late,  # a repair may have waited for it
        Tick: Round._upload_deadline,  # what is owed is repaired, what is open given up
        Stop: Round._stopped_late,
    }
)
