"""The aggregator of gradient coding: asks for codewords, and for repairs of those lost or late.

`CodedSum` keeps the sum itself. A lost codeword is rebuilt by other holders of its chunks, who may have to
train on them first (`RepairPlanner`); a codeword that is much later than most is requested from others too,
and the first one counts. Index w is a client, c a chunk, as in the plan.
"""

import math
from collections.abc import Collection, Sequence

import numpy as np

from fedgc.codecs import Wire
from fedgc.codes import Solution
from fedgc.messages import Add, Command, Joined, Progress, Refuse, Report
from fedgc.round.aggregator import Aggregator, Result, Wait
from fedgc.round.coded.coded_sum import CodedSum
from fedgc.round.coded.repairs import RepairPlanner
from fedgc.round.coded.reports import ReplicaReports


class CodedAggregator(Aggregator):
    """The sum over all chunks: exact if every term of the solution arrives, from any client."""

    def __init__(self, reports: ReplicaReports, solution: Solution, wire: Wire) -> None:
        """`reports` holds the finished replicas, and is told what is in the sum."""
        roster = reports.roster
        self._solution = solution
        self._reports, self._tracker, self._roster = reports, reports.tracker, roster
        self._sum = CodedSum(roster.plan, solution, roster.assignment.number, wire)
        self._repairs = RepairPlanner(roster, self._tracker, self._sum, solution.blocks)
        reports.collecting, reports.summed = True, self._sum.summed

    def ask(self) -> Sequence[Command]:
        """Ask for codewords; let clients continue skipped chunks if an uplink is likely to be late."""
        return [*self._sum.needed(), *self._repairs.meanwhile(self._reports.orders)]

    def accept(self, w: int, attempt: int, norm: float = 0.0) -> Add | Refuse | str:
        """Take a codeword or a repair into the sum; use nothing of a client whose codeword is too large."""
        part = self._sum.awaited(w, attempt)
        excess = "" if part is None else self._reports.norms.excess(w, part.terms, norm)
        if not excess:
            return self._sum.accept(w, attempt)
        self._roster.statistics.failure[w] = excess
        self._roster.statistics.awaited.add(w)
        self._give_up(w)
        self._repairs.stir()
        return excess

    def heard(self, event: Progress | Report) -> Sequence[Command]:
        """Handle a replica: the solution stays, but a repair may have waited for it."""
        found = self._reports.found(event)
        if isinstance(found, list):
            return found
        w, chunk, event = found
        verdict = self._reports.agreement.judge(event.chunk, w, event, self._sum.summed)
        if not verdict.agrees:
            refused = self._reports.leave_out(event, verdict)
            self._roster.statistics.disputed = self._reports.agreement.disputed()
            self.lost(w, gone=False)
            return refused
        commands = self._reports.turn(verdict, event.chunk)
        self._reports.book(w, chunk, event)
        self._repairs.finished(chunk)
        if commands:
            self._repairs.stir()
        return commands

    def returned(self, event: Joined) -> Sequence[Command]:
        """Ask again for what the client can still send, and assign it missing chunks that no client has."""
        w, reports = self._roster.w[event.client], self._reports
        reports.enter([event])
        self._repairs.back(w)
        kept = reports.kept(event)
        asked = self._sum.ask_again(w, np.isin(np.arange(len(self._roster.plan.chunks)), kept))
        had_c = self._repairs.had_c()
        useful = {c for c in self._sum.wanted if not had_c[c]} | set(kept)
        order = self._tracker.queue(w, [c for c in reports.orders[w] if c in useful], kept)
        if not (order or asked or event.live):
            return ()  # it cannot send anything
        return [reports.work(w, order, carried=False), *asked]

    def lost(self, w: int, *, gone: bool = True) -> None:
        """Open the terms that a client owes and cannot send any more."""
        if gone:
            self._sum.lost(w)
        else:
            self._sum.ask_again(w, self._tracker.able_wc[w])
        self._repairs.stir()

    @property
    def owing(self) -> Collection[int]:
        """The clients whose codeword or repair is awaited."""
        return self._sum.owing

    def expire(self, *, final: bool) -> Sequence[int]:
        """Give up clients that owe a vector; if none does, open terms become missing."""
        late = self._sum.owing
        for w in late:
            self._give_up(w)
        self._repairs.stir()
        if final or not late:
            self._sum.give_up()
        return late

    def _give_up(self, w: int) -> None:
        self._reports.cannot_all(w)
        self._sum.lost(w)

    def wait(self, now: float) -> Wait | None:
        """Ask for repairs of open terms, and for replacements of late vectors."""
        commands = self._repairs.mend()
        if self._sum.complete:
            return None
        commands += self._repairs.hurry(now)
        return Wait(commands, self._repairs.hurry_at)

    def result(self, now: float) -> Result:
        """Return the weight of all chunks, the missing ones, and the error that they cause."""
        solution = self._solution
        lacking = {chunk for _, chunk in self._sum.missing} | set(solution.short)
        error = math.hypot(solution.error or 0.0, self._sum.missing_error()) if lacking else None
        return Result(
            weight=self._sum.weight,
            counted=self._sum.counted,
            missing=tuple(self._reports.numbers(sorted(lacking))),
            error=error,
            steps=float(self._roster.assignment.target),
            solution=solution,
            unsent_s=self._repairs.unsent_s(now),
        )
