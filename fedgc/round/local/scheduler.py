"""Local SGD with partial work (FedAvg, McMahan et al. 2017; partial steps as in FedProx, Li et al. 2020).

Each client trains one model on its own data, and any number of steps counts. A round adds `round_steps` local
steps to those since the last exchange. A client reports when it has reached the target, and goes on unless it
is in lockstep or would not receive the command to stop. Once a quorum has reached the target, the gate is
asked. If it skips, all clients continue from where they are. If it decides to exchange, the round waits for
clients that are nearly done, then all send what they have: a straggler its partial steps (as in STSyn, arXiv
2210.07597).

Waiting costs the time of all clients and gains only the steps of the late ones, so it pays only for clients
that are nearly done. The time of a client is known from its earlier steps, and counts from when it has the
model. The window ends with the last client that is due within `patience` times the quorum's time, and at once
if none is due; if nothing is known of the clients, it is all of that time. (The window is that of Decoupled
DiLoCo, arXiv 2604.21428.)

Index w is a client, as in the plan.
"""

import math
from collections.abc import Collection, Container, Mapping, Sequence, Set

from fedgc.gates import Report as Weighed
from fedgc.gates import Reports
from fedgc.messages import Command, Failed, Joined, Progress, Report
from fedgc.round.aggregator import Wait
from fedgc.round.local.aggregator import WeightedMean
from fedgc.round.local.quorum import is_quorum, quorum_of
from fedgc.round.local.reports import StepReports
from fedgc.round.roster import Roster
from fedgc.round.scheduler import Holding, Scheduler, Supply, WorkSummary
from fedgc.round.stalled import StalledClients


