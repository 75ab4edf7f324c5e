"""The run as a machine: clients gather, a plan is made, a round is run, its result is applied, and again.

`Run` owns what outlives a round: who is there, the table of chunks, the gate's state, the model's version,
the speeds measured so far. Like the round it does no I/O: the driver sends events and carries out what comes
back, in the order in which it comes. Beside a round's commands these are

    Apply     the running sum is complete: divide by the weight, step the optimizer, that is the new version
    Append    one round's row, to be kept
    Chose     a new plan, what it was made from, and why
    Finished  nothing more will come

In a masked run keys are set up before a round, and anew when they are used up or somebody came (`keying`);
a round is bound to the model that its clients are sent, so it waits until the driver has `Published` that.
Where shares of a round's sum were asked for and no other model came of it, the run ends: of that model no
site masks another update.

May import: tuner and below.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fedgc.codes import Wire, packed_bytes
from fedgc.config import AUTO, RunConfig
from fedgc.errors import BadPlacement, BadSetting
from fedgc.gates import Decision, Reports
from fedgc.history import ClientRow, PastRound, RoundRow, Speeds
from fedgc.messages import (
    Add,
    Advert,
    Codeword,
    Command,
    Deal,
    Enrolled,
    Event,
    Joined,
    Loaded,
    Lost,
    Outcome,
    Progress,
    Published,
    Refuse,
    Report,
    Stop,
    Tick,
    Unmask,
    Work,
)
from fedgc.round.machine import Assignment, Round
from fedgc.round.masked.key_agreement import KeyAgreement, MaskedExchange, Phase
from fedgc.round.masked.round import MaskedRound
from fedgc.round.plan import UNKNOWN_LINE, Fleet, Plan, make_plan, model_limit_s, upload_s
from fedgc.round.replication import ReplicationTarget
from fedgc.round.scheduler import WorkSummary
from fedgc.run.chunk_table import Holdings, Known
from fedgc.run.planner import Planner, PlanRequest
from fedgc.run.speeds import MeasuredSpeeds

REPLAN_RATIO: Final = 1.5  # a client this much faster or slower than planned for moves chunks
THIS_RUN: Final = "this run"  # where it has no name of its own
CHECK_BYTES: Final = 300  # of a client's report and of the command to carry on, as lines of a session
OF_KEYS: Final = frozenset({Enrolled, Advert, Deal, Published})  # events that are no round's
OF_RUNS: Final = frozenset({Joined, Lost, Codeword, Loaded})  # events that are more than a round's
SPENT: Final = "its sum was asked for and made no new model; no site masks one model for two sums"
GIVE_UP_AFTER: Final = 3  # rounds in a row in which nobody finished anything


@dataclass(frozen=True, slots=True)
class Apply:
    """Make model `version` out of the running sum: divided by `weight`, it is the mean update."""

    round: int
    version: int
    weight: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Append:
    """Keep this row."""

    row: RoundRow


@dataclass(frozen=True, slots=True)
class Chose:
    """From this round on another plan holds: what it was made from, and why."""

    round: int
    basis: Mapping[str, object]
    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is over; `complete` says whether it did all its rounds."""

    reason: str
    complete: bool


Output = Command | Apply | Append | Chose | Finished


@dataclass(frozen=True, slots=True)
class RunState:
    """What a resumed run needs: the round to go on with, its version, and what was learnt of the clients.

    `gate` is the gate's state as JSON. `first_step` and `common_steps` are those of `Work`. Chunks keep
    their numbers, and the next one that is new gets `next_chunk`.
    """

    round: int
    version: int
    gate: str
    chunks: tuple[Known, ...]
    next_chunk: int
    step_s: tuple[tuple[str, float], ...]
    first_step: int
    common_steps: float


