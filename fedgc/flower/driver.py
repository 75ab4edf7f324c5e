"""The driver: passes events from the links to the run's state machine and carries out its outputs.

The state machine (`run`) does no I/O. The driver owns the clock, the links, the running sum, the server's
optimizer and the sink. Evaluations and checkpoints run in a background thread, so that clients do not wait.
"""

import queue
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from logging import INFO, WARNING, Logger
from typing import Final

from fedgc.codecs.model_change import ModelChange
from fedgc.errors import NotRecoverable, Refused
from fedgc.flower.announced_hours import AnnouncedHours
from fedgc.flower.background import BackgroundQueue
from fedgc.flower.checkpoint_writer import CheckpointWriter
from fedgc.flower.evaluations import Evaluations
from fedgc.flower.event_guard import EventGuard
from fedgc.flower.job import Job
from fedgc.flower.left_out import LeftOut
from fedgc.flower.live import LiveState
from fedgc.flower.outliers import Outliers
from fedgc.flower.privacy_account import PrivacyAccount
from fedgc.flower.refused_clients import RefusedClients
from fedgc.flower.rollback import Rollback
from fedgc.flower.round_line import line_of, with_traffic
from fedgc.flower.site import NewModel, SiteState
from fedgc.flower.validation import Validation
from fedgc.flower.warn_once import WarnOnce
from fedgc.links import typed_json as typed
from fedgc.links.links import Link
from fedgc.links.pieces import Vector, digest_of, packed
from fedgc.messages import (
    Add,
    Announced,
    Close,
    Closing,
    Codeword,
    Event,
    Failed,
    Fetched,
    Joined,
    Leaving,
    LinkEvent,
    Lost,
    ModelEvent,
    Published,
    Refuse,
    Stop,
    Tick,
    ToClient,
    Uncover,
    Validate,
    Work,
)
from fedgc.processes.available import release_memory
from fedgc.run.alike import AlikeData
from fedgc.run.client_notes import BACK, ClientNotes
from fedgc.run.fruitless_waits import FruitlessWaits
from fedgc.run.initialization import Initialization
from fedgc.run.machine import Append, Apply, Chose, Finished, Output, Run, RunParts, RunState
from fedgc.run.rows import caused
from fedgc.run.sample_pins import SamplePins
from fedgc.run.sample_shares import SampleShares
from fedgc.run.site_steps import SiteSteps
from fedgc.secagg import RingSum
from fedgc.secagg.keystream import Strand
from fedgc.store.checkpoint import Checkpoint
from fedgc.training.next_model import NextModel
from fedgc.training.round_sum import RoundSum
from fedgc.tuner import Tuner

OfClient = Joined | Leaving | Lost | Closing | Fetched  # of a client, not of a round
PRESENT_S: Final = 0.25  # between two live summaries,
PRESENT_EACH_S: Final = 0.002  # and this for each client: a summary names all of them
# Rounds that add nothing, or end the run: late updates stay in the sum
UNTOUCHED: Final = ("skipped", "empty", "stopped")
LONGEST_WAIT_S: Final = 0.25
TRIM_S: Final = 5.0  # between two times that freed memory is given back to the system, after a round
FIELDS_0_2: Final = 8  # of `RunState` in a checkpoint of fedgc 0.2; it names no clients
GATEWAY_S: Final = 0.02  # between looks at the line of a gateway


