"""Coded work (after arXiv 2405.19509): each chunk is trained from the common model by several clients.

A replica is a function of (model, chunk, seed) alone, so it does not matter whose is used. As replicas come
in, other clients are told to skip that chunk, and its finisher which to take next. Once every chunk that can
be had has one replica, the gate may be asked; an exchange waits for `aim` replicas of each, as many as paid
in recent rounds. Then the finished work is fixed, the code is solved, and each client that is needed sends
one codeword (`CodedAggregator`).

Index w is a client, c a chunk, as in the plan.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedgc.codecs import EPSILON, Wire, shapes
from fedgc.codes import Solution, amplification_limit, code_named
from fedgc.gates import Reports
from fedgc.messages import Command, Failed, Joined, Progress, Report, Skip
from fedgc.round.aggregator import JUST_WAIT, Wait
from fedgc.round.coded.aggregator import CodedAggregator
from fedgc.round.coded.agreement import AGREES
from fedgc.round.coded.reports import ReplicaReports
from fedgc.round.roster import Roster
from fedgc.round.scheduler import Holding, Scheduler, Supply, WorkSummary


class CodedScheduler(Scheduler):
    """Lets clients train chunks until every chunk has enough replicas."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._reports = ReplicaReports(roster)
        self._tracker = self._reports.tracker

    def give(self, present: Sequence[Joined], carried: Collection[str] = ()) -> list[Command]:
        """Give clients of this plan what is worth doing, first what they kept."""
        given: list[Command] = []
        for w, event in self._reports.enter(present).items():
            order = self._tracker.queue(w, self._reports.orders[w], self._reports.kept(event))
            given.append(self._reports.work(w, order, carried=event.client in carried))
        return given

    def lost(self, w: int) -> None:
        """Let a lost client's replicas count no more."""
        self._reports.lost(w)

    def failed(self, w: int, event: Failed) -> str:
        """Count no more on the chunks that failed, on all if none is named."""
        return self._reports.failed(w, event)

    def heard(self, event: Progress | Report) -> list[Command]:
        """Take in a replica: other clients may skip that chunk, and its finisher may be steered."""
        found = self._reports.found(event)
        if isinstance(found, list):
            return found
        w, chunk, event = found
        verdict = self._reports.agreement.hear(event.chunk, w, event)
        commands: list[Command] = []
        if verdict is not AGREES:
            if not verdict.agrees:
                left_out = [*self._reports.leave_out(event, verdict), *self._accuse()]
                return [*left_out, *self.reassign()]
            commands = self._reports.turn(verdict, event.chunk)
        self._reports.book(w, chunk, event)
        if verdict is not AGREES:
            commands += self._accuse()
        moved = self._tracker.skips(chunk)
        for other, instead in moved:  # first what to take, then what to leave for it
            if instead is not None:
                commands.append(self._roster.take(other, instead))
            commands.append(Skip(self._roster.plan.clients[other], event.round, event.chunk))
        self._roster.statistics.skips += len(moved)
        return [*commands, *self._redirect(w)]

    def reassign(self) -> list[Command]:
        """Ask for every open chunk each client that can make it."""
        return [self._roster.take(w, chunk) for w, chunk in self._tracker.hand_out()]

    @property
    def supply(self) -> Supply:
        """How much is finished: enough is a replica of every chunk that can be had."""
        tracker = self._tracker
        if not tracker.reachable:
            return Supply.HOPELESS
        if tracker.covered_once:
            return Supply.ENOUGH
        return Supply.SOME if any(tracker.replicas) else Supply.NOTHING

    def reports(self) -> Reports:
        """Return the reports of replicas that are believed, one for each chunk."""
        return self._reports.agreement.reports(self._reports.samples, self._roster.assignment.rounds_left)

    def wait(self, now: float) -> Wait | None:  # noqa: ARG002  replicas decide, not time
        """Aim for one more replica of each chunk as long as waiting for it pays."""
        commands: list[Command] = []
        while self._tracker.covered:
            if not self._waiting_pays():
                return None
            self._tracker.raise_aim(self._tracker.aim + 1)
            commands += self.reassign()
        return Wait(commands) if commands else JUST_WAIT

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return (chunks with a replica, chunks, replicas aimed for)."""
        covered = sum(1 for replicas in self._tracker.replicas if replicas)
        return covered, len(self._roster.plan.chunks), self._tracker.aim

    @property
    def summary(self) -> WorkSummary:
        """What the round has shown: coverage, losses, the times of replicas, orders for the next round."""
        believed = self._reports.agreement.believed
        losses = [copy.loss for copy in believed.values()]
        covered_s, orders = self._reports.covered_s, self._reports.next_orders
        return WorkSummary(len(believed), losses, covered_s=covered_s, orders=orders)

    @property
    def holds(self) -> Mapping[int, Holding]:
        """The finished chunks of each client that has any."""
        done_wc = self._tracker.counting_wc
        held = {
            w: self._reports.numbers(np.flatnonzero(done_wc[w]).tolist()) for w in sorted(self._roster.live)
        }
        return {w: Holding(len(chunks), frozenset(chunks)) for w, chunks in held.items() if chunks}

    def collect(self) -> CodedAggregator:
        """Fix the finished replicas, and solve for the codewords that are needed."""
        done_wc = self._tracker.counting_wc
        solution, wire = self._solved(done_wc, self._tracker.blocks)
        self._roster.statistics.pruned = int(done_wc.any(axis=1).sum()) - len(solution.needed)
        return CodedAggregator(self._reports, solution, wire)

    # ---- private

    def _waiting_pays(self) -> bool:
        """Whether one more replica of each chunk saves more upload time than it costs to wait for."""
        roster, tracker, plan = self._roster, self._tracker, self._roster.plan
        if plan.blocks_fixed or tracker.aim >= min(plan.most_blocks, tracker.most_copies()):
            return False
        chunk_s = [roster.assignment.target * seconds for seconds in plan.step_s]
        guessed_s = tracker.wait_s(tracker.aim + 1, chunk_s)
        costs = roster.assignment.replication_costs
        return costs.pays(tracker.aim, guessed_s, max(roster.upload_s))

    def _solved(self, done_wc: NDArray[np.bool_], most_blocks: int) -> tuple[Solution, Wire]:
        """Solve for the shortest codewords that the replicas allow within the error limit, few of them."""
        plan = self._roster.plan
        kind = code_named(plan.code)
        all_full = int(done_wc.sum(axis=0).min()) >= most_blocks  # then nothing is to be made up for
        likeness = 0.0 if all_full else self._reports.agreement.likeness(self._reports.samples)
        for wire, blocks in shapes(most_blocks, short=plan.short_numbers):
            code = kind.make(plan.placement, blocks, self._roster.assignment.seed)
            limit = amplification_limit(plan.error_limit, EPSILON[wire])
            solution = code.solve(
                code.prune(done_wc, cost=self._roster.upload_s, limit=limit),
                correlation=likeness,
                weights=self._weights(done_wc),
            )
            if solution.amplification <= limit:
                break
        return solution, wire

    def _weights(self, done_wc: NDArray[np.bool_]) -> tuple[float, ...] | None:
        """Return the weights of chunks if one is missing that a single client holds."""
        short = bool((self._roster.plan.alone_c & ~done_wc.any(axis=0)).any())
        return self._roster.assignment.weights or None if short else None

    def _accuse(self) -> list[Command]:
        accused = self._reports.accuse()
        return [*accused, *self.reassign()] if accused else []

    def _redirect(self, w: int) -> list[Command]:
        """Let a finisher leave what it has just begun for a less covered chunk, or take the best one next.

        It hears one command after the other, and may have begun the next chunk before it hears the last. So
        the better chunk is in front when it leaves the other, and again when it gets that back.
        """
        redirected = self._tracker.redirect(w)
        if redirected is None:
            return []
        begun, instead = redirected
        first = self._roster.take(w, instead)
        if begun is None:
            return [first]
        self._roster.statistics.skips += 1
        self._roster.statistics.takes += 1  # the first is said twice
        skip = Skip(first.client, first.round, self._roster.plan.chunks[begun].number)
        return [first, skip, self._roster.take(w, begun), first]
