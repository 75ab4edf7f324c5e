"""One round: events in, commands out. Everything that fedgc does in a round stands in TABLE, below.

A round goes from one common model to the next decision. Devices walk their chunks of data; every chunk is
held by several devices, so that what a slow or dead one has not finished, another has.

    WORKING      Devices train. Each finished chunk is a *copy*. As copies come in, the round tells
                 others to skip that chunk, or to take another next. Once every chunk has one copy, the
                 gate says whether this round is worth an exchange; if so, the round waits for `aim`
                 copies of every chunk: with b copies, each device need send only 1/b of a model.
    COLLECTING   The finished copies are fixed. A code says what each device mixes into one short
                 codeword so that a weighted sum of codewords is the sum over all chunks. A codeword
                 that is lost is made good by other holders of the same chunks.
    CLOSED       synced       the sum over all chunks is exact
                 approximate  some chunks are missing; which, and how much it matters, is said
                 skipped      not worth an exchange: devices carry on from where they are
                 empty        nobody finished anything
                 stopped      somebody asked for it

A round does no I/O, reads no clock and holds no vector: the driver (fedgc/flower, fedgc/sim) tells it what
happened and carries out what it says. What must always hold: every (column, chunk) term enters the sum
exactly once; a copy on a lost device stops counting unless the device comes back with it; a loss after
`Add` changes nothing; whatever does not belong here is refused with a reason and counted; it always ends.

May import: collect, ledger, tally, plan, codes, gate, messages, history.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
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
    estimate_correlation,
    orders_for_round,
    worth_waiting,
)
from fedgc.collect import CodedSum
from fedgc.gate import Decision, Reports
from fedgc.gate import Report as GateReport
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
from fedgc.tally import Copy, Tally

COPIES_AGREE: Final = 1e-2  # largest relative distance between the sketches of two copies of one chunk


class State(Enum):
    """Where a round stands."""

    WORKING = "working"
    COLLECTING = "collecting"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Assignment:
    """What makes this round this round."""

    number: int
    version: int
    target: int
    seed: int
    carried: frozenset[str] = frozenset()  # devices that go on from a skipped round

    def next_seed(self) -> int:
        """Return the seed by which this round shifts the order of work."""
        return self.seed + self.number


class Round:
    """The machine. `start` once, then `handle` every event; `next_tick` says when to send a `Tick`."""

    def __init__(self, plan: Plan, assignment: Assignment, decide: Callable[[Reports], Decision]) -> None:
        self.plan = plan
        self.assignment = assignment
        self.state = State.WORKING
        self.outcome: Outcome | None = None
        self.reason = ""
        self.tally = Tally.empty(len(plan.devices))
        self.solution: Solution | None = None
        self.error: float | None = None
        self.short: tuple[int, ...] = ()
        self.working_s = 0.0
        self.closed_at = 0.0
        self.started_at = 0.0
        self.next_tick = 0.0
        self.copies: dict[int, Copy] = {}
        self._decide = decide
        self._sync = False
        self._ledger = Ledger(plan.placement.holds, plan.most_blocks if plan.blocks_fixed else 1)
        self._worker = {device: w for w, device in enumerate(plan.devices)}
        self._chunk = {chunk.number: c for c, chunk in enumerate(plan.chunks)}
        self._orders = orders_for_round(plan.placement, assignment.next_seed())
        self._working_limit_s = plan.deadline_s * max(1.0, assignment.target / plan.steps)
        self._sum: CodedSum | None = None
        self._last_tick = math.inf
        self._finished: set[tuple[int, int]] = set()

    # ---- in and out

    def start(self, now: float, present: Sequence[Joined]) -> tuple[Command, ...]:
        """Give work to everybody who is there."""
        self.started_at = now
        self.next_tick = now + self._working_limit_s
        given = self._join(present, self.assignment.carried)
        return (*given, *self._take_stock(now))

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Return what follows from this event; what does not belong here is refused."""
        if self.state is State.CLOSED:
            return tuple(self._refuse(event, f"round {self.assignment.number} is closed"))
        if isinstance(event, Tick) and event.now < self.next_tick:
            return ()
        reaction = TABLE.get((self.state, type(event)))
        if reaction is None:
            return tuple(
                self._refuse(event, f"{type(event).__name__} is not expected while {self.state.value}")
            )
        return tuple(reaction(self, event))

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return (chunks with a copy, chunks, copies aimed for): what a person watches."""
        covered = sum(1 for copies in self._ledger.copies if copies)
        return covered, len(self.plan.chunks), self._ledger.aim

    # ---- reactions: who is there

    def _join(self, present: Sequence[Joined], carried: Collection[str] = ()) -> list[Command]:
        """Give work to these devices; one that is not in this plan waits for the next."""
        planned = {self._worker[event.device]: event for event in present if event.device in self._worker}
        self._ledger.joined({worker: event.live for worker, event in planned.items()})
        given: list[Command] = []
        for worker, event in planned.items():
            order = self._ledger.queue(worker, self._orders[worker], self._kept(event))
            given.append(self._work(worker, order, carry=event.device in carried))
        return given

    def _rejoin(self, event: Joined) -> list[Command]:
        return [*self._join([event]), *self._go_on(event.now)]

    def _rejoin_late(self, event: Joined) -> list[Command]:
        """While collecting, a returning device may still send what it owes, or finish what is missing."""
        worker = self._worker.get(event.device)
        if worker is None or self._sum is None:
            return []
        given = self._join([event])
        kept_c = np.isin(np.arange(len(self.plan.chunks)), self._kept(event))
        again = self._sum.again(worker, kept_c)
        return [*given, *again, *self._mend(event.now)]

    def _lose(self, event: Lost) -> list[Command]:
        worker = self._worker.get(event.device)
        if worker is None or not self._ledger.live_w[worker]:
            return []
        self._ledger.lost(worker)
        self.tally.failure[worker] = "lost"
        if self._sum is not None:
            self._sum.lost(worker)
        return self._go_on(event.now)

    def _go_on(self, now: float) -> list[Command]:
        """There is less than there was: hand out what is open, or mend the sum."""
        if self.state is State.COLLECTING:
            return self._mend(now)
        return [*self._hand_out(), *self._take_stock(now)]

    def _fail(self, event: Failed) -> list[Command]:
        worker = self._worker.get(event.device)
        if worker is None or event.round != self.assignment.number:
            return self._refuse(event, f"a failure outside round {self.assignment.number}")
        chunks = [self._chunk[number] for number in event.chunks if number in self._chunk]
        if event.chunks and not chunks:
            return self._refuse(event, f"chunks {event.chunks} are not in round {self.assignment.number}")
        self.tally.failure[worker] = event.reason
        self._ledger.failed(worker, chunks or range(len(self.plan.chunks)))
        if self._sum is not None:
            self._sum.again(worker, self._ledger.able_wc[worker])
        return self._go_on(event.now)

    # ---- reactions: work

    def _count(self, event: Progress) -> list[Command]:
        refusal = self._refusal(event)
        if refusal:
            return self._refuse(event, refusal)
        worker, chunk = self._worker[event.device], self._chunk[event.chunk]
        if self._ledger.done_wc[worker, chunk]:
            return []  # told again: a `Take` crossed the report on its way
        differs = self._disagreement(event)
        if differs:
            self._ledger.failed(worker, [chunk])
            return [*self._refuse(event, differs), *self._go_on(event.now)]
        self._book(worker, chunk, event)
        if self.state is State.COLLECTING:
            return self._mend(event.now)
        commands: list[Command] = []
        for other, instead in self._ledger.skips(chunk):
            commands += self._steer(other, instead)
            commands.append(Skip(self.plan.devices[other], self.assignment.number, event.chunk))
            self.tally.skips += 1
        commands += self._steer(worker, self._ledger.steer(worker))
        return [*commands, *self._take_stock(event.now)]

    def _refusal(self, event: Progress) -> str:
        """Return why this progress does not count, or nothing."""
        worker, chunk = self._worker.get(event.device), self._chunk.get(event.chunk)
        if worker is None or not self._ledger.live_w[worker]:
            return f"device {event.device} is not in round {self.assignment.number}"
        if event.round != self.assignment.number:
            return f"progress of round {event.round}, this is round {self.assignment.number}"
        if chunk is None or not self._ledger.able_wc[worker, chunk]:
            return f"chunk {event.chunk} is not this device's"
        if event.reached != self.assignment.target:
            return f"chunk {event.chunk} reached {event.reached} steps, needed {self.assignment.target}"
        return ""

    def _disagreement(self, event: Progress) -> str:
        """Compare with the first copy; the copies of one chunk are the same vector up to rounding."""
        first = self.copies.get(event.chunk)
        if first is None or not first.sketch or not event.sketch:
            return ""
        distance, size = math.dist(first.sketch, event.sketch), math.hypot(*first.sketch)
        if distance <= COPIES_AGREE * size:
            return ""
        return f"chunk {event.chunk} differs from the first copy by {distance:.3g} of {size:.3g}"

    def _book(self, worker: int, chunk: int, event: Progress) -> None:
        self._ledger.finished(worker, chunk)
        self.copies.setdefault(event.chunk, Copy(event.reached, event.squared_norm, event.loss, event.sketch))
        if (worker, chunk) in self._finished:
            return  # told again after a return: no new work
        self._finished.add((worker, chunk))
        self.tally.finished[worker] += 1
        self.tally.busy_s[worker] += event.seconds
        self.tally.step_s[worker].append(event.seconds / event.reached)

    def _take_stock(self, now: float) -> list[Command]:
        """Ask the gate at one copy of everything; collect at `aim` copies, once waiting does not pay."""
        commands: list[Command] = []
        if not self._ledger.reachable:
            return self._close("empty", now)
        if not self._sync and self._ledger.covered_once:
            skipped = self._ask_gate(now)
            if skipped:
                return skipped
        while self._sync and self._ledger.covered:
            if not self._waiting_pays():
                return [*commands, *self._collect(now)]
            self._ledger.raise_aim(self._ledger.aim + 1)
            commands += self._hand_out()
        return commands

    def _ask_gate(self, now: float) -> list[Command]:
        """Fix whether this round is exchanged; return the end of the round where it is not."""
        decision = self._decide(self._reports())
        self.reason = decision.reason
        self._sync = decision.sync
        return [] if decision.sync else self._close("skipped", now)

    def _reports(self) -> Reports:
        samples = {chunk.number: chunk.samples for chunk in self.plan.chunks}
        items = (
            GateReport(number, copy.steps, samples[number], copy.squared_norm, copy.loss)
            for number, copy in sorted(self.copies.items())
        )
        return Reports(tuple(items))

    def _waiting_pays(self) -> bool:
        """Whether one more copy of each chunk saves more upload time than it costs to wait for."""
        ledger, plan = self._ledger, self.plan
        if plan.blocks_fixed or ledger.aim >= min(plan.most_blocks, ledger.most_copies()):
            return False
        chunk_s = [self.assignment.target * seconds for seconds in plan.step_s]
        return worth_waiting(ledger.aim, ledger.wait_s(ledger.aim + 1, chunk_s), max(plan.upload_s))

    def _out_of_time(self, event: Tick) -> list[Command]:
        """At the deadline the round goes on with what there is."""
        if not self._ledger.counting_wc.any():
            return self._close("empty", event.now)
        skipped = [] if self._sync else self._ask_gate(event.now)
        return skipped or self._collect(event.now)

    # ---- reactions: the exchange

    def _collect(self, now: float) -> list[Command]:
        done_wc = self._ledger.counting_wc
        self.working_s = now - self.started_at
        self.state = State.COLLECTING
        self.next_tick = now + self.plan.upload_deadline_s
        self._last_tick = now + (1 + len(self.plan.devices)) * self.plan.upload_deadline_s
        self.solution = self._solved(done_wc)
        self.tally.pruned = int(done_wc.any(axis=1).sum()) - len(self.solution.needed)
        self._sum = CodedSum(self.plan, self.solution, self.assignment.number)
        return list(self._sum.needed())

    def _solved(self, done_wc: NDArray[np.bool_]) -> Solution:
        """Solve at as many blocks as the copies allow and the numbers on the wire bear, for few uploads."""
        limit = amplification_limit(self.plan.error_limit, EPSILON[Wire.FLOAT32])
        for blocks in range(self._ledger.blocks, 0, -1):
            code = FrameCode(self.plan.placement, blocks)
            kept_wc = code.prune(done_wc, cost=self.plan.upload_s, limit=limit)
            solution = code.solve(kept_wc, correlation=self._likeness())
            if solution.amplification <= limit:
                break
        return solution

    def _likeness(self) -> float | None:
        """Estimate how alike chunk updates are: how far full chunks may stand in for short ones."""
        samples = {chunk.number: chunk.samples for chunk in self.plan.chunks}
        seen = {number: copy.sketch for number, copy in self.copies.items() if copy.sketch}
        if len(seen) < 2:
            return None
        return estimate_correlation([[samples[number] * each for each in seen[number]] for number in seen])

    def _receive(self, event: Codeword) -> list[Command]:
        worker = self._worker.get(event.device)
        if worker is None or self._sum is None or event.round != self.assignment.number:
            return self._refuse(event, f"a codeword outside round {self.assignment.number}")
        answer = self._sum.accept(worker, event.attempt)
        if isinstance(answer, str):
            return self._refuse(event, answer)
        return [answer, *self._finish(event.now)]

    def _too_slow(self, event: Tick) -> list[Command]:
        """At the upload deadline, whoever still owes a codeword is not waited for any longer."""
        if self._sum is None:
            return []
        late = self._sum.owing
        if not late:
            self._sum.give_up()
            return self._finish(event.now)
        self.next_tick = event.now + self.plan.upload_deadline_s
        for worker in late:
            self.tally.failure[worker] = "upload too slow"
            self._ledger.failed(worker, range(len(self.plan.chunks)))
            self._sum.lost(worker)
        return self._mend(event.now)

    def _mend(self, now: float) -> list[Command]:
        """Ask for repairs of what is open: from who has finished it, else from who can still finish it."""
        if self._sum is None:
            return []
        ledger = self._ledger
        repairs, unfinished = self._sum.mend(ledger.counting_wc, ledger.askable_wc, ledger.coming())
        self.tally.repairs += len(repairs)
        if repairs or unfinished:  # who is asked late gets as long as the others, but the round must end
            self.next_tick = max(self.next_tick, min(now + self.plan.upload_deadline_s, self._last_tick))
        return [*repairs, *(self._take(*each) for each in unfinished), *self._finish(now)]

    def _finish(self, now: float) -> list[Command]:
        """Close once nothing is awaited any more."""
        if self._sum is None or self.solution is None or not self._sum.complete:
            return []
        if not self._sum.added:
            return self._close("empty", now)
        missing = {chunk for _, chunk in self._sum.missing} | set(self.solution.short)
        self.short = tuple(self.plan.chunks[c].number for c in sorted(missing))
        if not self.short:
            return self._close("synced", now)
        self.error = math.hypot(self.solution.error or 0.0, self._sum.missing_error())
        return self._close("approximate", now)

    # ---- reactions: the end

    def _stop(self, event: Stop) -> list[Command]:
        self.reason = event.reason
        return self._close("stopped", event.now)

    def _close(self, outcome: Outcome, now: float) -> list[Command]:
        """Let everybody go; what was kept may go as well unless the work is carried on."""
        if self.state is State.WORKING:
            self.working_s = now - self.started_at
        self.state, self.outcome, self.closed_at = State.CLOSED, outcome, now
        copies = {(w, c) for w, part in (self._sum.added if self._sum else ()) for c in part.terms.chunks}
        for worker, _ in copies:
            self.tally.counted[worker] += 1
        frees = outcome not in ("skipped", "empty")
        live = (w for w in range(len(self.plan.devices)) if self._ledger.live_w[w])
        return [Close(self.plan.devices[w], self.assignment.number, outcome, frees) for w in live]

    # ---- small print

    def _kept(self, event: Joined) -> list[int]:
        """Return the chunks that a device has finished before, as far as they belong to this round."""
        here = (self.assignment.version, self.assignment.target)
        known = (each for each in event.kept if each.chunk in self._chunk)
        return [self._chunk[each.chunk] for each in known if (each.version, each.reached) == here]

    def _work(self, worker: int, order: Sequence[int], *, carry: bool) -> Work | Continue:
        device, chunks = self.plan.devices[worker], self.plan.chunks
        numbers = tuple(chunks[c].number for c in order)
        this = self.assignment
        if carry:
            return Continue(device, this.number, this.target, numbers, self._working_limit_s)
        names = tuple((chunks[c].number, chunks[c].name) for c in sorted(self._orders[worker]))
        return Work(
            device, this.number, this.version, this.target, numbers, names, this.seed, self._working_limit_s
        )

    def _take(self, worker: int, chunk: int) -> Take:
        self.tally.takes += 1
        return Take(self.plan.devices[worker], self.assignment.number, self.plan.chunks[chunk].number)

    def _steer(self, worker: int, chunk: int | None) -> list[Command]:
        return [] if chunk is None else [self._take(worker, chunk)]

    def _hand_out(self) -> list[Command]:
        return [self._take(worker, chunk) for worker, chunk in self._ledger.hand_out()]

    def _refuse(self, event: Event, reason: str) -> list[Command]:
        """Count what does not belong here and tell the sender, where there is one."""
        device = getattr(event, "device", None)
        worker = self._worker.get(device) if device else None
        if worker is not None:
            self.tally.refused[worker] += 1
        return [Refuse(device, self.assignment.number, reason)] if device else []


Reaction = Callable[[Round, Any], list[Command]]
TABLE: Final[Mapping[tuple[State, type], Reaction]] = MappingProxyType(
    {
        # A device is there, is gone, or cannot do something
        (State.WORKING, Joined): Round._rejoin,
        (State.WORKING, Lost): Round._lose,
        (State.WORKING, Failed): Round._fail,
        (State.COLLECTING, Joined): Round._rejoin_late,
        (State.COLLECTING, Lost): Round._lose,
        (State.COLLECTING, Failed): Round._fail,
        # A chunk is finished: a copy while working, the stuff of repairs while collecting
        (State.WORKING, Progress): Round._count,
        (State.COLLECTING, Progress): Round._count,
        # A codeword is there
        (State.COLLECTING, Codeword): Round._receive,
        # Time is up
        (State.WORKING, Tick): Round._out_of_time,
        (State.COLLECTING, Tick): Round._too_slow,
        # Somebody wants to stop
        (State.WORKING, Stop): Round._stop,
        (State.COLLECTING, Stop): Round._stop,
    }
)
