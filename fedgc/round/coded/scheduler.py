"""The scheduler of gradient coding (after arXiv 2405.19509): several clients train each chunk.

A replica is a function of (model, chunk, seed) alone, so any of them can be used. As replicas come in, other
clients get commands to skip that chunk, and its finisher which to take next. Once every reachable chunk has
one replica, the gate may be asked; an exchange waits for `aim` replicas of each, as many as paid in recent
rounds. Then the finished work is fixed, the code is solved, and each needed client sends one codeword
(`CodedAggregator`).

Index w is a client, c a chunk, as in the plan.
"""

from collections.abc import Collection, Container, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedgc.codecs import EPSILON, Wire, shapes
from fedgc.codes import Solution, amplification_limit, new_code
from fedgc.errors import ExtensionFailed
from fedgc.gates import Reports
from fedgc.guards import guarded
from fedgc.messages import Command, Failed, Joined, Progress, Report, Skip
from fedgc.round.aggregator import JUST_WAIT, Wait
from fedgc.round.coded.aggregator import CodedAggregator
from fedgc.round.coded.agreement import AGREES
from fedgc.round.coded.reports import ReplicaReports
from fedgc.round.roster import Roster
from fedgc.round.scheduler import Holding, Scheduler, Supply, WorkSummary
from fedgc.round.stalled import StalledClients


