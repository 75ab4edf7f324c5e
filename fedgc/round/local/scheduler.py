"""Local work: each client trains one model on all that it holds, and any number of steps counts.

A round adds `round_steps` local steps to what was done since the last exchange. A client reports when it
has reached the target, and goes on meanwhile unless it is kept in lockstep or would not hear that it is to
stop. As soon as a quorum has, the gate is asked; if it says skip, everybody carries on from where it stands,
whether it had reached the target or not. If it says exchange, those that are nearly
done are waited for a little, then all send what they have: a client in mid-way its partial steps (as STSyn
counts them, arXiv 2210.07597), one that has lost its state nothing, for it holds no steps.

How long is a little? Waiting costs everybody's time and brings the steps of the late alone, so it pays only
for clients that are about to be done. Of each the time that it needs is known from its past steps, and
counts from when it has the model: the window reaches to the last one that is due within `patience` times the
time the quorum took, and ends at once where none is due; of clients that nothing is known of, it is all of
that time. (The window as such is that of Decoupled DiLoCo, arXiv 2604.21428.)

Index w is a client, as in the plan. May import: collect, effort, plan, gate, messages.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fedgc.gates import Report as Weighed
from fedgc.gates import Reports
from fedgc.messages import Command, Continue, Failed, Joined, Progress, Report, Work
from fedgc.round.coded.aggregator import WeightedMean
from fedgc.round.scheduler import Roster


@dataclass(slots=True)
class _Entry:
    """What is known of a client on the books."""

    steps: int  # that it has told, since the last common model
    before: int = 0  # of these, done before this round
    since: float = 0.0  # when it was given work
    report: Report | None = None
    able: bool = True


class LocalScheduler:
    """The effort of local work."""

    solution = None  # there is nothing to solve

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.sum: WeightedMean | None = None
        self._begun = math.inf
        self._entries: dict[int, _Entry] = {}
        self._reached = dict(roster.assignment.reached)  # until they are given work
        self._until: float | None = None  # when an exchange waits for nobody any more
        holds, chunks = roster.plan.placement.holds, roster.plan.chunks
        self._held = [[chunk for c, chunk in enumerate(chunks) if holds[w, c]] for w in range(len(holds))]

    # ---- who is there

    def begin(self, present: Sequence[Joined]) -> list[Command]:
        """Give everybody the round's steps, on top of those of skipped rounds."""
        return self.give(present, self.roster.assignment.carried)

    def give(self, present: Sequence[Joined], carried: Collection[str] = ()) -> list[Command]:
        """Give these clients the round's steps to do, on top of what they kept."""
        given: list[Command] = []
        for event in present:
            since = max(event.now, self.roster.started_at)
            self._begun = min(self._begun, since)
            w = self.roster.w.get(event.client)
            if w is None:
                continue
            carry = event.client in carried
            steps = self._reached.pop(event.client, self._kept(w, event))
            entry = self._entries[w] = _Entry(steps, steps, since)
            entry.able = self._loads(w, event)
            if entry.able:
                given.append(self._carry_on(w) if carry else self._work(w, live=event.live))
        return given

    def lost(self, w: int) -> bool:
        """Wait for this client no more."""
        return self._entries.pop(w, None) is not None

    def struck(self, w: int, event: Failed) -> str:  # noqa: ARG002  without one chunk it cannot train
        """Leave a client out that could not do its steps."""
        entry = self._entries.get(w)
        if entry is None or not entry.able:
            return "it was said before"
        entry.able, entry.steps = False, 0  # it forgets what it could not go on with
        return ""

    @property
    def live(self) -> Sequence[int]:
        """The clients on the books."""
        return sorted(self._entries)

    def _able(self) -> list[int]:
        return [w for w in self.live if self._entries[w].able]

    # ---- working

    def heard(self, event: Progress | Report) -> list[Command]:
        """Take note of how far a client is."""
        if isinstance(event, Progress):
            return self.roster.refuse(event, "progress of a chunk, this is local work")
        why_not = self._why_not(event)
        if why_not:
            return self.roster.refuse(event, why_not)
        self._book(self.roster.w[event.client], event)
        return []

    def stirred(self) -> list[Command]:
        """Nobody can do another's steps."""
        return []

    @property
    def hopeless(self) -> bool:
        """Whether nobody is left."""
        return not self._able()

    @property
    def ready(self) -> bool:
        """Whether a quorum has reached the target."""
        able = self._able()
        return len(self._there()) >= max(1, math.ceil(self.roster.plan.quorum * len(able)))

    @property
    def some(self) -> bool:
        """Whether there is anybody who may hold steps: those who have told none are asked as well."""
        return not self.hopeless

    def reports(self) -> Reports:
        """Return what clients have told; sources are clients."""
        told = ((w, self._entries[w].report) for w in self._able())
        items = tuple(
            Weighed(self.roster.plan.clients[w], each.steps, each.samples, each.squared_norm, each.loss)
            for w, each in told
            if each is not None
        )
        return Reports(items, rounds_left=self.roster.assignment.rounds_left)

    def more(self, now: float) -> list[Command] | None:
        """Wait for those who are nearly done."""
        if self._until is None:
            self._until = now + self._window_s(now)
        missing = len(self._able()) - len(self._there())
        return [] if missing and now < self._until else None

    @property
    def look_again(self) -> float:
        """The end of the window, once there is one."""
        return math.inf if self._until is None else self._until

    def _there(self) -> list[int]:
        target = self.roster.assignment.target
        return [w for w in self._able() if self._entries[w].steps >= target]

    def _window_s(self, now: float) -> float:
        """Return how long those that are due soon still need."""
        plan = self.roster.plan
        longest_s = plan.patience * (now - self._begun)
        if not plan.measured:
            return longest_s
        late = set(self._able()) - set(self._there())
        due_s = [self._due(w) - now for w in late]
        return max((each for each in due_s if 0 < each <= longest_s), default=0.0)

    def _due(self, w: int) -> float:
        """Return when a client will be done: it has worked since it had both its work and the model."""
        entry = self._entries[w]
        since = max(entry.since, self.roster.model_at.get(w, entry.since))
        return since + (self.roster.assignment.target - entry.before) * self.roster.plan.step_s[w]

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return (clients that have reached the target, clients, the quorum)."""
        able = len(self._able())
        return len(self._there()), able, math.ceil(self.roster.plan.quorum * able)

    @property
    def covered(self) -> int:
        """The chunks on which a client trains that has reported."""
        told = [w for w, entry in self._entries.items() if entry.report is not None]
        return len({chunk.number for w in told for chunk in self._held[w]})

    @property
    def losses(self) -> Sequence[float]:
        """The loss of every client that has reported."""
        return [entry.report.loss for entry in self._entries.values() if entry.report is not None]

    @property
    def reached(self) -> Mapping[str, int]:
        """What clients have told."""
        return {self.roster.plan.clients[w]: entry.steps for w, entry in self._entries.items()}

    @property
    def common_steps(self) -> float:
        """The mean steps of what is in the mean."""
        return self.sum.steps if self.sum else 0.0

    @property
    def covered_s(self) -> Sequence[float]:
        """Nothing is made twice."""
        return ()

    @property
    def next_orders(self) -> Mapping[str, tuple[int, ...]]:
        """There is no order in local work."""
        return {}

    # ---- collecting

    @property
    def holds(self) -> Mapping[int, int]:
        """The steps of every client that can send; one that has told none may hold some."""
        return {w: self._entries[w].steps for w in self._able()}

    def lacks(self, clients_w: Collection[int]) -> tuple[int, ...]:
        """Return the chunks that none of these clients trains on."""
        there = {chunk.number for w in clients_w for chunk in self._held[w]}
        return tuple(chunk.number for chunk in self.roster.plan.chunks if chunk.number not in there)

    def collect(self) -> WeightedMean:
        """Ask everybody for what it has."""
        self.sum = WeightedMean(
            self.roster.plan, self._able(), self.roster.assignment.number, self.roster.plan.wire
        )
        for w, entry in self._entries.items():
            self.roster.statistics.finished[w] = entry.steps
        return self.sum

    def heard_late(self, event: Progress | Report) -> list[Command]:
        """A client tells what it is about to send."""
        refused = self.heard(event)
        if not refused and self.sum is not None and isinstance(event, Report):
            self.sum.holds(self.roster.w[event.client], event.steps)
        return refused

    def returned(self, event: Joined) -> list[Command]:
        """Ask a client again that is back with what it owes; one that has lost it owes nothing more."""
        w = self.roster.w.get(event.client)
        if w is None or self.sum is None:
            return []
        steps = self._kept(w, event)
        entry = self._entries[w] = _Entry(steps, steps, event.now)
        if entry.steps:
            asked = self.sum.ask_again(w)  # a program that was started anew knows of no work
            return [replace(self._work(w, live=event.live), order=()), *asked] if asked else []
        self.sum.lost(w)
        return []

    def without(self, w: int) -> None:
        """Leave the client out."""
        if self.sum is not None:
            self.sum.lost(w)

    def too_slow(self, w: int) -> None:
        """Wait for this client no more."""
        self._entries[w].able = False

    def meanwhile(self) -> list[Command]:
        """Nothing: nobody can stand in for another."""
        return []

    def mend(self) -> list[Command]:
        """Nobody has what another would have sent."""
        return []

    def hurry(self, now: float) -> list[Command]:  # noqa: ARG002  no time makes anybody late here
        """Nobody has what another would have sent."""
        return []

    @property
    def hurry_at(self) -> float:
        """So there is nothing to ask at any time."""
        return math.inf

    def unsent_s(self, now: float) -> Mapping[int, float]:  # noqa: ARG002  nobody is late
        """Nobody is late before the deadline."""
        return {}

    def missing(self) -> tuple[tuple[int, ...], float | None]:
        """Return the chunks on which no client in the mean has trained; what that does, nobody can tell."""
        return self.lacks(self.sum.counted if self.sum else ()), None

    # ---- small print

    def _why_not(self, event: Report) -> str:
        """Return why this report does not count, or nothing."""
        away = self.roster.here(event)
        if away:
            return away
        w = self.roster.w[event.client]
        entry = self._entries.get(w)
        if entry is None or not entry.able:
            return f"client {event.client} is not in round {self.roster.assignment.number}"
        samples = sum(chunk.samples for chunk in self._held[w])
        if event.samples != samples:
            return f"it trains on {event.samples} samples, needed {samples}"
        if event.steps < entry.steps and self.sum is None:
            return f"saw {event.steps} steps, it has told {entry.steps}"
        return ""

    def _book(self, w: int, event: Report) -> None:
        entry, statistics = self._entries[w], self.roster.statistics
        entry.steps, entry.report = event.steps, event
        statistics.steps[w] = max(0, event.steps - entry.before)
        if self.sum is not None:
            statistics.finished[w] = event.steps
        if event.steps:
            step_s = event.seconds / event.steps
            statistics.step_s[w], statistics.busy_s[w] = [step_s], step_s * statistics.steps[w]

    def _kept(self, w: int, event: Joined) -> int:
        """Return the steps that a client still has; those on other chunks than its own are of no use."""
        reached = {each.chunk: each.reached for each in event.kept if each.version == self._version}
        return min(reached.values(), default=0) if reached.keys() == set(self._numbers(w)) else 0

    @property
    def _version(self) -> int:
        return self.roster.assignment.version

    def _loads(self, w: int, event: Joined) -> bool:
        said, needed = {held.name: held for held in event.holds}, self._held[w]
        return bool(needed) and all(c.name in said and c.fits(said[c.name]) for c in needed)

    def _carry_on(self, w: int) -> Continue:
        this, numbers = self.roster.assignment, self._numbers(w)
        return Continue(self.roster.plan.clients[w], this.number, this.target, numbers, self.roster.limit_s)

    def _work(self, w: int, *, live: bool) -> Work:
        this, client, limit_s = self.roster.assignment, self.roster.plan.clients[w], self.roster.limit_s
        names = self.roster.plan.names_w[w]
        return Work(
            client, this.number, this.version, this.target, self._numbers(w), names, this.seed, limit_s,
            kind="local", first_step=this.first_step, common_steps=this.common_steps,
            most_steps=this.most_steps if live else 0, pool=self.roster.plan.pool,
        )  # fmt: skip

    def _numbers(self, w: int) -> tuple[int, ...]:
        return tuple(chunk.number for chunk in self._held[w])