@dataclass(frozen=True, slots=True)
class _Left:
    """What a round without an exchange leaves to the next: clients that go on from where they are.

    A client keeps its steps for as long as it works on the same chunks from the same model, whether it is
    told to carry on (after a skipped round) or given that work anew (where nothing of it could be had).
    """

    carried: frozenset[str] = frozenset()  # those that are told to carry on
    loading: frozenset[str] = frozenset()  # of these, those whose model may be on its way still
    reached: Mapping[str, int] = field(default_factory=dict)  # local work: the steps that they have told

    def without(self, client: str) -> "_Left":
        """Forget a client."""
        reached = {other: steps for other, steps in self.reached.items() if other != client}
        return _Left(self.carried - {client}, self.loading - {client}, reached)

    def among(self, clients: Collection[str]) -> "_Left":
        """Forget all others."""
        reached = {client: steps for client, steps in self.reached.items() if client in clients}
        return _Left(self.carried.intersection(clients), self.loading.intersection(clients), reached)

    def anew(self) -> "_Left":
        """Give all of them work anew; they keep the steps that they have done."""
        return _Left(reached=self.reached)


@dataclass(frozen=True, slots=True)
class RunParts:
    """What a run works with: a planner where settings leave the code to it, keys where updates are masked."""

    planner: Planner | None = None
    key_agreement: KeyAgreement | None = None


