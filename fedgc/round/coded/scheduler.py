"""Coded work: every chunk is trained by itself from the common model, and copies of it are counted.

A copy is a function of (model, chunk, seed) alone, so it does not matter whose is used. As copies come in,
others are told to skip that chunk, and its finisher which to take next. Once every chunk that can be had has
one copy, the gate may be asked; an exchange waits for `aim` copies of each. Then what is finished is fixed,
the code is solved, and each client that is needed sends one codeword (collect.CodedSum). Who stands in for
one that does not, or not in time, is for `repairs`.

Which client leaves or takes which chunk is kept by `tracker`, which copies are the same by `copies`.

May import: repairs, collect, effort, copies, early, tracker, plan, codes, gate, messages.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

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
)
from fedgc.gates import Reports
from fedgc.messages import (
    Command,
    Continue,
    Failed,
    Joined,
    Progress,
    Refuse,
    Report,
    Skip,
    Work,
)
from fedgc.round.coded.aggregator import CodedSum
from fedgc.round.coded.agreement import AGREES, ReplicaAgreement, Verdict
from fedgc.round.coded.repairs import RepairPlanner
from fedgc.round.coded.replicas import ReplicaTracker
from fedgc.round.scheduler import Roster

NOBODY: Final = -1  # stands for a client or a chunk that is not of this plan
NAMED: Final = 8  # chunks that a refusal names, however many were sent


class CodedScheduler:
    """The effort of coded work."""

    def __init__(self, roster: Roster) -> None:
        plan = roster.plan
        self.roster = roster
        self.replicas = ReplicaAgreement()
        self.sum: CodedSum | None = None
        self.solution: Solution | None = None
        self._tracker = ReplicaTracker(plan.placement.holders, _first_aim(roster))
        self._number = [chunk.number for chunk in plan.chunks]
        self._chunk = {number: c for c, number in enumerate(self._number)}
        self._samples = {chunk.number: chunk.samples for chunk in plan.chunks}
        self._by_number = {chunk.number: chunk for chunk in plan.chunks}
        self._alone_c = plan.alone_c
        orders = orders_for_round(plan.placement, roster.assignment.order_seed)
        self._orders = self._with_those_who_carry_on(orders)
        self._repairs: RepairPlanner | None = None  # once vectors are collected
        self.covered_s: list[float] = []  # when all chunks had 1, 2, ... copies
        self._made = [0] * len(plan.chunks)  # copies, those of the lost among them
        self._without = Counter({replicas: len(plan.chunks) for replicas in range(1, len(plan.clients) + 1)})
        self._told: list[set[int]] = [
            set() for _ in orders
        ]  # copies that the statistics knows, also of the lost

    def _with_those_who_carry_on(self, orders: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        plan, carried_on, found = self.roster.plan, self.roster.assignment.orders, []
        if not carried_on:
            return orders
        for client, order in zip(plan.clients, orders, strict=True):
            asked = carried_on.get(client, ())
            same = sorted(asked) == sorted(self._numbers(order))
            found.append(tuple(self._chunk[number] for number in asked) if same else tuple(order))
        return tuple(found)

    @property
    def next_orders(self) -> Mapping[str, tuple[int, ...]]:
        """How clients that are alone with a chunk go on in the next round: from where they stopped."""
        plan, found = self.roster.plan, {}
        for w in np.flatnonzero(plan.placement.holds[:, self._alone_c].any(axis=1)).tolist():
            order = self._orders[w]
            left = [at for at, c in enumerate(order) if not self._tracker.done_wc[w, c]]
            turned = carry_on(order, left[0] if left else 0)
            found[plan.clients[w]] = tuple(self._numbers(turned))
        return found

    # ---- who is there

    def begin(self, present: Sequence[Joined]) -> list[Command]:
        """Give work to everybody who is there at the start."""
        return self.give(present, self.roster.assignment.carried)

    def give(self, present: Sequence[Joined], carried: Collection[str] = ()) -> list[Command]:
        """Give these clients what is worth doing; one that is not in this plan waits for the next."""
        given: list[Command] = []
        for w, event in self._here_again(present).items():
            order = self._tracker.queue(w, self._orders[w], self._kept(event))
            given.append(self._work(w, order, carry=event.client in carried))
        return given

    def _here_again(self, present: Sequence[Joined]) -> dict[int, Joined]:
        """Put those of this plan on the books, with nothing to do yet; what they kept is heard once more."""
        planned = {self.roster.w[event.client]: event for event in present if self._planned(event)}
        self._tracker.joined({w: event.live for w, event in planned.items()})
        for w, event in planned.items():
            kept = self._numbers(self._kept(event))
            self._count_after_all(self.replicas.stands(w, kept, self._summed))
        return planned

    def _planned(self, event: Joined) -> bool:
        """Take off the books what a client cannot load any more: it may be back with less than it had."""
        w = self.roster.w.get(event.client)
        if w is None:
            return False
        holds, size = event.holds, len(event.holds)
        by_number = self._by_number
        unsure = [  # who can load all chunks lists each at its number: no need to look on
            by_number[number]
            for number, _ in self.roster.plan.names_w[w]
            if number >= size or not by_number[number].fits(holds[number])
        ]
        said = {held.name: held for held in holds} if unsure else {}
        gone = [each.number for each in unsure if each.name not in said or not each.fits(said[each.name])]
        self._tracker.failed(w, [self._chunk[number] for number in gone])
        return True

    def lost(self, w: int) -> bool:
        """Let the client's copies count no more."""
        if not self._tracker.live_w[w]:
            return False
        self._tracker.lost(w)
        if self._repairs is not None:
            self._repairs.stir()
        self._count_after_all(self.replicas.stands(w, (), self._summed))
        return True

    def struck(self, w: int, event: Failed) -> str:
        """Take what a client cannot give off the books, all of it where it names nothing."""
        chunks = [self._chunk[number] for number in event.chunks if number in self._chunk]
        if event.chunks and not chunks:
            return f"chunks {event.chunks[:NAMED]} are not in round {self.roster.assignment.number}"
        is_news = self._cannot(w, chunks or range(len(self.roster.plan.chunks)))
        return "" if is_news else "nothing of it was counted on: it was said before, or is not this client's"

    def _cannot(self, w: int, chunks: Sequence[int]) -> bool:
        """Count on a client no more for these chunks; return whether that is news."""
        if self._repairs is not None:
            self._repairs.stir()
        self._count_after_all(self.replicas.cannot(w, self._numbers(chunks), self._summed))
        return self._tracker.failed(w, chunks)

    @property
    def live(self) -> Sequence[int]:
        """The clients on the books."""
        live: list[int] = np.flatnonzero(self._tracker.live_w).tolist()
        return live

    # ---- working

    def heard(self, event: Progress | Report) -> list[Command]:
        """One more copy: others may leave that chunk, and its finisher may be steered."""
        found = self._found(event)
        if isinstance(found, list):
            return found
        w, chunk, event = found
        verdict = self.replicas.hear(event.chunk, w, event)
        commands: list[Command] = []
        if verdict is not AGREES:
            if not verdict.agrees:
                left_out = [*self._leave_out(event, verdict), *self._accuse()]
                return [*left_out, *self.stirred()]
            commands = self._turn(verdict, event.chunk)
        self._book(w, chunk, event)
        if verdict is not AGREES:
            commands += self._accuse()
        moved = self._tracker.skips(chunk)
        for other, instead in moved:  # first what to take, then what to leave for it
            if instead is not None:
                commands.append(self.roster.take(other, instead))
            commands.append(Skip(self.roster.plan.clients[other], event.round, event.chunk))
        self.roster.statistics.skips += len(moved)
        return [*commands, *self._redirect(w)]

    def stirred(self) -> list[Command]:
        """Give every open chunk to whoever can be asked for it."""
        return [self.roster.take(w, chunk) for w, chunk in self._tracker.hand_out()]

    @property
    def hopeless(self) -> bool:
        """Whether no live client has finished anything or can."""
        return not self._tracker.reachable

    @property
    def ready(self) -> bool:
        """Whether every chunk that can be had has a copy."""
        return self._tracker.covered_once

    @property
    def some(self) -> bool:
        """Whether there is any copy."""
        return bool(self._tracker.counting_wc.any())

    def reports(self) -> Reports:
        """Return what the believed copies say; sources are chunks."""
        return self.replicas.reports(self._samples, self.roster.assignment.rounds_left)

    def more(self, now: float) -> list[Command] | None:  # noqa: ARG002  copies decide, not time
        """Aim for one more copy of everything as long as waiting for it pays."""
        commands: list[Command] = []
        while self._tracker.covered:
            if not self._waiting_pays():
                return None
            self._tracker.raise_aim(self._tracker.aim + 1)
            commands += self.stirred()
        return commands

    @property
    def look_again(self) -> float:
        """Time alone changes nothing."""
        return math.inf

    @property
    def hurry_at(self) -> float:
        """When the next vector will be late."""
        return self._repairs.hurry_at if self._repairs is not None else math.inf

    def _waiting_pays(self) -> bool:
        """Whether one more copy of each chunk saves more upload time than it costs to wait for."""
        tracker, plan = self._tracker, self.roster.plan
        if plan.blocks_fixed or tracker.aim >= min(plan.most_blocks, tracker.most_copies()):
            return False
        chunk_s = [self.roster.assignment.target * seconds for seconds in plan.step_s]
        guessed_s = tracker.wait_s(tracker.aim + 1, chunk_s)
        return self.roster.assignment.replication_costs.pays(
            tracker.aim, guessed_s, max(self.roster.upload_s)
        )

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return (chunks with a copy, chunks, copies aimed for): what a person watches."""
        covered = sum(1 for replicas in self._tracker.replicas if replicas)
        return covered, len(self.roster.plan.chunks), self._tracker.aim

    @property
    def covered(self) -> int:
        """The chunks that have a copy which is believed."""
        return len(self.replicas.believed)

    @property
    def losses(self) -> Sequence[float]:
        """The loss of every chunk that has a copy."""
        return [copy.loss for copy in self.replicas.believed.values()]

    @property
    def reached(self) -> Mapping[str, int]:
        """Chunks that go on were at the target, all of them."""
        return {}

    @property
    def common_steps(self) -> float:
        """Every chunk was taken to the target."""
        return float(self.roster.assignment.target)

    # ---- collecting

    @property
    def holds(self) -> Mapping[int, int]:
        """The finished chunks of every client that has any."""
        done_w = self._tracker.counting_wc.sum(axis=1)
        return {w: int(done_w[w]) for w in np.flatnonzero(done_w).tolist()}

    def lacks(self, clients_w: Collection[int]) -> tuple[int, ...]:
        """Return the chunks that none of these clients has finished."""
        done_c = self._tracker.done_wc[list(clients_w)].any(axis=0)
        return tuple(self._numbers(np.flatnonzero(~done_c).tolist()))

    def collect(self) -> CodedSum:
        """Fix what is finished, and solve for whose codewords are needed."""
        done_wc = self._tracker.counting_wc
        self.solution, wire = self._solved(done_wc, self._tracker.blocks)
        self.sum = CodedSum(self.roster.plan, self.solution, self.roster.assignment.number, wire)
        self._repairs = RepairPlanner(self.roster, self._tracker, self.sum, self.solution.blocks)
        self.roster.statistics.pruned = int(done_wc.any(axis=1).sum()) - len(self.solution.needed)
        return self.sum

    def _solved(self, done_wc: NDArray[np.bool_], most_blocks: int) -> tuple[Solution, Wire]:
        """Solve for the shortest codewords that the copies allow and the error limit bears, few of them."""
        plan = self.roster.plan
        all_full = int(done_wc.sum(axis=0).min()) >= most_blocks  # then nothing is to be made up for
        likeness = 0.0 if all_full else self.replicas.likeness(self._samples)
        for wire, blocks in shapes(most_blocks, short=plan.short_numbers):
            code = FrameCode(plan.placement, blocks)
            limit = amplification_limit(plan.error_limit, EPSILON[wire])
            solution = code.solve(
                code.prune(done_wc, cost=self.roster.upload_s, limit=limit),
                correlation=likeness,
                weights=self._weights(done_wc),
            )
            if solution.amplification <= limit:
                break
        return solution, wire

    def _weights(self, done_wc: NDArray[np.bool_]) -> tuple[float, ...] | None:
        """Return what chunks count where one is short that a single client has: nobody can stand in."""
        short = bool((self._alone_c & ~done_wc.any(axis=0)).any())
        return self.roster.assignment.weights or None if short else None

    def heard_late(self, event: Progress | Report) -> list[Command]:
        """What is fixed stays fixed, but a repair may have waited for this copy."""
        found = self._found(event)
        if isinstance(found, list):
            return found
        w, chunk, event = found
        verdict = self.replicas.judge(event.chunk, w, event, self._summed)
        if not verdict.agrees:
            refused = self._leave_out(event, verdict)
            self.roster.statistics.disputed = self.replicas.disputed()
            self.without(w)
            return refused
        commands = self._turn(verdict, event.chunk)
        self._book(w, chunk, event)
        if self._repairs is not None:
            self._repairs.finished(chunk)
            if commands:
                self._repairs.stir()
        return commands

    @property
    def _summed(self) -> Collection[int]:
        """The chunks of which something is in the sum."""
        return self.sum.summed if self.sum else ()

    def returned(self, event: Joined) -> list[Command]:
        """Ask again for what the client can still send, and give it what the sum lacks and nobody has."""
        w = self.roster.w.get(event.client)
        if w is None or self.sum is None or self._repairs is None:
            return []
        self._here_again([event])
        self._repairs.back(w)
        kept = self._kept(event)
        asked = self.sum.ask_again(w, np.isin(np.arange(len(self.roster.plan.chunks)), kept))
        had_c = self._repairs.had_c()
        useful = {c for c in self.sum.wanted if not had_c[c]} | set(kept)
        order = self._tracker.queue(w, [c for c in self._orders[w] if c in useful], kept)
        if not (order or asked or event.live):
            return []  # it could be asked for nothing
        return [self._work(w, order, carry=False), *asked]

    def without(self, w: int) -> None:
        """Open what this client owes and cannot send any more; it has the requests for the rest."""
        if self.sum is not None and self._repairs is not None:
            self.sum.ask_again(w, self._tracker.able_wc[w])
            self._repairs.stir()

    def too_slow(self, w: int) -> None:
        """Wait for nothing of this client any more."""
        self._cannot(w, range(len(self.roster.plan.chunks)))

    def meanwhile(self) -> list[Command]:
        """Have clients go on with what they left, where a line is likely to be late."""
        return self._repairs.meanwhile(self._orders) if self._repairs is not None else []

    def mend(self) -> list[Command]:
        """Ask for repairs of what is open."""
        return self._repairs.mend() if self._repairs is not None else []

    def hurry(self, now: float) -> list[Command]:
        """Have others stand in for what is late; whoever is first counts."""
        return self._repairs.hurry(now) if self._repairs is not None else []

    def unsent_s(self, now: float) -> Mapping[int, float]:
        """Return who was late to the end, and for how long it was at what would be a whole update."""
        return self._repairs.unsent_s(now) if self._repairs is not None else {}

    def missing(self) -> tuple[tuple[int, ...], float | None]:
        """Return what the sum lacks, and how far off that leaves it."""
        if self.sum is None or self.solution is None:
            return (), None
        lacking = {chunk for _, chunk in self.sum.missing} | set(self.solution.short)
        if not lacking:
            return (), None
        short = tuple(self._numbers(sorted(lacking)))
        return short, math.hypot(self.solution.error or 0.0, self.sum.missing_error())

    # ---- small print

    def _found(self, event: Progress | Report) -> tuple[int, int, Progress] | list[Command]:
        """Return the client and the chunk of a new copy, and what was said of it; or else the answer."""
        if isinstance(event, Report):
            return self.roster.refuse(event, "a report of local work, this is coded")
        w, chunk = self.roster.w.get(event.client, NOBODY), self._chunk.get(event.chunk, NOBODY)
        why_not = self._why_not(event, w, chunk)
        if why_not:
            return self.roster.refuse(event, why_not)
        if self._tracker.done_wc[w, chunk]:
            return []  # a finished chunk is told again when asked for, and that may have crossed the report
        return w, chunk, event

    def _why_not(self, event: Progress, w: int, chunk: int) -> str:
        """Return why this copy does not count, or nothing."""
        this = self.roster.assignment
        if w == NOBODY or event.round != this.number:
            return self.roster.here(event)
        if not self._tracker.live_w[w]:
            return f"client {event.client} is not in round {this.number}"
        if chunk == NOBODY or not self._tracker.able_wc[w, chunk]:
            return f"chunk {event.chunk} is not this client's"
        if event.reached != this.target:
            return f"chunk {event.chunk} reached {event.reached} steps, needed {this.target}"
        if event.samples != self._samples[event.chunk]:
            return f"chunk {event.chunk} has {event.samples} samples, needed {self._samples[event.chunk]}"
        return ""

    def _leave_out(self, event: Progress, verdict: Verdict) -> list[Command]:
        """Put a copy aside: it is another than the one that is believed, whoever of them is wrong."""
        self._tracker.failed(self.roster.w[event.client], [self._chunk[event.chunk]])
        return self._blame(verdict, event.chunk)

    def _blame(self, verdict: Verdict, number: int) -> list[Command]:
        """Tell those whose copies of a chunk are known to be wrong, and count it against them."""
        reason = f"chunk {number}: its copy has another sketch than those of others, or none"
        return [self._refused(w, reason) for w in verdict.blamed]

    def _refused(self, w: int, reason: str) -> Refuse:
        self.roster.statistics.refused[w] += 1
        return Refuse(self.roster.plan.clients[w], self.roster.assignment.number, reason)

    def _accuse(self) -> list[Command]:
        """Count on nothing of a client whose copies differ from those of many others; note what is open."""
        commands: list[Command] = []
        for w in self.replicas.accused():
            reason = "its copies differ from those of several other clients, which do not differ among them"
            self.roster.statistics.failure[w] = reason
            commands.append(self._refused(w, reason))
            self._cannot(w, range(len(self.roster.plan.chunks)))
        self.roster.statistics.disputed = self.replicas.disputed()
        return [*commands, *self.stirred()] if commands else []

    def _turn(self, verdict: Verdict, number: int) -> list[Command]:
        """Strike the copies that the majority speaks against, and count those that it speaks for."""
        commands = self._blame(verdict, number)
        for w in verdict.wrong:
            self._tracker.failed(w, [self._chunk[number]])
        self._count_after_all({number: verdict.right})
        return commands

    def _count_after_all(self, right: Mapping[int, Sequence[int]]) -> None:
        """Count the copies of these clients, which were left out."""
        for number, clients_w in right.items():
            for w in clients_w:
                self._tracker.restored(w, self._chunk[number])

    def _book(self, w: int, chunk: int, event: Progress) -> None:
        self._tracker.finished(w, chunk)
        if chunk in self._told[w]:
            return  # told again after a return: no new work
        self._told[w].add(chunk)
        if self.sum is None:
            self._note_copy(chunk, event.now)
        statistics = self.roster.statistics
        statistics.finished[w] += 1
        statistics.steps[w] += event.reached
        statistics.busy_s[w] += event.seconds
        statistics.step_s[w].append(event.seconds / event.reached)

    def _note_copy(self, chunk: int, now: float) -> None:
        self._made[chunk] = replicas = self._made[chunk] + 1
        self._without[replicas] -= 1
        if not self._without[replicas]:
            self.covered_s.append(now - self.roster.started_at)

    def _kept(self, event: Joined) -> list[int]:
        """Return what of this round a client has finished before, of the chunks that it can load now."""
        if not event.kept:
            return []
        here = (self.roster.assignment.version, self.roster.assignment.target)
        said, by_number = {held.name: held for held in event.holds}, self._by_number
        kept = (each.chunk for each in event.kept if (each.version, each.reached) == here)
        known = (by_number[number] for number in kept if number in by_number)
        return [self._chunk[c.number] for c in known if c.name in said and c.fits(said[c.name])]

    def _numbers(self, chunks: Iterable[int]) -> list[int]:
        number = self._number
        return [number[c] for c in chunks]

    def _work(self, w: int, order: Sequence[int], *, carry: bool) -> Work | Continue:
        plan, this, limit_s = self.roster.plan, self.roster.assignment, self.roster.limit_s
        client = plan.clients[w]
        numbers = tuple(self._numbers(order))
        if carry:
            return Continue(client, this.number, this.target, numbers, limit_s)
        names = plan.names_w[w]
        return Work(
            client, this.number, this.version, this.target, numbers, names, this.seed, limit_s,
            first_step=this.first_step, common_steps=this.common_steps,
        )  # fmt: skip

    def _redirect(self, w: int) -> list[Command]:
        """Let a finisher leave what it has just begun for what nobody does, or else take the best next.

        It hears one command after the other, and may have begun the next chunk before it hears the last:
        so the better one is in front when it leaves the other, and again when it gets that back.
        """
        redirected = self._tracker.redirect(w)
        if redirected is None:
            return []
        begun, instead = redirected
        first = self.roster.take(w, instead)
        if begun is None:
            return [first]
        self.roster.statistics.skips += 1
        self.roster.statistics.takes += 1  # the first is said twice
        skip = Skip(first.client, first.round, self._number[begun])
        return [first, skip, self.roster.take(w, begun), first]


def _first_aim(roster: Roster) -> int:
    """Return how many copies to aim for as the round begins."""
    most = roster.plan.most_blocks
    return most if roster.plan.blocks_fixed else min(most, roster.assignment.replication_costs.aim)