class Driver:
    """Runs one run from start to end."""

    def __init__(
        self,
        job: Job,
        clock: Callable[[], float],
        log: Logger,
        events: "queue.SimpleQueue[LinkEvent] | None" = None,
    ) -> None:
        """`events` is the queue that the links fill, if they were started before."""
        self._job, self._clock, self._log, self._started = job, clock, log, clock()
        self._announcements, self._notes = Initialization(job.model.layout), ClientNotes()
        self.common: Final = job.model
        self._pins = SamplePins(job.config.pinned_samples)
        self._optimizer = self._new_optimizer()
        self.model: Vector = self.common.first() if job.first is None else job.first
        state = self._restored(job.resume) if job.resume else None
        self._site_steps = SiteSteps.read(job.resume.site if job.resume else "") if job.gateway else None
        self._run = Run(
            job.config,
            now=clock(),
            size=self.common.size,
            speeds=job.speeds,
            resume=state,
            parts=RunParts(
                Tuner(job.config, job.speeds.recent),
                job.key_agreement(),
                self._pins,
                self._site_steps,
                job.fleet,
                self.common.layout.buffer_size,
            ),
        )
        self._ring: RingSum | None = None  # masked sum of the present round
        self._mean: Vector | None = None  # unmasked mean of a masked round
        self._background = BackgroundQueue(partial(log.log, WARNING, "%s"), self.model.nbytes)
        self._checkpoints, self._warn_once = CheckpointWriter(job, self._background, log), WarnOnce(log)
        self._shown, self._trimmed = 0.0, self._started
        self._live = LiveState(job.config, self._started, self._notes.left)
        self._left_out, self._outliers = LeftOut(log), Outliers(job, self._live.names, self._warn_once)
        self._refused = RefusedClients(job, self._warn_once)
        self._sum = RoundSum(
            job.config, self.common.size, parameters=self.common.parameters, checks=self._outliers.checks
        )
        self._privacy = PrivacyAccount(self._sum.private, job.federation, self.common, job.resume)
        self._waits, self._hours = FruitlessWaits(), AnnouncedHours(job.sink)
        self.guard: Final = EventGuard(log, lambda: self._run.number)
        self._skipped = self._over = 0  # rounds
        self.events: Final[queue.SimpleQueue[LinkEvent]] = events or queue.SimpleQueue()
        self._claims: Mapping[str, AlikeData | SampleShares] = {
            "alike": AlikeData(),
            "shares": SampleShares(job.config, self._pins),
        }
        self._rollback = Rollback(job.config, job.sink, log, job.scratch, self._live.names)
        self._validation = self._new_validation(job)
        self._evaluations = Evaluations(
            job, self._background, self._validation, self._privacy, self._warn_once
        )
        self.figures: Final = self._validation.of_server, self._validation.of_clients
        self.finished: Finished | None = None

    def _new_optimizer(self) -> NextModel:
        model = self.common
        return NextModel(self._job.config, model.parameters, model.size, model.layout.variances)

    def _new_validation(self, job: Job) -> Validation:
        pin = self._checkpoints.write_best if job.pin is not None else None
        made = Validation(job.config, job.sink, self._log, pin, job.best, self._rollback.evaluated)
        made.begin(self._run.version, job.resume.round if job.resume else 0, self._first_checkpoint())
        self._rollback.begin(job.resume.figures if job.resume else "")
        return made

    def _restored(self, checkpoint: Checkpoint) -> RunState:
        self.model = checkpoint.model
        self._optimizer.restore(checkpoint.optimizer)
        written = typed.loads(checkpoint.state.encode())
        if isinstance(written, list) and len(written) >= FIELDS_0_2:
            written += [[]] * (len(fields(RunState)) - len(written))
        state: RunState = typed.read(RunState, written, {})
        return state

    @property
    def begun(self) -> bool:
        """Whether a round of this start is over."""
        return self._over > 0

    @property
    def has_gathered(self) -> bool:
        """Whether enough clients came for a first round; read by other threads."""
        return self._over > 0 or self._run.round is not None

    @property
    def average(self) -> Vector:
        """The model to use: the one that clients train from, except with schedule-free SGD."""
        return self._optimizer.average(self.model)

    # ---- the loop

    def drive(self, link: Link) -> Finished:
        """Run to the end, over a link that has been started."""
        self._publish(self._run.version, link)
        if warning := self._privacy.warning(self._job.config.rounds):
            self._warn_once("releases", self._run.number, warning)
        wants_first = self._job.evaluate is not None or self._job.config.best
        if wants_first and self._job.resume is None:
            self._evaluations.begin(0, lambda: self.average)
        while self.finished is None:
            event = self._next_event()
            self._handle(event, link)
            self._hear_gateway(link)
            self._evaluations.collect(wait=False)
            self._end_early(link)
            self._show(link)
        if self.finished.complete and self._job.federation is None:
            self._validate_last(link)
        self._evaluations.collect(wait=True)
        self._validation.finish()
        self._return_at_end()
        self._background.close()
        self._shown = 0.0
        self._show(link)
        if hint := self._job.config.skips_message(self._skipped, self._over):
            self._log.log(INFO, "%s", hint)
        return self.finished

    def _return_at_end(self) -> None:
        """Return to the best model if the last one has collapsed: no exchange follows that could do so."""
        back = self._rollback.take()
        if back is None:
            return
        self._optimizer.restore(back.optimizer)
        self.model = back.model
        if self._job.save:
            self._checkpoints.due = self._checkpoint(back.round, self._run.version + 1)
            self._checkpoints.write_due()

    def _hear_gateway(self, link: Link) -> None:
        """Carry out what the consortium of a site asks for through its gateway."""
        gateway, steps = self._job.gateway, self._site_steps
        if gateway is None or steps is None:
            return
        samples = self._run.amounts.present.samples
        site = SiteState(steps, self.model, self._clock(), samples, works=self._run.round is not None)
        for event in gateway.turn(site, self.common.layout):
            if isinstance(event, NewModel):
                self.model = event.model
                self._optimizer = self._new_optimizer()
                self._rollback.begin()
                self._handle(event.granted, link)
                self._publish(self._run.version, link)
            else:
                self._handle(event, link)

    def _handle(self, event: LinkEvent, link: Link) -> None:
        for output in self.guard.outputs(event, lambda: self._heard(event, link)):
            self._do(output, link)
        if isinstance(event, Codeword):  # it has been added, or will not be
            link.forget(event.client, event.round, event.attempt)

    def _heard(self, event: LinkEvent, link: Link) -> Sequence[Output]:
        if isinstance(event, ModelEvent):
            self._hear_of_model(event, link)
        elif not self._is_refused(event):
            if isinstance(event, OfClient):
                self._hear_of_client(event, link)
            self._run.goes_back = self._rollback.is_due
            outputs = self._run.handle(event)
            if isinstance(event, Joined):
                self._name_idle(link)
            return outputs
        return ()

    def _hear_of_client(self, event: OfClient, link: Link) -> None:
        """Take in what a client says of itself, its data and hours, and warn of what it claims."""
        if words := self._notes.heard(event, begun=self.begun):
            name = link.name(event.client) or event.client
            self._log.log(INFO, "round %d: %s: %s", self._run.number, name, words)
        if warning := self._pins.handle(event, link.name):
            self._warn_once(warning, self._run.number, warning)
        for about, claims in self._claims.items():
            if warning := claims.handle(event, link.name):
                self._warn_once(about, self._run.number, warning)
        self._hours.handle(event, self._run.number)
        self._live.handle(event)

    def _name_idle(self, link: Link) -> None:
        """Say which clients cannot work, while the run waits for others in their place."""
        for client, why in self._run.idle.items():
            name = link.name(client) or client
            self._warn_once(f"data of {client}", self._run.number, f"{name}: {why}: it does not take part")

    def _end_early(self, link: Link) -> None:
        """End the run if no privacy is left, no better model can be found, or it cannot begin."""
        refusals = None if self.has_gathered else self._refused.ending(self._announcements)
        ending = self._privacy.ending or self._validation.ending or refusals
        if ending is None or self.finished is not None:
            return
        if ending.complete:
            self._job.sink.ended_early(ending.reason)
        self._handle(Stop(self._clock(), ending.reason, ending.complete), link)

    def _validate_last(self, link: Link) -> None:
        """Have the clients that score models score the last one, before their links close."""
        version, end = self._run.version, self._clock() + self._validation.wait_s
        awaited = {each for each in self._validation.lacking(link.clients()) if link.link(each) == "session"}
        for client in awaited:
            link.send(Validate(client, self._run.number, version))
        while awaited and self._clock() < end:
            event = self._event_within(LONGEST_WAIT_S)
            self._handle(event, link)
            if isinstance(event, Lost | Failed):
                awaited.discard(event.client)
            awaited &= self._validation.lacking(link.clients())
            self._evaluations.collect(wait=False)
            self._show(link)

    def _hear_of_model(self, event: ModelEvent, link: Link) -> None:
        """Check the layout that a client announces, or enter the figures that it reports."""
        name = link.name(event.client) or event.client
        if isinstance(event, Announced):
            for command in self._announcements.handle(event):
                if isinstance(command, Refuse):  # the first vector is here already
                    self._do(command, link)
                    told = replace(command, reason=self._by_name(command.reason, link))
                    self._refused.warn(told, self._run.number, name)
            return
        if event.problem:
            self._warn_once(f"validation of {event.client}", self._run.number, f"{name}: {event.problem}")
        self._validation.scored(event, name, link.clients())

    def _is_refused(self, event: Event) -> bool:
        """Whether an event is of a client whose model has another layout."""
        return getattr(event, "client", "") in self._announcements.refused and not isinstance(event, Lost)

    def _next_event(self) -> LinkEvent:
        longest_s = LONGEST_WAIT_S if self._job.gateway is None else GATEWAY_S
        return self._event_within(min(self._run.next_tick - self._clock(), longest_s))

    def _event_within(self, wait_s: float) -> LinkEvent:
        if wait_s > 0:
            with suppress(queue.Empty):
                return self.events.get(timeout=wait_s)
        return Tick(self._clock())

    def _do(self, output: Output, link: Link) -> None:
        match output:
            case Add():
                self._add_guarded(output, link)
            case Uncover():
                self._uncover(output)
            case Apply():
                self._apply(output, link)
            case Append():
                self._append(output, link)
            case Chose():
                self._job.sink.chose(output.round, output.basis, output.reason)
            case Finished():
                refusal = self._refused.last if output.lacks_clients else ""
                ended = output if self._job.resume else self._left_out.ended(output)
                self.finished = replace(ended, reason=self._by_name(caused(refusal, ended.reason), link))
            case Refuse(client):
                self._refused.refused(output, self._run.number, link.name(client) or client)
                link.send(output)
            case _:
                self._send(output, link)

    def _send(self, command: ToClient, link: Link) -> None:
        if isinstance(command, Work):
            self._validation.work_sent(command.client, self._clock())
            self._job.sink.assigned(command.round, [name for _, name in command.names])
        link.send(self._rollback.closing(command) if isinstance(command, Close) else command)

    def _publish(self, version: int, link: Link, change: ModelChange | None = None) -> None:
        self._sum.begin(version, self.model, self.common.layout.shapes, self._run.oldest)
        link.publish(version, self.model, change)
        if self._job.federation is not None:
            self.events.put(Published(self._clock(), version, digest_of(packed(self.model))))

    def _add_guarded(self, add: Add, link: Link) -> None:
        for refusal in self.guard.added(add, partial(self._add, add, link)):
            self._do(refusal, link)

    def _add(self, add: Add, link: Link) -> None:
        vector = link.take(add.client, add.round, add.attempt)
        if self._job.federation is not None:
            quantizer, scratch = self._job.federation.quantizer, self._job.scratch
            self._ring = self._ring or RingSum(quantizer, self.common.size, scratch)
            self._ring.add(vector)
            return
        self._sum.add(add, vector)

    def _uncover(self, uncover: Uncover) -> None:
        """Remove the masks from the sum, which gives the mean over the sites."""
        if self._ring is None:
            return
        ring, self._ring = self._ring, None
        ring.remove([Strand(key, minus) for key, minus in uncover.masks])
        try:
            self._mean, _ = ring.mean()
        except NotRecoverable as error:  # a site used masks of another exchange: the sum is noise
            self._left_out.note(uncover.round, error)

    # ---- a round's end

    def _apply(self, apply: Apply, link: Link) -> None:
        stepped, change, comparison = self._stepped(apply), None, None
        if back := self._rollback.take():
            self._left_out.drop(f"the run goes back to the model of round {back.round}")
            self._optimizer.restore(back.optimizer)
            self._sum = self._sum.anew()  # rules remember the last mean update
            self.model = back.model
        elif stepped is not None:
            average = self._optimizer.average
            comparison = self._outliers.comparison(self._sum, self.model, stepped[0], average)
            self.model, change = stepped
        self._publish(apply.version, link, change)
        if self._job.save:
            self._checkpoints.due = self._checkpoint(apply.round, apply.version)
        self._validation.made(apply.version, apply.round, self._checkpoints.due)
        if self._job.config.evaluates_after(apply.round):
            self._evaluations.begin(apply.round, lambda: self.average, comparison)
        if self._validation.is_evaluated(apply.version, apply.round):
            self._rollback.made(self._checkpoints.due or self._checkpoint(apply.round, apply.version))

    def _stepped(self, apply: Apply) -> tuple[Vector, ModelChange | None] | None:
        """Return the model after the server's step, and its change; None without a finite mean update."""
        try:
            mean = self._taken_mean(apply)
            self._outliers.report(apply.round, self._sum.outliers)
            return None if mean is None else self._optimizer.apply(self.model, mean, apply.version - 1)
        except Refused as error:
            self._left_out.note(apply.round, error)
            return None

    def _taken_mean(self, apply: Apply) -> Vector | None:
        """Return the mean update of the round, if any, and reset the sum."""
        mean, self._mean = self._mean, None
        self.guard.must_be_whole()
        return mean if self._job.federation is not None else self._sum.mean(apply.weight, apply.round)

    def _first_checkpoint(self) -> Checkpoint | None:
        """Return the first model as a checkpoint, if it could be the best one."""
        if self._job.pin is None or not self._job.config.best:
            return None
        return self._job.resume or self._checkpoint(0, self._run.version)

    def _checkpoint(self, round_: int, version: int) -> Checkpoint:
        state = typed.dumps(typed.write(replace(self._run.state(), version=version))).decode()
        layout = self.common.layout
        text = layout.text() if self._job.config.script else ""
        site = self._site_steps.text() if self._site_steps else ""
        optimizer = self._optimizer.state()
        privacy = self._privacy.text()
        figures = self._rollback.figures
        return Checkpoint(
            round_, version, self.model, optimizer, state, text, site, privacy, layout.shapes, figures
        )

    def _append(self, append: Append, link: Link) -> None:
        row = append.row
        if row.outcome not in UNTOUCHED:
            self._sum.clear()
        self._ring = self._mean = None
        self._trim()
        refused = self.guard.settle()
        clients = tuple(with_traffic(client, link, refused[client.client]) for client in row.clients)
        reason, left_out = (self._by_name(text, link) for text in (row.reason, row.left_out))
        row = replace(row, clients=clients, reason=reason, left_out=left_out).without_steps_of(
            self._sum.uncounted
        )
        kept = self._left_out.row(row)
        self._log.log(INFO, "%s", line_of(kept))
        self._over += 1
        self._skipped += row.outcome == "skipped"
        self._job.sink.append(kept)
        self._rollback.counted(kept)
        if self._over == 1 and (warning := self._pins.unused(link.clients())):
            self._warn_once("pins", row.round, warning)
        for client in row.clients:
            if words := self._notes.told(client):
                name = link.name(client.client) or client.client
                self._log.log(INFO if words == BACK else WARNING, "round %d: %s: %s", row.round, name, words)
        for excluded, why in self._waits.excluded(row, append.awaited).items():
            link.exclude(excluded, why)
        if spent := self._privacy.released(row):
            self._job.sink.evaluated(row.round, spent)
        self._checkpoints.write_due()

    def _trim(self) -> None:
        """Give back the memory of the round's vectors, which the C library would keep for the next ones."""
        now = self._clock()
        if now >= self._trimmed + TRIM_S:
            self._trimmed = now
            release_memory()

    # ---- log and live view

    def _by_name(self, text: str, link: Link) -> str:
        """Replace the identities of clients in a text by their names, except in the path of a log."""
        for client in (self._live.names.keys() | link.clients()) if text else ():
            if client in text:  # most texts name no client, and there may be thousands
                name = link.name(client) or self._live.names.get(client) or client
                text = re.sub(rf"(?<!/){re.escape(client)}", name.replace("\\", r"\\"), text)
        return text

    def _show(self, link: Link) -> None:
        now = self._clock()
        if now >= self._shown:
            self._shown = now + max(PRESENT_S, PRESENT_EACH_S * len(self._live.names))
            self._job.sink.present(self._live.of(self._run, link, now, over=self.finished is not None))