class CodedScheduler(Scheduler):
    """Lets clients train chunks until every chunk has enough replicas."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._reports = ReplicaReports(roster)
        self._tracker = self._reports.tracker
        self._stalled = StalledClients(roster)
        self._shares: tuple[float, ...] = ()  # of the updates of chunks; set once work is fixed

    def give(self, present: Sequence[Joined], carried: Collection[str] = ()) -> list[Command]:
        """Return the useful work for clients of this plan, kept chunks first."""
        given: list[Command] = []
        for w, event in self._reports.enter(present).items():
            order = self._tracker.queue(w, self._reports.orders[w], self._reports.kept(event))
            self._stalled.began(w, max(event.now, self._roster.started_at), live=event.live)
            given.append(self._reports.work(w, order, carried=event.client in carried))
        return given

    def lost(self, w: int) -> None:
        """Stop counting a lost client's replicas."""
        self._stalled.gone(w)
        self._reports.lost(w)

    def leaves(self, w: int) -> bool:
        """Ask for no more chunks of a leaving client; those that it has finished count."""
        self._tracker.hears(w, hears=False)
        return bool(self._tracker.done_wc[w].any())

    def failed(self, w: int, event: Failed) -> str:
        """Mark the failed chunks as unavailable, all if none is named."""
        self._awake(w, event.now)
        return self._reports.failed(w, event)

    def heard(self, event: Progress | Report) -> list[Command]:
        """Handle a replica: other clients may skip that chunk, and its finisher may be steered."""
        found = self._reports.found(event)
        if isinstance(found, list):
            return found
        w, chunk, event = found
        self._awake(w, event.now)
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
        for other, instead in moved:  # first the chunk to take, then the one to leave for it
            if instead is not None:
                commands.append(self._roster.take(other, instead))
            commands.append(Skip(self._roster.plan.clients[other], event.round, event.chunk))
        self._roster.statistics.skips += len(moved)
        return [*commands, *self._redirect(w)]

    def stalled(self, now: float, loading: Container[str]) -> Wait:
        """Count no longer on clients that make no progress: others are asked for their chunks."""
        found = self._stalled.found(now, loading, lambda w: len(self._tracker.remaining(w)))
        for w in found:
            self._tracker.hears(w, hears=False)
        return Wait(self.reassign() if found else (), self._stalled.look_at)

    def reassign(self) -> list[Command]:
        """Ask all available clients for every open chunk."""
        return [self._roster.take(w, chunk) for w, chunk in self._tracker.hand_out()]

    @property
    def supply(self) -> Supply:
        """How much is finished: enough is one replica of every reachable chunk."""
        tracker = self._tracker
        if not tracker.reachable:
            return Supply.IMPOSSIBLE
        if tracker.covered_once:
            return Supply.ENOUGH
        return Supply.SOME if any(tracker.replicas) else Supply.NOTHING

    def reports(self) -> Reports:
        """Return the reports of believed replicas, one for each chunk."""
        return self._reports.agreement.reports(self._reports.samples, self._roster.assignment.rounds_left)

    def wait(self, now: float) -> Wait | None:  # noqa: ARG002  replicas decide, not time
        """Aim for one more replica of each chunk as long as the wait pays."""
        commands: list[Command] = []
        while self._tracker.covered:
            if not self._waiting_pays():
                return None
            self._tracker.raise_aim(self._tracker.aim + 1)
            commands += self.reassign()
        return Wait(commands) if commands else JUST_WAIT

    @property
    def awaited(self) -> Collection[int]:
        """The live clients with chunks that they have not finished."""
        return [w for w in sorted(self._roster.live) if self._tracker.remaining(w)]

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return (chunks with a replica, chunks, replicas aimed for)."""
        covered = sum(1 for replicas in self._tracker.replicas if replicas)
        return covered, len(self._roster.plan.chunks), self._tracker.aim

    @property
    def summary(self) -> WorkSummary:
        """Results of the round: coverage, losses, times of replicas, orders for the next round."""
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

    def collect(self, now: float) -> CodedAggregator:  # noqa: ARG002  the time changes nothing
        """Fix the finished replicas, and solve for the codewords that are needed."""
        done_wc, self._shares = self._tracker.counting_wc, self._reports.norms.shares()
        part_c = [c for c, share in enumerate(self._shares) if share < 1.0]
        self._roster.statistics.counted_in_part = self._reports.numbers(part_c)
        solution, wire = self._solved(done_wc, self._tracker.blocks)
        self._roster.statistics.pruned = int(done_wc.any(axis=1).sum()) - len(solution.needed)
        return CodedAggregator(self._reports, solution, wire)

    # ---- private

    def _awake(self, w: int, now: float) -> None:
        """Count on a client that makes progress."""
        if self._stalled.progressed(w, now):
            self._tracker.hears(w, hears=True)

    def _waiting_pays(self) -> bool:
        """Whether one more replica of each chunk saves more upload time than the wait costs."""
        roster, tracker, plan = self._roster, self._tracker, self._roster.plan
        if plan.blocks_fixed or tracker.aim >= min(plan.most_blocks, tracker.most_copies()):
            return False
        chunk_s = [roster.assignment.target * seconds for seconds in plan.step_s]
        guessed_s = tracker.wait_s(tracker.aim + 1, chunk_s)
        costs = roster.assignment.replication_costs
        return costs.pays(tracker.aim, guessed_s, max(roster.upload_s))

    def _solved(self, done_wc: NDArray[np.bool_], most_blocks: int) -> tuple[Solution, Wire]:
        """Solve for the shortest codewords, few of them, that the replicas allow within the error limit."""
        plan = self._roster.plan
        all_full = int(done_wc.sum(axis=0).min()) >= most_blocks  # then there is nothing to compensate
        likeness = 0.0 if all_full else self._reports.agreement.likeness()
        for wire, blocks in shapes(most_blocks, short=plan.short_numbers):
            limit = amplification_limit(plan.error_limit, EPSILON[wire])
            code = new_code(plan.code, plan.placement, blocks, self._roster.assignment.seed)
            with guarded(f"code.name {plan.code}, {blocks} blocks", error=ExtensionFailed):
                solution = code.solve(
                    code.prune(done_wc, cost=self._roster.upload_s, limit=limit),
                    correlation=likeness,
                    weights=self._weights(done_wc),
                    samples=[chunk.samples for chunk in plan.chunks],
                    shares=self._shares if min(self._shares) < 1.0 else None,
                )
            if solution.amplification <= limit:
                break
        return solution, wire

    def _weights(self, done_wc: NDArray[np.bool_]) -> tuple[float, ...] | None:
        """Return the weights of chunks, if one is missing that a single client holds."""
        short = bool((self._roster.plan.alone_c & ~done_wc.any(axis=0)).any())
        return self._roster.assignment.weights or None if short else None

    def _accuse(self) -> list[Command]:
        accused = self._reports.accuse()
        return [*accused, *self.reassign()] if accused else []

    def _redirect(self, w: int) -> list[Command]:
        """Let a finisher leave the chunk it has just begun for a less covered one, or choose its next one.

        It receives one command after the other, and may have begun the next chunk before the last command. So
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
        self._roster.statistics.takes += 1  # the first is sent twice
        skip = Skip(first.client, first.round, self._roster.plan.chunks[begun].number)
        return [first, skip, self._roster.take(w, begun), first]
