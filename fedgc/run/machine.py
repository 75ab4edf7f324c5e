"""The state machine of a run, without I/O: gather clients, make a plan, run rounds.

`Run` owns what outlives a round: the clients, the table of chunks, the gate's state, the model's version, the
measured speeds. The driver sends events and executes the returned commands in order. Besides a round's
commands:

    Apply     the running sum is complete: divide by the weight, step the optimizer; that is the new version
    Append    the row of a round, for the history
    Chose     a new plan, what it was made from, and why
    Finished  the run is over

In a masked run, keys are agreed on before a round, and again when they are used up or a client joins. A round
is bound to the model that its clients get, so it waits until the driver has `Published` the model. If shares
of a round's sum were requested and no model came of it, the run ends: no site masks another update of that
model.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from fedgc.config import AUTO, RunConfig
from fedgc.errors import BadPlacement
from fedgc.gates import Decision, Reports
from fedgc.history import PastRound, Speeds
from fedgc.messages import (
    Add,
    Advert,
    Codeword,
    Command,
    Deal,
    Enrolled,
    Event,
    Fetched,
    Joined,
    Leaving,
    Loaded,
    Lost,
    Progress,
    Published,
    Refuse,
    Report,
    StepsGranted,
    Stop,
    Tick,
    Unmask,
    UpdateDue,
    Work,
)
from fedgc.round.machine import Assignment, Round, State
from fedgc.round.masked.key_agreement import KeyAgreement, MaskedExchange, Phase
from fedgc.round.masked.round import MaskedRound
from fedgc.round.plan import Fleet, Plan, make_plan, model_limit_s, upload_s
from fedgc.round.replication import ReplicationTarget
from fedgc.round.scheduler import WorkSummary
from fedgc.round.waiting import Waiting
from fedgc.run.carried import Carried, began_training
from fedgc.run.choice import Choice
from fedgc.run.chunk_table import MOST_PRIVATE, Amounts, Holdings
from fedgc.run.departures import Departures
from fedgc.run.gate import CHECK_BYTES, RunGate
from fedgc.run.given_models import GivenModels
from fedgc.run.outputs import Append, Apply, Chose, Finished, Output, RunState, basis_of, kind_of
from fedgc.run.parts import RunParts
from fedgc.run.planner import PlanRequest
from fedgc.run.returns import Returns
from fedgc.run.rows import awaited_in, caused, chunkless, fault_of, row_of, too_few, with_coverage
from fedgc.run.site_steps import SiteSteps
from fedgc.run.speeds import MeasuredSpeeds, learn_replication

__all__ = ["CHECK_BYTES", "Append", "Apply", "Chose", "Finished", "Output", "Run", "RunParts", "RunState"]

THIS_RUN: Final = "this run"  # if the run has no name
NOT_OF_ROUNDS: Final = frozenset({Enrolled, Advert, Deal, Published, Fetched})
OF_RUNS: Final = frozenset({Joined, Leaving, Lost, Codeword, Loaded, Fetched})
SPENT: Final = "its sum was asked for and made no new model; no site masks one model for two sums"
SUMMED: Final = ("synced", "approximate")  # outcomes with a new model
GIVE_UP_AFTER: Final = 3  # consecutive rounds without any finished work


class Run:
    """The state machine. `handle` every event; `next_tick` says when to send a `Tick`."""

    _planned_for: Fleet | None
    _present: dict[str, Joined]
    _holdings: Holdings
    _fleet: Fleet | None  # rebuilt after a client joins or leaves
    _fault: str  # the first fault of a client; `_barren`: in the consecutive rounds that gave nothing

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
        self.version, self.number = 0, 1  # the number of the current or next round
        self._opened = False  # a key set-up whose end was not yet handled
        self._size = size
        self.speeds, self._replication = MeasuredSpeeds(speeds or Speeds()), ReplicationTarget()
        self._gate = RunGate(config, size)
        self._present, self._most_private = {}, MOST_PRIVATE if config.work == "coded" else math.inf
        self._holdings = Holdings(most_private=self._most_private)
        self._plan: Plan | None = None
        parts = parts or RunParts()
        self._planner, self._key_agreement, self._pins = parts.planner, parts.key_agreement, parts.pins
        self._site = parts.site
        self._orders: Mapping[str, tuple[int, ...]] = {}  # of clients that continue
        self._planned_for = self._fleet = None
        self._carried, self._departures, self._returns = Carried(), Departures(), Returns()
        self._target, self._first_step, self._common_steps = config.round_steps, 0, 0.0
        self._given, self._choice = GivenModels(), Choice(config.clients_per_round, config.seed)
        self._fruitless = self._up_bytes = 0  # consecutive rounds; bytes of the current round
        self._model_since, self._gather_until = now, now + config.start_timeout_s
        self._fault = self._barren = ""
        if resume is not None:
            self._resume(resume)
        self._settled = self._state()

    # ---- input and output

    def handle(self, event: Event) -> tuple[Output, ...]:
        """Return the commands that follow from this event."""
        if self.finished or self._departures.ignores(event, self._present):
            return ()
        current, kind = self.round, type(event)
        outputs: list[Output] = []
        if isinstance(event, Progress | Report) and event.seconds > event.now - self._model_since:
            # No client can have worked longer from this model: such a claim would distort a deadline.
            event = replace(event, seconds=max(0.0, event.now - self._model_since))
        if kind in OF_RUNS:
            outputs += self._entered(event)
        if self._key_agreement is not None:
            outputs += self._key_agreement.noted(event)
        if isinstance(event, StepsGranted | UpdateDue):
            outputs += self._commanded(self._site or SiteSteps(), event)
        elif current is None:
            outputs += self._gathering(event)
        elif kind not in NOT_OF_ROUNDS:
            outputs += self._in_round(current, current.handle(event), event.now)
        return tuple(outputs)

    def _entered(self, event: Event) -> list[Output]:
        """Update the present clients and the measured speeds; return what is refused."""
        if isinstance(event, Joined):
            return self._admit(event)
        if isinstance(event, Lost | Leaving):
            self._fleet = None
        if isinstance(event, Lost):
            self._present.pop(event.client, None)
            self._holdings.lost(event.client)
            self._given.lost(event.client)
            self._carried = self._carried.without(event.client)
        elif isinstance(event, Loaded | Fetched | Codeword) and event.client in self._present:
            self.speeds.heard(event)
            self._up_bytes += event.size_bytes if isinstance(event, Codeword) else 0
        return []

    @property
    def next_tick(self) -> float:
        """When the machine next needs a `Tick`."""
        if self.round:
            return self.round.next_tick
        key_agreement = self._key_agreement
        if key_agreement is None:
            return math.inf if self._rests else min(self._gather_until, self._returns.until)
        if key_agreement.busy or not key_agreement.knows(self.version):
            return key_agreement.next_tick  # until then only answers change anything
        return min(self._gather_until, self._returns.until, key_agreement.next_tick)

    @property
    def waiting(self) -> Waiting:
        """The clients that the run waits for, until when, and how many it needs."""
        if self.round is not None:
            return self.round.waiting
        able = set(self._able())
        absent = self._holdings.amounts.by_client.keys() | self._present.keys() | self._returns.missing
        until = min(self._gather_until, self._returns.until)
        return Waiting(frozenset(absent - able), until, max(0, self._needed()[1] - len(able)))

    @property
    def amounts(self) -> Amounts:
        """How much data the clients have."""
        return self._holdings.amounts

    def state(self) -> RunState:
        """Return the part of a checkpoint of the last synced round that belongs to the run."""
        return self._settled

    # ---- phases

    def _gathering(self, event: Event) -> list[Output]:
        if isinstance(event, Stop):
            return self._finish(event.reason, complete=event.complete)
        if self._rests:
            return []
        if self._site is None and self.number > self.config.rounds:
            return self._done()
        keys = self._key_agreement
        if keys is not None and keys.knows(self.version) and keys.is_spent:
            return self._finish(f"round {self.number - 1}: {SPENT}", complete=False)
        least, wanted = self._needed()
        late = isinstance(event, Tick) and event.now >= self._gather_until
        enough = len(self._present) >= wanted
        awaited = self._returns.awaited(event.now, self._gather_until, enough=enough)
        if (awaited or not enough) and not late:  # looking at every client takes as long as a join
            return []
        able = self._able()
        if len(able) >= wanted:
            return self._gathered(event.now)
        if late:
            without = chunkless(self._holdings.present, self._holdings.refused)
            seen = too_few(self.config.start_timeout_s, least, wanted, len(able), without)
            return self._finish(seen, complete=False)
        return []

    @property
    def _rests(self) -> bool:
        return self._site is not None and self._site.rests

    def _gathered(self, now: float) -> list[Output]:
        """Begin a round, unless this is a site whose consortium asks for none."""
        if self._site is not None:
            self._site.ready = True
        if self._rests:
            return []
        return self._begin(now) if self._key_agreement is None else self._keyed(self._key_agreement, now)

    def _commanded(self, site: SiteSteps, event: StepsGranted | UpdateDue) -> Sequence[Output]:
        """Begin to train what a consortium asks for, or have the present round collect what is there."""
        current = self.round
        if isinstance(event, UpdateDue):
            site.limit = 0
            working = current is not None and current.state is State.WORKING
            return self._in_round(current, current.handle(event), event.now) if current and working else []
        if event.origin != site.origin:
            self.version, self._model_since, self._carried = self.version + 1, event.now, Carried()
            self._first_step, self._common_steps = event.first_step, 0.0
            site.origin, site.done = event.origin, 0
        site.limit, self._gather_until = event.limit, event.now + self.config.start_timeout_s
        return self._gathering(Tick(event.now)) if current is None else []

    def _done(self) -> list[Output]:
        done, without = f"{self.config.rounds} rounds are done", "and no work was ever counted"
        said = done if self.version else caused(self._fault, f"{done}, {without}")
        return self._finish(said, complete=self.version > 0)

    def _needed(self) -> tuple[int, int]:
        """Return how many clients a round needs at least, and how many the next one waits for."""
        least = self._key_agreement.federation.quorum if self._key_agreement else 1
        return least, max(least, 1 if self._begun else self.config.min_clients)

    def _able(self) -> list[str]:
        """Return the clients that stay, have chunks to work on and, in a masked run, keys."""
        keys, leaving = self._key_agreement, self._departures.leaving
        able = [each for each, held in self._holdings.present.items() if held and each not in leaving]
        return [client for client in able if keys is None or client in keys.enrolled]

    def _keyed(self, key_agreement: KeyAgreement, now: float) -> list[Output]:
        """Begin a masked round if its keys are ready, else set them up, with a limited number of attempts."""
        if key_agreement.busy or not key_agreement.knows(self.version):
            return []
        self._fruitless += self._opened and key_agreement.phase is Phase.IDLE
        if self._fruitless >= GIVE_UP_AFTER:
            return self._finish(
                f"no keys after {GIVE_UP_AFTER} set-ups: {key_agreement.reason}", complete=False
            )
        self._opened, self._fleet = False, None
        if key_agreement.stands_for(self._able()) and (self._carried.clients or not key_agreement.newcomers):
            return self._begin(now)
        self._carried, self._opened = self._carried.anew(), True
        return [*key_agreement.open(now, self.number)]

    def _in_round(self, current: Round, commands: Sequence[Command], now: float) -> Sequence[Output]:
        """Return the round's commands, and settle the round once it is closed."""
        if self._key_agreement is not None:
            self._note(self._key_agreement, commands)
        return commands if current.outcome is None else [*commands, *self._settle(current, now)]

    def _note(self, key_agreement: KeyAgreement, commands: Sequence[Command]) -> None:
        """Note the model that each client gets, and the clients that sent a vector."""
        for each in commands:
            if isinstance(each, Add):
                key_agreement.supplied(each.client)
            elif isinstance(each, Unmask):
                key_agreement.unmasks()
            elif isinstance(each, Work):
                self._given.sent(each.client, each.version)

    def _begin(self, now: float) -> list[Output]:
        """Make a new plan if the old one no longer fits, then give work to the clients of the round."""
        outputs: list[Output] = []
        anew = self._plan is None or self._others_are_there(self._plan)
        try:
            plan = (
                self._plan
                if self._plan and self._carried.clients and not anew
                else self._replanned(anew=anew)
            )
        except BadPlacement as error:  # these clients cannot work together; others might
            return self._finish(str(error), complete=False)
        if plan is not self._plan:
            masked = self._key_agreement is not None
            self._carried = self._carried.in_plan(self._plan, plan, masked=masked)
            outputs.append(Chose(self.number, basis_of(plan, self._planner, self._size), plan.reason))
        self._plan = plan
        self._planned_for, self._begun = self._here(), True
        asked = self._choice.among(plan.clients, self.number, self._carried.clients)
        if asked is not None:
            plan = make_plan(self._here(), self.speeds.speeds(), self.config, steps=plan.steps, asked=asked)
        if self._site is not None:
            self._target = self._site.within(self.config.round_steps)
        exchange = (
            None if self._key_agreement is None else self._exchange_drawn(self._key_agreement, plan.clients)
        )
        assignment = Assignment(
            self.number, self.version, self._target, self.config.seed, self._carried.clients,
            rounds_left=max(0, self.config.rounds - self.number),
            weights=self._planner.weights(plan) if self._planner and self.config.work == "coded" else (),
            orders=self._orders, first_step=self._first_step, common_steps=self._common_steps,
            most_steps=self.config.most_steps, loading=self._carried.loading, reached=self._carried.reached,
            replication_costs=self._replication.replication_costs(kind_of(plan), self._target),
            upload_s=upload_s(map(self.speeds.up_bytes_s, plan.clients), plan.update_bytes),
            model_limit_s=model_limit_s(map(self.speeds.down_bytes_s, plan.clients), self._size),
            pinned={each: pin for each in plan.clients if (pin := self._pins.of(each)) is not None},
            forced_from=self._departures.forced_from, closes=dict(self._departures.closes),
        )  # fmt: skip
        self._up_bytes = 0
        self.round = (
            Round(plan, assignment, self._decide)
            if exchange is None
            else MaskedRound(plan, assignment, self._decide, exchange)
        )
        present = [
            each for each in self._present.values() if not plan.chosen_from or each.client in plan.held
        ]
        for joined in present:
            if joined.kept:  # counts once
                self._present[joined.client] = replace(joined, kept=())
        return [*outputs, *self._in_round(self.round, self.round.start(now, present), now)]

    def _exchange_drawn(self, key_agreement: KeyAgreement, clients: Sequence[str]) -> MaskedExchange:
        """Begin an exchange, or continue that of a skipped round.

        Shared momentum must be the same for all members: a client without the previous model is left out of
        this exchange. If too few have it, the exchange is drawn without momentum.
        """
        if not self._carried.clients and self._common_steps:
            led = self._given.having(self.version - 1, clients)
            if key_agreement.knows_before and key_agreement.stands_for(led):
                clients = led
            else:
                self._common_steps = 0.0
                self._carried = Carried()  # steps with the old momentum do not count
        steps = (self._first_step, self._common_steps)
        return key_agreement.draw(clients, steps, again=bool(self._carried.clients))

    def _replanned(self, *, anew: bool) -> Plan:
        """Return the plan for the next round: the present one if it still fits."""
        is_open = self.config.replicas == AUTO and self.config.work == "coded" and not self._key_agreement
        if self._planner and is_open:
            left = max(1, self.config.rounds - self.number + 1)
            fleet, speeds = self._here(), self.speeds.speeds()
            return self._planner.plan(PlanRequest(self.number, left, fleet, speeds, self._plan, anew))
        # Moved chunks would start again; rounds of a sample have plans of their own, by the newest speeds
        stays = self._carried.clients or self.config.clients_per_round
        if self._plan is None or anew or (not stays and self.speeds.differ(self._plan)):
            return make_plan(self._here(), self.speeds.speeds(), self.config, steps=self.config.round_steps)
        return self._plan

    def _settle(self, over: Round, now: float) -> list[Output]:
        """Handle a closed round, and begin the next one."""
        outputs: list[Output] = []
        outcome = over.outcome or "stopped"
        self._learn(over, summary := over.summary)
        self._fault = self._fault or fault_of(over)
        synced = outcome in SUMMED
        self.round, self.number = None, self.number + 1
        self._orders = {**self._orders, **summary.orders}
        if synced or outcome == "skipped":
            self._gate.keep()
        self._note_nothing(over if (nothing := outcome in ("empty", "aborted")) else None)
        if synced and over.result:
            since = began_training(self.config.fragments, over, now)
            self.version, self._model_since = self.version + 1, since
            outputs.append(Apply(self.number - 1, self.version, over.result.weight, outcome))
            self._first_step += self._target
            self._common_steps = over.result.steps if self.config.alpha < 1 else 0.0
            self._gate.last_sync = (self._up_bytes, over.closed_at - over.started_at - over.working_s)
        if not nothing:
            self._target = self.config.round_steps + (0 if synced else self._target)
        if synced:
            self._settled = self._state()
        self._carried = (
            Carried()
            if synced
            else Carried.left_by(over, summary, self._present.keys() & over.plan.held.keys())
        )
        bare = row_of(over, summary, coded=self.config.work == "coded")
        row = with_coverage(bare, over, self._holdings, self._present)
        if self._planner and synced and over.assignment.target == over.plan.steps:  # others took longer
            self._planner.learn(PastRound(self.config.resume or self.config.run or THIS_RUN, row))
        outputs.append(Append(row, awaited_in(over)))
        return outputs + self._next(over, now)

    def _note_nothing(self, over: Round | None) -> None:
        if over is not None and self._site is not None and not self._site.limit:
            return  # the consortium has ended it early
        found = (self._fruitless + 1, self._barren or fault_of(over)) if over else (0, "")
        self._fruitless, self._barren = found

    def _next(self, over: Round, now: float) -> list[Output]:
        if over.outcome == "stopped":
            return self._finish(over.reason, complete=over.completes)
        if self._fruitless == GIVE_UP_AFTER:
            why = caused(self._barren or over.reason, f"{GIVE_UP_AFTER} rounds in a row gave nothing")
            return self._finish(why, complete=False)
        self._gather_until = now + self.config.start_timeout_s
        return self._gathering(Tick(now))

    def _finish(self, reason: str, *, complete: bool) -> list[Output]:
        self.finished = True
        return [Finished(reason, complete)]

    # ---- clients and plan

    def _admit(self, event: Joined) -> list[Output]:
        """Enter a client and its chunks; a plan leaves out those that differ from what others announce."""
        refused = self._holdings.announced(event.client, event.holds).refused
        self._present[event.client], self._fleet = event, None
        self._returns.missing.discard(event.client)
        self._given.lost(event.client)
        self._carried = self._carried.without(event.client)
        return [Refuse(event.client, self.number, refused)] if refused else []

    def _here(self) -> Fleet:
        self._fleet = self._fleet or self._counted()
        return self._fleet

    def _counted(self) -> Fleet:
        """Return the present clients that are not leaving, sorted by identity.

        The order of joining differs after every resume; with a stable order, clients are offered the chunks
        that they have already finished.
        """
        deaf = any(not joined.live for joined in self._present.values())
        there = self._present.keys() if self._key_agreement is None else set(self._key_agreement.members)
        held, staying = self._holdings.present, self._present.keys() - self._departures.leaving
        holds = {client: held[client] for client in sorted(staying) if client in there}
        return Fleet(holds, self._holdings.chunks, self._size, deaf)

    def _learn(self, over: Round, summary: WorkSummary) -> None:
        self._departures.closed(over.closed_at, forced=over.forced)
        if self._site is not None and over.outcome in SUMMED:
            self._site.count(over, summary.losses)
        self.speeds.learn(over)
        if over.outcome in SUMMED and not over.assignment.carried:
            learn_replication(self._replication, over, summary)

    def _others_are_there(self, plan: Plan) -> bool:
        if self._fleet is not None and self._fleet is self._planned_for:
            return False
        fleet = self._here()
        return plan.held != {client: fleet.holds[client] for client in fleet.able}

    def _decide(self, reports: Reports) -> Decision:
        step, is_last = self._first_step + self._target, self.number == self.config.rounds
        return self._gate.decide(reports, self.round.plan if self.round else None, step, is_last=is_last)

    def _state(self) -> RunState:
        return RunState(
            round=self.number,
            version=self.version,
            gate=self._gate.write(),
            chunks=self._holdings.known(),
            next_chunk=self._holdings.next_number,
            step_s=tuple(self.speeds.step_s().items()),
            first_step=self._first_step,
            common_steps=self._common_steps,
            clients=tuple(sorted(self._present.keys() - self._departures.leaving)),
            asked=tuple(sorted(self._choice.asked)),
        )

    def _resume(self, state: RunState) -> None:
        self.number, self.version = state.round, state.version
        self._first_step, self._common_steps = state.first_step, state.common_steps
        self._gate.read(state.gate)
        self._returns = Returns(state.clients)
        self._choice.asked.update(state.asked)
        self._holdings = Holdings(state.chunks, state.next_chunk, most_private=self._most_private)
        for client, step_s in state.step_s:
            self.speeds.worked(client, step_s)
