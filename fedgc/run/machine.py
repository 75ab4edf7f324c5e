"""The state machine of a run, without I/O: gather clients, make a plan, run rounds.

`Run` owns what outlives a round: the clients with their chunks (`clients.py`), the plan (`plans.py`), the
measured speeds, the gate's state, the model's version. The driver sends events and executes the returned
commands in order. Besides a round's commands:

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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import BadPlacement, numbered
from fedgc.gates import Decision, Reports
from fedgc.history import RoundRow, Speeds
from fedgc.messages import (
    SUMMED,
    Advert,
    Codeword,
    Command,
    Deal,
    Enrolled,
    Event,
    Failed,
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
    UpdateDue,
)
from fedgc.round.aggregator import Result
from fedgc.round.machine import Assignment, Round, State
from fedgc.round.masked.key_agreement import KeyAgreement, MaskedExchange, Phase
from fedgc.round.masked.round import MaskedRound
from fedgc.round.plan import Plan
from fedgc.round.scheduler import WorkSummary
from fedgc.round.waiting import Waiting
from fedgc.run.carried import Carried, began_training
from fedgc.run.chunk_table import Amounts
from fedgc.run.clients import Clients
from fedgc.run.common_steps import CommonSteps
from fedgc.run.fruitless_rounds import GIVE_UP_AFTER, FruitlessRounds
from fedgc.run.gate import CHECK_BYTES, RunGate
from fedgc.run.gathering import Gathering
from fedgc.run.late_updates import TOO_LATE, Answer, LateUpdates
from fedgc.run.outputs import Append, Apply, Chose, Finished, Output, RunState
from fedgc.run.parts import RunParts
from fedgc.run.plans import Plans
from fedgc.run.rows import ALL_LEFT, NOTHING, awaited_in, caused, have_left, row_of, with_coverage
from fedgc.run.site_steps import SiteSteps
from fedgc.run.speeds import MeasuredSpeeds

__all__ = ["CHECK_BYTES", "Append", "Apply", "Chose", "Finished", "Output", "Run", "RunParts", "RunState"]

NOT_OF_ROUNDS: Final = frozenset({Enrolled, Advert, Deal, Published, Fetched})
OF_RUNS: Final = frozenset({Joined, Leaving, Lost, Failed, Codeword, Loaded, Fetched})


class Run:
    """The state machine. `handle` every event; `next_tick` says when to send a `Tick`."""

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
        parts = parts or RunParts()
        self.config = config
        self.round: Round | None = None
        self.finished = False
        self.number = 1  # of the current or next round
        self.version = 0
        self.speeds = MeasuredSpeeds(speeds or Speeds())
        self._pins = parts.pins
        self._site = parts.site
        self._key_agreement = parts.key_agreement
        self._clients = Clients(config, size, parts.buffers, parts.key_agreement, resume)
        self._plans = Plans(config, self.speeds, parts.planner, masked=parts.key_agreement is not None)
        self._gate = RunGate(config, size, parts.buffers)
        self._gathering = Gathering(
            config, self._clients, now, keys=parts.key_agreement, resume=resume, fleet=parts.fleet
        )
        self._opened = False  # a key set-up whose end was not yet handled
        self._carried, self._late = Carried(), LateUpdates()
        self._late_asked = 0  # the round with which clients that are behind were asked last
        self._orders: Mapping[str, tuple[int, ...]] = {}  # of clients that continue
        self._target, self._steps = config.round_steps, CommonSteps()
        self.goes_back = False  # the driver makes the next version from an earlier model, not from a step
        self._model_since = now
        self._up_bytes = 0  # of the current round
        self._fruitless = FruitlessRounds()
        if resume is not None:
            self._resume(resume)
        self._settled = self._state()

    # ---- input and output

    def handle(self, event: Event) -> tuple[Output, ...]:
        """Return the commands that follow from this event."""
        if self.finished or self._clients.departures.ignores(event, self._clients.present):
            return ()
        event = self._plausible(event)
        outputs = self._entered(event) if type(event) in OF_RUNS else []
        if self._key_agreement is not None:
            outputs += self._key_agreement.noted(event)
        answer = self._late.handle(event, self.version)
        after = self._dispatched(event) if answer is None else self._answered(answer, event.now)
        return (*outputs, *after)

    def _plausible(self, event: Event) -> Event:
        """Return the event; no client can have worked for longer than it has its model.

        Such a claim would distort a deadline.
        """
        match event:
            case Progress() | Report():
                since = self._late.since(event.client)
                longest_s = max(0.0, event.now - (self._model_since if since is None else since))
                return event if event.seconds <= longest_s else replace(event, seconds=longest_s)
        return event

    def _dispatched(self, event: Event) -> Sequence[Output]:
        """Return what follows for the run, or for its present round."""
        outputs = self._without_late(event.now) if isinstance(event, Tick) else []
        current = self.round
        if self.finished:
            return outputs
        match event:
            case StepsGranted() | UpdateDue():
                outputs += self._commanded(self._site or SiteSteps(), event)
            case _ if current is None:
                outputs += self._gather(event)
            case _ if type(event) not in NOT_OF_ROUNDS:
                outputs += self._in_round(current, current.handle(event), event.now)
        return outputs

    def _entered(self, event: Event) -> list[Output]:
        """Update the present clients and the measured speeds; return what is refused."""
        match event:
            case Joined():
                self._gathering.joined(event.client)
                self._late.lost(event.client)
                self._carried = self._carried.without(event.client)
                refused = self._clients.joined(event)
                return [Refuse(event.client, self.number, refused)] if refused else []
            case Lost():
                self._clients.lost(event.client)
                self._late.lost(event.client)
                self._carried = self._carried.without(event.client)
            case Leaving():
                self._clients.changed()
            case Failed():
                self._clients.failed(event, self.number)
            case Loaded() | Fetched() | Codeword() if event.client in self._clients.present:
                self.speeds.heard(event)
                self._up_bytes += event.size_bytes if isinstance(event, Codeword) else 0
        return []

    @property
    def next_tick(self) -> float:
        """When the machine next needs a `Tick`."""
        if self.round:
            return min(self.round.next_tick, self._late.next_tick)
        key_agreement = self._key_agreement
        if key_agreement is None:
            return math.inf if self._rests else min(self._gathering.until, self._late.next_tick)
        if key_agreement.busy or not key_agreement.knows(self.version):
            return key_agreement.next_tick  # until then only answers change anything
        return min(self._gathering.until, key_agreement.next_tick)

    @property
    def waiting(self) -> Waiting:
        """The clients that the run waits for, until when, and how many it needs."""
        return self._gathering.waiting if self.round is None else self.round.waiting

    @property
    def idle(self) -> Mapping[str, str]:
        """The clients without a chunk, and why, while a round waits for others."""
        return self._gathering.idle if self.round is None else {}

    @property
    def oldest(self) -> int:
        """The oldest model from which an update may come."""
        return self._late.oldest(self.version)

    @property
    def amounts(self) -> Amounts:
        """How much data the clients have."""
        return self._clients.holdings.amounts

    def state(self) -> RunState:
        """Return the part of a checkpoint of the last synced round that belongs to the run."""
        return self._settled

    # ---- phases

    def _gather(self, event: Event) -> list[Output]:
        if isinstance(event, Stop):
            return self._finish(event.reason, complete=event.complete)
        if self._rests:
            return []
        if self._site is None and self.number > self.config.rounds:
            return self._done()
        keys = self._key_agreement
        if keys is not None and keys.knows(self.version) and keys.is_spent:
            return self._finish(self._fruitless.spent(self.number - 1), complete=False)
        gathering = self._gathering
        is_over = gathering.is_over(event) or gathering.is_hopeless
        if gathering.awaits(event.now) and not is_over:  # looking at every client takes as long as a join
            return []
        able = self._clients.able
        if len(able) >= gathering.wanted:
            return self._gathered(event.now)
        too_few = gathering.too_few(len(able))
        return self._finish(too_few, complete=False, lacks_clients=True) if is_over else []

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
            site.origin, site.done = event.origin, 0
            self.version += 1
            self._model_since = event.now
            self._steps = CommonSteps(event.first_step)
            self._carried = Carried()
        site.limit = event.limit
        self._gathering.extend(event.now)
        return self._gather(Tick(event.now)) if current is None else []

    def _done(self) -> list[Output]:
        done, without = f"{numbered(self.config.rounds, 'round')} done", "and no work was ever counted"
        said = done if self.version else caused(self._fruitless.first_fault, f"{done}, {without}")
        return self._finish(said, complete=self.version > 0)

    def _keyed(self, key_agreement: KeyAgreement, now: float) -> list[Output]:
        """Begin a masked round if its keys are ready, else set them up, with a limited number of attempts."""
        if key_agreement.busy or not key_agreement.knows(self.version):
            return []
        if self._opened and key_agreement.phase is Phase.IDLE:
            self._fruitless.failed()
        if self._fruitless.are_too_many:
            return self._finish(
                f"no keys after {GIVE_UP_AFTER} set-ups: {key_agreement.reason}", complete=False
            )
        self._opened = False
        self._clients.changed()
        if key_agreement.stands_for(self._clients.able) and (
            self._carried.clients or not key_agreement.newcomers(now)
        ):
            return self._begin(now)
        self._opened = True
        self._carried = self._carried.anew()
        return [*key_agreement.open(now, self.number)]

    def _in_round(self, current: Round, commands: Sequence[Command], now: float) -> Sequence[Output]:
        """Return the round's commands, and settle the round once it is closed."""
        if self._key_agreement is not None:
            self._key_agreement.told(commands)
        if current.collecting is not None and self._late_asked < current.assignment.number:
            self._late_asked = current.assignment.number
            commands = [*commands, *self._late.asked(now)]
        return commands if current.outcome is None else [*commands, *self._settle(current, now)]

    def _answered(self, answer: Answer, now: float) -> list[Output]:
        """Give a client that is no longer behind work from the newest model.

        Its update may complete the present round. Then it begins with the next one, from the model with it.
        """
        outputs: list[Output] = list(answer.commands)
        current, joined = self.round, self._clients.present.get(answer.client)
        if current is not None and answer.is_counted:
            outputs += self._in_round(current, current.late_came(now), now)
        if not answer.is_free or joined is None or answer.client in self._clients.departures.leaving:
            return outputs
        if current is None:
            return [*outputs, *self._gather(Tick(now))]
        if self.round is current:
            again = current.handle(replace(joined, now=now, kept=()))
            outputs += self._in_round(current, again, now)
        return outputs

    def _without_late(self, now: float) -> list[Output]:
        """Give up the clients that are behind for too long."""
        outputs: list[Output] = []
        for answer in self._late.given_up(now):
            if self.round is not None:
                self.round.roster.fails(answer.client, TOO_LATE)
            outputs += self._answered(answer, now)
        return outputs

    def _begin(self, now: float) -> list[Output]:
        """Make a new plan if the old one no longer fits, then give work to the clients of the round."""
        outputs: list[Output] = []
        keys = self._key_agreement
        self._clients.retry(self.number)
        fleet = self._clients.fleet
        before = self._plans.present
        try:
            plan = self._plans.next(fleet, self.number, self._carried.clients)
        except BadPlacement as error:  # these clients cannot work together; others might
            return self._finish(str(error), complete=False)
        if plan is not before:
            self._carried = self._carried.in_plan(before, plan, masked=keys is not None)
            outputs.append(self._plans.chose(self.number, plan, fleet))
        self._gathering.begun()
        plan = self._plans.of_round(self.number, plan, fleet, self._carried.clients)
        if self._site is not None:
            self._target = self._site.within(self.config.round_steps)
        exchange = None if keys is None else self._exchange_drawn(keys, plan.clients)
        assignment = self._plans.measured(self._assignment(plan), plan, fleet.size)
        self._up_bytes = 0
        self.round = (
            Round(plan, assignment, self._decide)
            if exchange is None
            else MaskedRound(plan, assignment, self._decide, exchange)
        )
        self._late.begun(self.round)
        started = self.round.start(now, self._clients.begin(plan, self._late.clients))
        return [*outputs, *self._in_round(self.round, started, now)]

    def _assignment(self, plan: Plan) -> Assignment:
        """Return the parameters of a round of this plan."""
        departures = self._clients.departures
        pins = {client: self._pins.of(client) for client in plan.clients}
        return Assignment(
            number=self.number,
            version=self.version,
            target=self._target,
            seed=self.config.seed,
            carried=self._carried.clients,
            rounds_left=max(0, self.config.rounds - self.number),
            first_step=self._steps.first,
            common_steps=self._steps.between,
            most_steps=self.config.most_steps,
            most_kept=self.config.most_kept,
            loading=self._carried.loading,
            reached=self._carried.reached,
            open=self._clients.open_steps.of,
            orders=self._orders,
            pinned={client: pin for client, pin in pins.items() if pin is not None},
            forced_from=departures.forced_from,
            closes=dict(departures.closes),
        )

    def _exchange_drawn(self, key_agreement: KeyAgreement, clients: Collection[str]) -> MaskedExchange:
        """Begin an exchange, or continue that of a skipped round.

        Shared momentum must be the same for all members: a client without the previous model is left out of
        this exchange. If too few have it, the exchange is drawn without momentum.
        """
        if not self._carried.clients and self._steps.last:
            led = key_agreement.having_before(clients)
            if led:
                clients = led
            else:
                self._steps.forget()
                self._carried = Carried()  # steps with the old momentum do not count
        steps = (self._steps.first, self._steps.last)
        return key_agreement.draw(clients, steps, again=bool(self._carried.clients))

    def _settle(self, over: Round, now: float) -> list[Output]:
        """Handle a closed round, and begin the next one."""
        outputs: list[Output] = []
        outcome, summary = over.outcome or "stopped", over.summary
        synced = outcome in SUMMED
        row = self._learn(over, summary)
        is_left = self._is_left(row) and not self._clients.staying
        row = replace(row, outcome="stopped", reason=ALL_LEFT) if is_left else row
        self.round = None
        outputs += self._late.ended(over, synced=synced)
        outputs += self._late.dropped() if synced and self.goes_back else ()
        self.number += not is_left  # else it begins again once clients are back
        self._orders = {**self._orders, **summary.orders}
        if synced or outcome == "skipped":
            self._gate.keep()
        if synced and over.result:
            self._summed(over, over.result, now)
            outputs.append(Apply(over.assignment.number, self.version, over.result.weight))
        if outcome not in NOTHING:
            self._target = self.config.round_steps + (0 if synced else self._target)
        if synced:
            self._settled = self._state()
        present = self._clients.present.keys() - self._late.clients
        self._carried = Carried() if synced else Carried.left_by(over, summary, present)
        outputs.append(Append(row, awaited_in(over)))
        return outputs + self._next(over, now)

    def _learn(self, over: Round, summary: WorkSummary) -> RoundRow:
        """Learn from a closed round; return its row."""
        clients = self._clients
        bare = row_of(over, summary, coded=self.config.work == "coded")
        bare = clients.open_steps.closed(bare, over, clients.present)
        limit = self._plans.limits.closed(over)
        row = with_coverage(bare, over, clients.holdings, clients.present)
        said = row.reason if over.outcome == "aborted" else ""  # else by the gate, of work that was not there
        row = replace(row, reason=caused(said, limit.words)) if limit.words else row
        self._plans.learn(over, summary, row)
        clients.departures.closed(over.closed_at, forced=over.forced)
        site = self._site
        excused = limit.was_short or self._is_left(row) or (site is not None and not site.limit)
        self._fruitless.closed(over, excused=excused, limit=limit.words)
        if site is not None and over.outcome in SUMMED:
            site.count(over, summary.loss)
        return row

    def _is_left(self, row: RoundRow) -> bool:
        """Whether a round gave nothing because all its clients have left."""
        its_own = {each.client for each in row.clients}
        return row.outcome == "empty" and have_left(row) and self._clients.staying.isdisjoint(its_own)

    def _summed(self, over: Round, result: Result, now: float) -> None:
        """Count the version that a round's sum makes, and its steps."""
        self.version += 1
        self._model_since = began_training(self.config.fragments, over, now)
        led = self.config.alpha < 1 and not self.goes_back
        self._steps.summed(self._target, result.steps if led else 0.0)
        seconds = over.closed_at - over.started_at - over.working_s
        if seconds > 0:  # late updates alone can make a model, without an exchange
            self._gate.last_sync = (self._up_bytes, seconds)

    def _next(self, over: Round, now: float) -> list[Output]:
        if over.outcome == "stopped":
            return self._finish(over.reason, complete=over.completes)
        if self._fruitless.are_too_many:
            return self._finish(self._fruitless.reason(over), complete=False)
        self._gathering.extend(now)
        return self._gather(Tick(now))

    def _finish(self, reason: str, *, complete: bool, lacks_clients: bool = False) -> list[Output]:
        self.finished = True
        return [*self._late.dropped(), Finished(reason, complete, lacks_clients)]

    # ---- the gate, and the state for a resume

    def _decide(self, reports: Reports) -> Decision:
        plan, step = self.round.plan if self.round else None, self._steps.first + self._target
        return self._gate.decide(reports, plan, self.number, step)

    def _state(self) -> RunState:
        return RunState(
            round=self.number,
            version=self.version,
            gate=self._gate.write(),
            chunks=self._clients.holdings.known(),
            next_chunk=self._clients.holdings.next_number,
            step_s=tuple(self.speeds.step_s().items()),
            first_step=self._steps.first,
            common_steps=self._steps.last,
            clients=tuple(sorted(self._clients.staying)),
            asked=tuple(sorted(self._plans.choice.asked)),
        )

    def _resume(self, state: RunState) -> None:
        self.number, self.version = state.round, state.version
        self._steps = CommonSteps(state.first_step, state.common_steps)
        self._gate.read(state.gate)
        self._plans.choice.asked.update(state.asked)
        for client, step_s in state.step_s:
            self.speeds.worked(client, step_s)