class Run:
    """The machine. `handle` every event; `next_tick` says when to send a `Tick`; `finished` when to stop."""

    _planned_for: Fleet | None
    _present: dict[str, Joined]
    _holdings: Holdings
    _fleet: Fleet | None  # made anew after somebody came or went
    _fault: str  # the first that a client had

    def __init__(
        self,
        config: RunConfig,
        *,
        now: float,
        size: int,
        speeds: Speeds | None = None,
        resume: RunState | None = None,
        parts: RunParts | None = None,
    ) -> None:
        """Start to gather clients; `size` is the number of values in the model's vector."""
        self.config = config
        self.round: Round | None = None
        self.finished = self._begun = False
        self.version, self.number = 0, 1  # the number is that of the round that runs, or runs next
        self._opened = False  # a set-up of keys whose end was not looked at
        self._size = size
        self._speeds, self._replication = MeasuredSpeeds(speeds or Speeds()), ReplicationTarget()
        self._gate = config.new_gate()
        self._gate_state = self._gate_next = self._gate.init()
        self._present, self._holdings = {}, Holdings()
        self._plan: Plan | None = None
        parts = parts or RunParts()
        self._planner, self._key_agreement = parts.planner, parts.key_agreement
        self._orders: Mapping[str, tuple[int, ...]] = {}  # of clients that carry on where they stopped
        self._planned_for = self._fleet = None
        self._target = config.round_steps
        self._left = _Left()
        self._first_step, self._common_steps = 0, 0.0
        self._last_sync: tuple[int, float] | None = None  # bytes up and seconds of the last exchange
        self._given: dict[str, Collection[int]] = {}  # masked: models that each client was sent of late
        self._fruitless = self._up_bytes = 0  # rounds in a row; bytes of the round under way
        self._started, self._gather_until = now, now + config.start_timeout_s
        self._fault = ""
        if resume is not None:
            self._resume(resume)
        self._settled = self._state()

    # ---- in and out

    def handle(self, event: Event) -> tuple[Output, ...]:
        """Return what follows from this event."""
        if self.finished:
            return ()
        current, kind = self.round, type(event)
        outputs: list[Output] = []
        if isinstance(event, Progress | Report) and event.seconds > event.now - self._started:
            # Nobody works for longer than the run lasts: a deadline would follow from such a claim.
            event = replace(event, seconds=max(0.0, event.now - self._started))
        if kind in OF_RUNS:
            event, refused = self._entered(event)
            outputs += refused
        if self._key_agreement is not None:
            outputs += self._key_agreement.noted(event)
        if current is None:
            outputs += self._gathering(event)
        elif kind not in OF_KEYS:
            outputs += self._in_round(current, current.handle(event), event.now)
        return tuple(outputs)

    def _entered(self, event: Event) -> tuple[Event, list[Output]]:
        """Keep in mind who is there, and how fast what came has come; return what the round is to hear."""
        if isinstance(event, Joined):
            return self._admit(event)
        if isinstance(event, Lost):
            self._present.pop(event.client, None)
            self._holdings.lost(event.client)
            self._given.pop(event.client, None)
            self._fleet = None
            self._left = self._left.without(event.client)
        elif isinstance(event, Loaded) and event.client in self._present:
            self._speeds.received(event.client, event.size_bytes, event.seconds)
        elif isinstance(event, Codeword) and event.client in self._present:
            self._speeds.sent(event.client, event.size_bytes, event.seconds)
            self._up_bytes += event.size_bytes
        return event, []

    @property
    def next_tick(self) -> float:
        """When the machine next wants to hear the time."""
        if self.round:
            return self.round.next_tick
        key_agreement = self._key_agreement
        if key_agreement is None:
            return self._gather_until
        if key_agreement.busy or not key_agreement.knows(self.version):
            return (
                key_agreement.next_tick
            )  # till then no time that passes changes anything: answers must be heard
        return min(self._gather_until, key_agreement.next_tick)

    def state(self) -> RunState:
        """Return what a checkpoint of the last synced round needs."""
        return self._settled

    # ---- phases

    def _gathering(self, event: Event) -> list[Output]:
        if isinstance(event, Stop):
            return self._finish(event.reason, complete=False)
        if self.number > self.config.rounds:
            return self._done()
        if (
            self._key_agreement is not None
            and self._key_agreement.knows(self.version)
            and self._key_agreement.is_spent
        ):
            return self._finish(f"round {self.number - 1}: {SPENT}", complete=False)
        able = self._able()
        least = self._key_agreement.federation.quorum if self._key_agreement else 1
        wanted = max(least, 1 if self._begun else self.config.min_clients)
        late = isinstance(event, Tick) and event.now >= self._gather_until
        if len(able) >= wanted:
            return (
                self._begin(event.now)
                if self._key_agreement is None
                else self._keyed(self._key_agreement, event.now)
            )
        if late:
            return self._finish(
                f"waited {self.config.start_timeout_s:g} s for {wanted} clients, saw {len(able)}"
                + self._chunkless()
                + fewer_would_do(len(able), least, wanted),
                complete=False,
            )
        return []

    def _chunkless(self) -> str:
        """Say how many are here for nothing."""
        count = sum(not joined.holds for joined in self._present.values())
        why = f" ({self._left_out})" if self._left_out else ""
        return f", and {count} that hold no chunk{why}" if count else ""

    @property
    def _left_out(self) -> str:
        """Say whose data was refused, and why the first one's."""
        refused = self._holdings.refused
        if not refused:
            return ""
        count = f"{len(refused)} clients were" if len(refused) > 1 else "1 client was"
        client, why = next(iter(refused.items()))
        return f"{count} refused data: {client}: {why}"

    def _done(self) -> list[Output]:
        done = f"{self.config.rounds} rounds are done"
        if self.version:
            return self._finish(done, complete=True)
        return self._finish(
            f"{done}, and no work was ever counted; {self._fault}".rstrip("; "), complete=False
        )

    def _able(self) -> list[str]:
        """Return the clients that have something to work on and, in a masked run, a site's keys."""
        able = [client for client, joined in self._present.items() if joined.holds]
        return [
            client for client in able if self._key_agreement is None or client in self._key_agreement.enrolled
        ]

    def _keyed(self, key_agreement: KeyAgreement, now: float) -> list[Output]:
        """Begin a masked round where keys stand for it, else set them up; a few times, if need be."""
        if key_agreement.busy or not key_agreement.knows(self.version):
            return []
        self._fruitless += self._opened and key_agreement.phase is Phase.IDLE
        if self._fruitless >= GIVE_UP_AFTER:
            return self._finish(
                f"no keys after {GIVE_UP_AFTER} set-ups: {key_agreement.reason}", complete=False
            )
        self._opened, self._fleet = False, None
        if key_agreement.stands_for(self._able()) and (self._left.carried or not key_agreement.newcomers):
            return self._begin(now)
        self._left, self._opened = self._left.anew(), True
        return [*key_agreement.open(now, self.number)]

    def _in_round(self, current: Round, commands: Sequence[Command], now: float) -> Sequence[Output]:
        """Pass on what the round says, and settle it once it is closed."""
        if self._key_agreement is not None:
            self._note(self._key_agreement, commands)
        return commands if current.outcome is None else [*commands, *self._settle(current, now)]

    def _note(self, key_agreement: KeyAgreement, commands: Sequence[Command]) -> None:
        """Keep in mind who was given which model, and who has sent a vector."""
        for each in commands:
            if isinstance(each, Add):
                key_agreement.supplied(each.client)
            elif isinstance(each, Unmask):
                key_agreement.unmasks()
            elif isinstance(each, Work):
                older = self._given.get(each.client, ())
                self._given[each.client] = {
                    each.version,
                    *(version for version in older if version >= each.version - 1),
                }

    def _begin(self, now: float) -> list[Output]:
        """Plan where the plan no longer fits, then give work to everybody."""
        outputs: list[Output] = []
        anew = self._plan is None or self._others_are_there(self._plan)
        try:
            plan = (
                self._plan if self._plan and self._left.carried and not anew else self._replanned(anew=anew)
            )
        except BadPlacement as error:  # these clients cannot do this work together: others might have
            return self._finish(str(error), complete=False)
        if plan is not self._plan:
            self._left = self._left_in(plan)
            outputs.append(Chose(self.number, self._basis(plan), plan.reason))
        self._plan = plan
        self._planned_for = self._here()
        self._begun = True
        left = self.config.rounds - self.number
        exchange = (
            None if self._key_agreement is None else self._exchange_drawn(self._key_agreement, plan.clients)
        )
        assignment = Assignment(
            self.number,
            self.version,
            self._target,
            self.config.seed,
            self._left.carried,
            rounds_left=left,
            weights=self._planner.weights(plan) if self._planner and self.config.work == "coded" else (),
            orders=self._orders,
            first_step=self._first_step,
            common_steps=self._common_steps,
            most_steps=self.config.most_steps,
            loading=self._left.loading,
            reached=self._left.reached,
            replication_costs=self._replication.replication_costs(_kind_of(plan), self._target),
            upload_s=upload_s(map(self._speeds.up_bytes_s, plan.clients), plan.update_bytes),
            model_limit_s=model_limit_s(map(self._speeds.down_bytes_s, plan.clients), self._size),
        )
        self._up_bytes = 0
        self.round = (
            Round(plan, assignment, self._decide)
            if exchange is None
            else MaskedRound(plan, assignment, self._decide, exchange)
        )
        present = list(self._present.values())
        for joined in present:
            if joined.kept:  # counts once
                self._present[joined.client] = replace(joined, kept=())
        return [*outputs, *self._in_round(self.round, self.round.start(now, present), now)]

    def _exchange_drawn(self, key_agreement: KeyAgreement, clients: Sequence[str]) -> MaskedExchange:
        """Begin an exchange, or go on with that of a skipped round.

        Shared momentum must lead all in it alike: who has not seen the model before is left out of this
        exchange. Where too few have, it leads nobody.
        """
        if not self._left.carried and self._common_steps:
            led = [client for client in clients if self.version - 1 in self._given.get(client, ())]
            if key_agreement.knows_before and key_agreement.stands_for(led):
                clients = led
            else:
                self._common_steps = 0.0
                self._left = _Left()  # steps that were led by it are not what is asked for now
        steps = (self._first_step, self._common_steps)
        return key_agreement.draw(clients, steps, again=bool(self._left.carried))

    def _left_in(self, plan: Plan) -> _Left:
        """Return what is left of a skipped round: whoever is given other chunks in this plan begins anew."""
        if self._plan is None:
            return _Left()
        before, now = self._plan.shares, plan.shares
        left = self._left.among({client for client in now if now[client] == before.get(client)})
        same = self._key_agreement is None and plan.pool == self._plan.pool  # what only work tells
        return left if same else left.anew()

    def _replanned(self, *, anew: bool) -> Plan:
        """Return the plan for the next round: the present one itself where it still fits."""
        steps = self.config.round_steps
        is_open = self.config.replicas == AUTO and self.config.work == "coded" and not self._key_agreement
        if self._planner and is_open:
            left = self.config.rounds - self.number + 1
            fleet, speeds = self._here(), self._speeds.speeds()
            return self._planner.plan(PlanRequest(self.number, left, fleet, speeds, self._plan, anew))
        if self._plan is None or anew or self._speeds_changed(self._plan):
            return make_plan(self._here(), self._speeds.speeds(), self.config, steps=steps)
        return self._plan

    def _basis(self, plan: Plan) -> dict[str, object]:
        """Return what a plan was made from, and what it came to, as plain values."""
        return {
            **(self._planner.basis if self._planner else {}),
            "chunks": len(plan.chunks),
            "numbers": self._size,
            "free": all(len(held) == len(plan.chunks) for held in plan.held.values()),
            "replicas": plan.placement.replicas,
            "most_blocks": plan.most_blocks,
            "deadline_s": plan.deadline_s,
            "loads": dict(zip(plan.clients, plan.placement.loads, strict=True)),
            "step_s": dict(zip(plan.clients, plan.step_s, strict=True)),
            "measured": plan.measured,
            "model_bytes": 4 * self._size,  # what plain averaging would send of a model, each way
        }

    def _settle(self, over: Round, now: float) -> list[Output]:
        """Draw the consequences of a closed round, and begin the next one."""
        outputs: list[Output] = []
        outcome = over.outcome or "stopped"
        summary = over.summary
        self._learn(over, summary)
        self._fault = self._fault or _fault_of(over)
        synced = outcome in ("synced", "approximate")
        self.round = None
        self._orders = {**self._orders, **summary.orders}
        self.number += 1
        if outcome in ("synced", "approximate", "skipped"):
            self._gate_state = self._gate_next
        nothing = outcome in ("empty", "aborted")
        self._fruitless = self._fruitless + 1 if nothing else 0
        if synced and over.result:
            self.version += 1
            outputs.append(Apply(self.number - 1, self.version, over.result.weight, outcome))
            self._first_step += self._target
            self._common_steps = over.result.steps if self.config.alpha < 1 else 0.0
            self._last_sync = (self._up_bytes, over.closed_at - over.started_at - over.working_s)
        if not nothing:
            self._target = self.config.round_steps + (0 if synced else self._target)
        if synced:
            self._settled = self._state()
        self._left = _Left() if synced else self._left_by(over, summary)
        row = self._with_coverage(_row(over, summary, coded=self.config.work == "coded"), over)
        if synced and over.assignment.target == over.plan.steps:  # others last longer than was predicted
            self._learned(row)
        outputs.append(Append(row))
        return outputs + self._next(over, now)

    def _with_coverage(self, row: RoundRow, over: Round) -> RoundRow:
        """Say how much of the run's data counted; a client whose data was refused had a fault."""
        short, refused = set(row.short), self._holdings.refused
        summed = row.outcome in ("synced", "approximate")
        there = (chunk for chunk in over.plan.chunks if self._holdings.knows(chunk.number))
        counted = sum(chunk.samples for chunk in there if chunk.number not in short)
        planned = tuple(
            replace(each, refused=each.refused + 1) if each.client in refused else each
            for each in row.clients
        )
        idle = [client for client in refused if client in self._present and client not in over.plan.clients]
        others = tuple(ClientRow(client, refused=1, failure=refused[client]) for client in idle)
        return replace(
            row,
            clients=planned + others,
            known_samples=self._holdings.samples,
            counted_samples=counted if summed else 0,
            left_out=self._left_out,
        )

    def _learned(self, row: RoundRow) -> None:
        if self._planner is not None:
            self._planner.learn(PastRound(self.config.resume or self.config.run or THIS_RUN, row))

    def _left_by(self, over: Round, summary: WorkSummary) -> _Left:
        """Return what a round leaves that had no exchange: after a skipped one all are told to carry on."""
        left = _Left(frozenset(self._present), over.loading, summary.reached)
        return left if over.outcome == "skipped" else left.anew()

    def _next(self, over: Round, now: float) -> list[Output]:
        if over.outcome == "stopped":
            return self._finish(over.reason, complete=False)
        if self._fruitless == GIVE_UP_AFTER:
            said = _fault_of(over) or over.reason
            return self._finish(
                f"{GIVE_UP_AFTER} rounds in a row gave nothing; {said}".rstrip("; "), complete=False
            )
        self._gather_until = now + self.config.start_timeout_s
        return self._gathering(Tick(now))

    def _finish(self, reason: str, *, complete: bool) -> list[Output]:
        self.finished = True
        return [Finished(reason, complete)]

    # ---- what is known

    def _admit(self, event: Joined) -> tuple[Joined, list[Output]]:
        """Enter a client and its chunks; a shared chunk that others announced otherwise is left out."""
        found = self._holdings.announced(event.client, event.holds)
        admitted = replace(event, holds=found.holds) if found.refused else event
        self._present[event.client] = admitted
        self._fleet = None
        self._left = self._left.without(event.client)
        return admitted, [Refuse(event.client, self.number, found.refused)] if found.refused else []

    def _here(self) -> Fleet:
        if self._fleet is None:
            self._fleet = self._counted()
        return self._fleet

    def _counted(self) -> Fleet:
        """Return who is here, in the order of their identities.

        Not in the order in which they joined, which is another after every resume: clients that are placed
        alike are offered the chunks that they have finished already.
        """
        deaf = any(not joined.live for joined in self._present.values())
        there = self._present.keys() if self._key_agreement is None else set(self._key_agreement.members)
        held = self._holdings.present
        holds = {client: held[client] for client in sorted(self._present) if client in there}
        return Fleet(holds, self._holdings.chunks, self._size, deaf)

    def _learn(self, over: Round, summary: WorkSummary) -> None:
        for client, step_s in zip(over.plan.clients, over.statistics.step_s, strict=True):
            if step_s:
                self._speeds.worked(client, sum(step_s) / len(step_s))
        for w, seconds in (over.result.unsent_s if over.result else {}).items():
            self._speeds.delayed(over.plan.clients[w], over.plan.update_bytes, seconds)
        solution = over.result.solution if over.result else None
        if solution and over.outcome in ("synced", "approximate") and not over.assignment.carried:
            this, collecting_s = over.assignment, over.closed_at - over.started_at - over.working_s
            self._replication.learn(
                summary.covered_s,
                this.target,
                solution.blocks,
                collecting_s,
                began=this.replication_costs.aim,
            )

    def _others_are_there(self, plan: Plan) -> bool:
        if self._fleet is not None and self._fleet is self._planned_for:
            return False
        fleet = self._here()
        return plan.held != {client: fleet.holds[client] for client in fleet.able}

    def _speeds_changed(self, plan: Plan) -> bool:
        """Whether another placement would serve; never between syncs, where moved chunks start afresh."""
        if self._left.carried:
            return False
        guesses = self._speeds.step_s()
        for client, planned in zip(plan.clients, plan.step_s, strict=True):
            ratio = guesses.get(client, planned) / planned
            if not 1 / REPLAN_RATIO <= ratio <= REPLAN_RATIO:
                return True
        return not plan.measured and guesses.keys() >= set(plan.clients)

    def _decide(self, reports: Reports) -> Decision:
        self._gate_next, decision = self._gate.step(self._gate_state, self._priced(reports))
        if self.number == self.config.rounds:
            return Decision(sync=True, reason="the last round")
        return decision

    def _priced(self, reports: Reports) -> Reports:
        """Add what an exchange and a look at the gate cost, and where the schedule stands.

        Alpha stays 1: a client that is led by shared momentum knows that part of its way exactly, and
        reports what is left without it.
        """
        clients = len(self._plan.clients) if self._plan else 0
        rate = self.config.learning_rate * self.config.rate_share(self._first_step + self._target - 1)
        up_bytes, seconds = self._last_sync or self._unseen_sync(clients)
        return replace(
            reports,
            sync_bytes=up_bytes + clients * 4 * self._size,
            sync_seconds=seconds,
            check_bytes=clients * CHECK_BYTES,
            learning_rate=rate,
        )

    def _unseen_sync(self, clients: int) -> tuple[int, float]:
        """Guess what an exchange costs before there was one."""
        if not self._plan:
            return 0, 0.0
        one_bytes = packed_bytes(self._size, Wire(self._plan.wire))
        waves = -(-clients // self.config.upload_slots)
        known_s = max(self._plan.upload_s)
        return clients * one_bytes, waves * (known_s or one_bytes / UNKNOWN_LINE)

    def _state(self) -> RunState:
        return RunState(
            round=self.number,
            version=self.version,
            gate=json.dumps(self._gate_state),
            chunks=self._holdings.known(),
            next_chunk=self._holdings.next_number,
            step_s=tuple(self._speeds.step_s().items()),
            first_step=self._first_step,
            common_steps=self._common_steps,
        )

    def _resume(self, state: RunState) -> None:
        self.number, self.version = state.round, state.version
        self._first_step, self._common_steps = state.first_step, state.common_steps
        self._gate_state = self._gate_next = _gate_state(state.gate)
        self._holdings = Holdings(state.chunks, state.next_chunk)
        for client, step_s in state.step_s:
            self._speeds.worked(client, step_s)


def _gate_state(text: str) -> Any:  # noqa: ANN401  a gate's own plain values
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSetting(
            f"resume: saw a gate state of {len(text)} characters, needed JSON ({error})"
        ) from error


def fewer_would_do(seen: int, least: int, wanted: int) -> str:
    """Say what begins a run with those that are here, where there are some.

    >>> fewer_would_do(2, 1, 3)
    '; min-clients = 2 begins with them'
    """
    return f"; min-clients = {seen} begins with them" if least <= seen < wanted else ""


def _kind_of(plan: Plan) -> tuple[object, ...]:
    """Rounds of one kind show what more copies cost each other."""
    return plan.clients, len(plan.chunks), plan.most_blocks


def _fault_of(over: Round) -> str:
    """Return the first fault of a client in this round, with the client; nothing where all was well."""
    failures = zip(over.plan.clients, over.statistics.failure, strict=True)
    return next((f"{client}: {failure}" for client, failure in failures if failure), "")


def _row(over: Round, summary: WorkSummary, *, coded: bool) -> RoundRow:
    plan, result = over.plan, over.result
    statistics, solution = over.statistics, result.solution if result else None
    whole = 1 if coded and result else 0  # under masks each client sends one vector for all it did
    losses = summary.losses
    return RoundRow(
        round=over.assignment.number,
        version=over.assignment.version,
        started=over.started_at,
        working_s=over.working_s,
        collecting_s=over.closed_at - over.started_at - over.working_s,
        outcome=over.outcome or "stopped",
        chunks=len(plan.chunks),
        covered=summary.covered,
        short=over.short,
        replicas=plan.placement.replicas,
        blocks=solution.blocks if solution else whole,
        needed=len(solution.needed) if solution else len(result.counted) if result else 0,
        amplification=solution.amplification if solution else None,
        error=over.error,
        loss=sum(losses) / len(losses) if losses else None,
        samples=plan.samples,
        skips=statistics.skips,
        takes=statistics.takes,
        pruned=statistics.pruned,
        repairs=statistics.repairs,
        reason="; ".join(filter(None, [over.reason, *_remarks(over)])),
        clients=tuple(_client_row(over, w) for w in range(len(plan.clients))),
    )


def _remarks(over: Round) -> Iterator[str]:
    """Say what else a person should know of a round."""
    statistics = over.statistics
    if statistics.disputed:
        clients_w = sorted({w for said in statistics.disputed.values() for w in said})
        clients = ", ".join(over.plan.clients[w] for w in clients_w)
        yield f"replicas of {len(statistics.disputed)} chunks differ among {clients}: unknown whose are wrong"


def _client_row(over: Round, w: int) -> ClientRow:
    statistics, step_s = over.statistics, over.statistics.step_s[w]
    mean = sum(step_s) / len(step_s) if step_s else 0.0
    return ClientRow(
        client=over.plan.clients[w],
        finished=statistics.finished[w],
        counted=statistics.counted[w],
        steps=statistics.steps[w],
        busy_s=statistics.busy_s[w],
        step_s=mean if step_s else None,
        spread_s=math.sqrt(sum((each - mean) ** 2 for each in step_s) / len(step_s)) if step_s else None,
        refused=statistics.refused[w],
        failure=statistics.failure[w],
    )
