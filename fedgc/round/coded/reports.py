"""The reports of replicas: which of them count, and what a client may be asked for.

Replicas of a chunk are the same on every client (same model, chunk and seed). Each report is compared with
those of other clients (`ReplicaAgreement`); a replica that counts enters the `ReplicaTracker`.

Index w is a client, c a chunk, as in the plan.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from fedgc.codes import carry_on, in_waves, orders_for_round
from fedgc.messages import Command, Continue, Failed, Joined, Progress, Refuse, Report, Work
from fedgc.round.coded.agreement import ReplicaAgreement, Verdict
from fedgc.round.coded.norms import CodewordNorms
from fedgc.round.coded.replicas import ReplicaTracker
from fedgc.round.roster import Roster

NO_INDEX: Final = -1  # of a client or a chunk outside this plan
NAMED: Final = 8  # chunks that a refusal names, at most


class ReplicaReports:
    """Owns the tracker and the agreement of a round, and the order in which clients work."""

    def __init__(self, roster: Roster) -> None:
        plan = roster.plan
        self.roster: Final = roster
        self.agreement: Final = ReplicaAgreement()
        self.tracker: Final = ReplicaTracker(plan.placement.holders, _first_aim(roster))
        self.norms: Final = CodewordNorms([chunk.samples for chunk in plan.chunks], len(plan.clients))
        self.samples: Final = {chunk.number: chunk.samples for chunk in plan.chunks}
        self.covered_s: list[float] = []  # when all chunks had 1, 2, ... replicas
        self.collecting = False
        self.summed: Collection[int] = ()  # the chunks with a part in the sum
        self._number = [chunk.number for chunk in plan.chunks]
        self._chunk = {number: c for c, number in enumerate(self._number)}
        self._by_number = {chunk.number: chunk for chunk in plan.chunks}
        self._made = [0] * len(plan.chunks)  # replicas, also of clients lost since
        self._without = Counter({replicas: len(plan.chunks) for replicas in range(1, len(plan.clients) + 1)})
        self._told: list[set[int]] = [set() for _ in plan.clients]  # replicas counted in the statistics
        orders = orders_for_round(plan.placement, roster.assignment.order_seed)
        speeds = [1.0 / seconds for seconds in plan.step_s]
        self.orders: Final = self._with_carried(in_waves(plan.placement, orders, speeds))

    # ---- clients

    def enter(self, present: Sequence[Joined]) -> dict[int, Joined]:
        """Enter the clients of this plan, without work; the replicas that they kept are reported again."""
        planned = {self.roster.w[event.client]: event for event in present if self._planned(event)}
        self.tracker.joined({w: event.live for w, event in planned.items()})
        for w, event in planned.items():
            kept = self.numbers(self.kept(event))
            self._restore(self.agreement.stands(w, kept, self.summed))
        return planned

    def lost(self, w: int) -> None:
        """Stop counting a lost client's replicas."""
        self.tracker.lost(w)
        self._restore(self.agreement.stands(w, (), self.summed))

    def failed(self, w: int, event: Failed) -> str:
        """Mark the failed chunks as unavailable, all if none is named; return why that is not new."""
        chunks = [self._chunk[number] for number in event.chunks if number in self._chunk]
        if event.chunks and not chunks:
            return f"chunks {event.chunks[:NAMED]} are not in round {self.roster.assignment.number}"
        is_news = self.cannot(w, chunks or range(len(self._number)))
        return "" if is_news else "saw no counted chunk: it was reported before, or is not this client's"

    def cannot(self, w: int, chunks: Sequence[int] | range) -> bool:
        """Mark these chunks as unavailable from a client; return whether that is new."""
        self._restore(self.agreement.cannot(w, self.numbers(chunks), self.summed))
        return self.tracker.failed(w, chunks)

    def cannot_all(self, w: int) -> None:
        """Mark all chunks of a client as unavailable."""
        self.cannot(w, range(len(self._number)))

    def kept(self, event: Joined) -> list[int]:
        """Return the chunks of this round that a client has finished before and still holds."""
        if not event.kept:
            return []
        here = (self.roster.assignment.version, self.roster.assignment.target)
        held_by_name, by_number = {held.name: held for held in event.holds}, self._by_number
        kept = (each.chunk for each in event.kept if (each.version, each.reached) == here)
        known = (by_number[number] for number in kept if number in by_number)
        return [
            self._chunk[c.number] for c in known if c.name in held_by_name and c.fits(held_by_name[c.name])
        ]

    def numbers(self, chunks: Iterable[int]) -> list[int]:
        """Return the numbers of these chunks in the run's table."""
        number = self._number
        return [number[c] for c in chunks]

    # ---- work

    def work(self, w: int, order: Sequence[int], *, carried: bool) -> Work | Continue:
        """Return the command for a client to work on these chunks."""
        plan, this, limit_s = self.roster.plan, self.roster.assignment, self.roster.limit_s
        client = plan.clients[w]
        numbers = tuple(self.numbers(order))
        if carried:
            return Continue(client, this.number, this.target, numbers, limit_s)
        names = plan.names_w[w]
        return Work(
            client, this.number, this.version, this.target, numbers, names, this.seed, limit_s,
            first_step=this.first_step,
        )  # fmt: skip

    @property
    def next_orders(self) -> Mapping[str, tuple[int, ...]]:
        """For the next round: the orders of clients that are the only holder of a chunk."""
        plan, found = self.roster.plan, {}
        for w in np.flatnonzero(plan.placement.holds[:, plan.alone_c].any(axis=1)).tolist():
            order = self.orders[w]
            left = [at for at, c in enumerate(order) if not self.tracker.done_wc[w, c]]
            turned = carry_on(order, left[0] if left else 0)
            found[plan.clients[w]] = tuple(self.numbers(turned))
        return found

    # ---- reports

    def found(self, event: Progress | Report) -> tuple[int, int, Progress] | list[Command]:
        """Return the client, the chunk and the report of a new replica; or the answer to another report."""
        if isinstance(event, Report):
            return self.roster.refuse(event, "a report of local work, this is coded")
        w, chunk = self.roster.w.get(event.client, NO_INDEX), self._chunk.get(event.chunk, NO_INDEX)
        why_not = self._why_not(event, w, chunk)
        if why_not:
            return self.roster.refuse(event, why_not)
        self.norms.told(w, chunk, event.squared_norm)
        if self.tracker.done_wc[w, chunk]:
            return []  # requested again, which may have crossed the first report
        return w, chunk, event

    def book(self, w: int, chunk: int, event: Progress) -> None:
        """Enter a replica that counts."""
        self.tracker.finished(w, chunk)
        if chunk in self._told[w]:
            return  # reported again after a return: no new work
        self._told[w].add(chunk)
        if not self.collecting:
            self._note_replica(chunk, event.now)
        statistics = self.roster.statistics
        statistics.finished[w] += 1
        statistics.steps[w] += event.reached
        statistics.busy_s[w] += event.seconds
        statistics.step_s[w].append(event.seconds / event.reached)

    def leave_out(self, event: Progress, verdict: Verdict) -> list[Command]:
        """Exclude a replica that differs from the believed one, whichever of them is wrong."""
        self.tracker.failed(self.roster.w[event.client], [self._chunk[event.chunk]])
        return self._blame(verdict, event.chunk)

    def turn(self, verdict: Verdict, number: int) -> list[Command]:
        """Exclude the replicas that the majority disagrees with, and count those it agrees with."""
        commands = self._blame(verdict, number)
        for w in verdict.wrong:
            self.tracker.failed(w, [self._chunk[number]])
        self._restore({number: verdict.right})
        return commands

    def accuse(self) -> list[Command]:
        """Refuse clients whose replicas differ from those of many others, and use nothing of theirs."""
        commands: list[Command] = []
        for w in self.agreement.accused():
            reason = "its copies differ from those of several other clients, which do not differ among them"
            self.roster.statistics.failure[w] = reason
            commands.append(self._refused(w, reason))
            self.cannot_all(w)
        self.roster.statistics.disputed = self.agreement.disputed()
        return commands

    def _with_carried(self, orders: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        plan, carried_on, found = self.roster.plan, self.roster.assignment.orders, []
        if not carried_on:
            return orders
        for client, order in zip(plan.clients, orders, strict=True):
            asked = carried_on.get(client, ())
            same = sorted(asked) == sorted(self.numbers(order))
            found.append(tuple(self._chunk[number] for number in asked) if same else tuple(order))
        return tuple(found)

    def _planned(self, event: Joined) -> bool:
        """Remove what a client cannot load any more; it may have returned with less."""
        w = self.roster.w.get(event.client)
        if w is None:
            return False
        holds, size = event.holds, len(event.holds)
        by_number = self._by_number
        unsure = [  # a client that can load all chunks lists each at its number
            by_number[number]
            for number, _ in self.roster.plan.names_w[w]
            if number >= size or not by_number[number].fits(holds[number])
        ]
        held_by_name = {held.name: held for held in holds} if unsure else {}
        gone = [
            each.number
            for each in unsure
            if each.name not in held_by_name or not each.fits(held_by_name[each.name])
        ]
        self.tracker.failed(w, [self._chunk[number] for number in gone])
        return True

    def _why_not(self, event: Progress, w: int, chunk: int) -> str:
        """Return why this replica does not count, or an empty string."""
        this = self.roster.assignment
        if w == NO_INDEX or event.round != this.number:
            return self.roster.here(event)
        if not self.tracker.live_w[w]:
            return f"client {event.client} is not in round {this.number}"
        if chunk == NO_INDEX or not self.tracker.able_wc[w, chunk]:
            return f"chunk {event.chunk} is not this client's"
        if event.reached != this.target:
            return f"chunk {event.chunk} reached {event.reached} steps, needed {this.target}"
        if event.samples != self.samples[event.chunk]:
            return f"chunk {event.chunk} has {event.samples} samples, needed {self.samples[event.chunk]}"
        return ""

    def _blame(self, verdict: Verdict, number: int) -> list[Command]:
        """Tell clients whose replica of a chunk is known to be wrong, and count it in their statistics."""
        reason = f"chunk {number}: its copy has another sketch than those of others, or none"
        return [self._refused(w, reason) for w in verdict.blamed]

    def _refused(self, w: int, reason: str) -> Refuse:
        self.roster.statistics.refused[w] += 1
        return Refuse(self.roster.plan.clients[w], self.roster.assignment.number, reason)

    def _restore(self, right: Mapping[int, Sequence[int]]) -> None:
        """Count replicas of these clients that were left out."""
        for number, clients_w in right.items():
            for w in clients_w:
                self.tracker.restored(w, self._chunk[number])

    def _note_replica(self, chunk: int, now: float) -> None:
        self._made[chunk] = replicas = self._made[chunk] + 1
        self._without[replicas] -= 1
        if not self._without[replicas]:
            self.covered_s.append(now - self.roster.started_at)


def _first_aim(roster: Roster) -> int:
    """Return how many replicas to aim for as the round begins."""
    most = roster.plan.most_blocks
    return most if roster.plan.blocks_fixed else min(most, roster.assignment.replication_costs.aim)