class LocalScheduler(Scheduler):
    """Lets every client train on all of its chunks until a quorum has reached the target."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._reports = StepReports(roster)
        self._begun = math.inf
        self._reached = dict(roster.assignment.reached)  # of carried clients, until they get work
        self._stalled = StalledClients(roster)
        self._until: float | None = None  # when the wait before an exchange ends

    def give(self, present: Sequence[Joined], carried: Collection[str] = ()) -> list[Command]:
        """Give clients the round's steps, in addition to those that they kept."""
        given: list[Command] = []
        reports = self._reports
        for event in present:
            since = max(event.now, self._roster.started_at)
            self._begun = min(self._begun, since)
            w = self._roster.w.get(event.client)
            if w is None:
                continue
            steps = self._reached.pop(event.client, reports.kept(w, event))
            if reports.enter(w, event, steps, since).able:
                self._stalled.began(w, since, live=event.live)
                anew = event.client not in carried
                work = reports.work(w, live=event.live, order=reports.numbers(w)) if anew else None
                given.append(work or reports.go_on(w))
        return given

    def lost(self, w: int) -> None:
        """Stop waiting for a lost client."""
        self._stalled.gone(w)
        self._reports.remove(w)

    def leaves(self, w: int) -> bool:
        """Stop waiting for a leaving client's next steps; those that it has done count."""
        state = self._reports.clients.get(w)
        if state is None or not state.able:
            return False
        self._reports.leaves(w)
        return state.steps > 0

    def failed(self, w: int, event: Failed) -> str:
        """Leave out a client that could not do its steps."""
        state = self._reports.clients.get(w)
        if state is None or not state.able:
            return "it was reported before"
        self._stalled.gone(w)
        self._reports.failed(w, event.steps)
        return ""

    def heard(self, event: Progress | Report) -> list[Command]:
        """Take in the steps that a client reports."""
        refused = self._reports.heard(event)
        if not refused and not self._roster.here(event):
            self._stalled.progressed(self._roster.w[event.client], event.now)
        return refused

    def stalled(self, now: float, loading: Container[str]) -> Wait:
        """Wait no longer for clients that make no progress; they are asked for what they have."""
        reports = self._reports
        self._stalled.found(now, loading, lambda w: int(w in reports.staying and w not in reports.arrived))
        return Wait(until=self._stalled.look_at)

    @property
    def supply(self) -> Supply:
        """How much is finished: enough is a quorum at the target. A client may hold unreported steps.

        Clients that are leaving do not count for the quorum; if there is no other, nothing more comes. Where
        late updates count, there is a quorum of all clients besides, also of those that are behind; with
        groups by speed, a quorum of a group is enough.
        """
        if not self._reports.staying and not self._roster.behind:
            done = any(self._reports.clients[w].steps for w in self._reports.able())
            return Supply.ENOUGH if done else Supply.IMPOSSIBLE
        plan, roster, arrived = self._roster.plan, self._roster, self._reports.arrived
        own = 0 if plan.groups else math.ceil(plan.quorum * len(self._counted_on))
        enough = len(arrived) >= own and is_quorum(plan, self._able, arrived | roster.came)
        return Supply.ENOUGH if enough else Supply.SOME

    def reports(self) -> Reports:
        """Return what clients have reported, one report each."""
        reports = self._reports
        reported = ((w, reports.clients[w].report) for w in reports.able())
        items = tuple(
            Weighed(self._roster.plan.clients[w], each.steps, reports.weight(w), each.squared_norm, each.loss)
            for w, each in reported
            if each is not None
        )
        return Reports(items, rounds_left=self._roster.assignment.rounds_left)

    def wait(self, now: float) -> Wait | None:
        """Wait for clients that are nearly done."""
        if self._until is None:
            self._until = now + self._window_s(now)
        return Wait(until=self._until) if self.awaited and now < self._until else None

    @property
    def awaited(self) -> Collection[int]:
        """The clients that can train, make progress and have not reached the target."""
        return self._reports.staying - self._reports.arrived - self._stalled.clients

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return (clients that have reached the target or whose late update came, clients, the quorum)."""
        counted, able = self._reports.arrived | self._roster.came, self._able
        return len(counted), len(able), quorum_of(self._roster.plan, able)

    @property
    def summary(self) -> WorkSummary:
        """Results of the round: chunks with a report, losses, steps."""
        clients = self._reports.clients
        reported = {w: each.report for w, each in clients.items() if each.report is not None}
        covered = {chunk for w in reported for chunk in self._reports.numbers(w)}
        reached = {self._roster.plan.clients[w]: each.steps for w, each in clients.items()}
        return WorkSummary(len(covered), [each.loss for each in reported.values()], reached)

    @property
    def holds(self) -> Mapping[int, Holding]:
        """The steps of every client that can send; a client without a report may still hold some."""
        clients, numbers = self._reports.clients, self._reports.numbers
        return {w: Holding(clients[w].steps, frozenset(numbers(w))) for w in self._reports.able()}

    def collect(self, now: float) -> WeightedMean:
        """Ask clients for their updates."""
        for w, each in self._reports.clients.items():
            self._roster.statistics.finished[w] = each.steps
        return WeightedMean(self._reports, self._roster.plan.wire, now)

    def settle(self, behind: Collection[int], *, final: bool) -> None:
        """Book the steps that no later sum can count."""
        self._reports.settle(behind, final=final)

    @property
    def _counted_on(self) -> Set[int]:
        """The clients in the round that the quorum is a share of."""
        return self._reports.staying - self._stalled.clients

    @property
    def _able(self) -> Set[int]:
        """These, and clients whose updates of earlier rounds count."""
        return self._counted_on | self._roster.behind | (self._roster.came - self._reports.staying)

    def _window_s(self, now: float) -> float:
        """Return how long clients that are due soon still need."""
        plan = self._roster.plan
        longest_s = plan.patience * (now - self._begun)
        if not plan.measured:
            return longest_s
        due_s = [self._due(w) - now for w in self.awaited]
        return max((each for each in due_s if 0 < each <= longest_s), default=0.0)

    def _due(self, w: int) -> float:
        """Return when a client will be done; it starts once it has both its work and the model."""
        state = self._reports.clients[w]
        since = max(state.since, self._roster.model_at.get(w, state.since))
        return since + (self._roster.assignment.target - state.before) * self._roster.plan.step_s[w]
