"""The driver: carries out what the run says. Events in from the links, vectors and commands out.

`run` decides and does no I/O; here are the clock, the links, the running sum, the server's optimizer,
and the history's sink. Evaluation and checkpoints run beside it in a thread of their own, on vectors that
no longer change, so that no client ever waits for them.
"""

import queue
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from functools import partial
from logging import INFO, WARNING, Logger
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import FedgcError, NotRecoverable, Refused
from fedgc.flower.background import Beside
from fedgc.flower.sink import Live, LiveClient, Sink
from fedgc.history import ClientRow, RoundRow, Speeds
from fedgc.links import typed_json as typed
from fedgc.links.links import Link
from fedgc.links.pieces import Vector, digest_of, packed
from fedgc.messages import Add, Codeword, Event, Published, Refuse, Tick, Uncover
from fedgc.round.machine import Round
from fedgc.round.masked.key_agreement import KeyAgreement
from fedgc.run.machine import Append, Apply, Chose, Finished, Output, Run, RunParts, RunState
from fedgc.secagg import Federation, RingSum, Terms
from fedgc.secagg.keys import KEY_BYTES
from fedgc.secagg.keystream import Strand
from fedgc.store.checkpoint import Checkpoint
from fedgc.training import CommonModel, ServerOptimizer
from fedgc.training.round_sum import RoundSum
from fedgc.training.tasks import Task
from fedgc.tuner import Tuner

PRESENT_S: Final = 0.25  # between two live summaries
LONGEST_WAIT_S: Final = 0.25
RELEASES: Final = ("synced", "approximate")  # outcomes by which a sum became known
KEYS_S: Final = 60.0  # for each half of a set-up of keys: one packet there and back, over any link

Save = Callable[[Checkpoint], None]
Evaluate = Callable[[int, Vector], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be run, and from what."""

    task: Task
    config: RunConfig
    sink: Sink
    speeds: Speeds
    save: Save | None = None
    resume: Checkpoint | None = None
    federation: Federation | None = None  # of a masked run
    name: str = ""  # by which its links call the run
    first: Vector | None = None  # the initial model, in place of the task's
    evaluate: Evaluate | None = None  # in place of the task's


class Driver:
    """One run, from the first client to the last row."""

    def __init__(self, job: Job, clock: Callable[[], float], log: Logger) -> None:
        self._job = job
        self._clock = clock
        self._log = log
        self._started = clock()
        job.task.allow(job.config.placement)
        self.common: Final = CommonModel(job.task, job.config)
        self._optimizer = ServerOptimizer(job.config, self.common.parameters)
        self.model: Vector = self.common.first() if job.first is None else job.first
        state = self._restored(job.resume) if job.resume else None
        key_agreement = self._key_agreement(job.federation) if job.federation else None
        self._run = Run(
            job.config,
            now=clock(),
            size=self.common.size,
            speeds=job.speeds,
            resume=state,
            parts=RunParts(Tuner(job.config, job.speeds.told), key_agreement),
        )
        self._ring: RingSum | None = None  # of a masked round under way
        self._mean: Vector | None = None  # of such a round, once its masks are off
        self._due: Checkpoint | None = None  # written once its round is in the history
        self._sum = RoundSum(job.config, self.common.size)
        self._beside = Beside(partial(log.log, WARNING, "%s"))
        self._measuring: list[tuple[int, Future[Mapping[str, float]]]] = []
        self._shown = 0.0
        self._names: dict[str, str] = {}
        self._warned: set[str] = set()
        self._skipped = self._over = 0  # rounds
        self.events: Final[queue.SimpleQueue[Event]] = queue.SimpleQueue()
        self.finished: Finished | None = None
        self.metrics: dict[int, Mapping[str, float]] = {}
        self._spent: dict[int, Mapping[str, float]] = {}  # epsilon, after rounds whose sum was had

    def _key_agreement(self, federation: Federation) -> KeyAgreement:
        terms = Terms(self.common.size, self._job.config.shape, bytes(KEY_BYTES))
        return KeyAgreement(federation, terms, KEYS_S, time.time() - self._started, self._job.name)

    def _restored(self, checkpoint: Checkpoint) -> RunState:
        self.model = checkpoint.model
        self._optimizer.restore(checkpoint.optimizer)
        state: RunState = typed.read(RunState, typed.loads(checkpoint.state.encode()), {})
        return state

    # ---- the loop

    def drive(self, link: Link) -> Finished:
        """Run until the machine has finished; the link has been started."""
        self._publish(self._run.version, link)
        if self._job.evaluate is not None and self._job.resume is None:
            self._evaluate(0)
        while self.finished is None:
            event = self._next_event()
            for output in self._run.handle(event):
                self._do(output, link)
            if isinstance(event, Codeword):  # it is in the sum by now, or never will be
                link.forget(event.client, event.round, event.attempt)
            self._hear_measures(wait=False)
            self._show(link)
        self._hear_measures(wait=True)
        self._beside.close()
        self._shown = 0.0
        self._show(link)
        if said := self._job.config.told_of_skips(self._skipped, self._over):
            self._log.log(INFO, "%s", said)
        return self.finished

    def _next_event(self) -> Event:
        now = self._clock()
        wait_s = self._run.next_tick - now
        if wait_s > 0:
            try:
                return self.events.get(timeout=min(wait_s, LONGEST_WAIT_S))
            except queue.Empty:
                now = self._clock()
        return Tick(now)

    def _do(self, output: Output, link: Link) -> None:
        match output:
            case Add():
                self._add(output, link)
            case Uncover():
                self._uncover(output)
            case Apply():
                self._apply(output, link)
            case Append():
                self._append(output.row, link)
            case Chose():
                self._job.sink.chose(output.round, output.basis, output.reason)
            case Finished():
                self.finished = replace(output, reason=self._by_name(output.reason, link))
            case Refuse(client, round_, reason):
                self._job.sink.audited("refused", client, f"round {round_}: {reason}")
                link.send(output)
            case _:
                link.send(output)

    def _publish(self, version: int, link: Link) -> None:
        link.publish(version, self.model)
        if self._job.federation is not None:
            self.events.put(Published(self._clock(), version, digest_of(packed(self.model))))

    def _add(self, add: Add, link: Link) -> None:
        vector = link.take(add.client, add.round, add.attempt)
        if self._job.federation is not None:
            self._ring = self._ring or RingSum(self._job.federation.quantizer, self.common.size)
            self._ring.add(vector)
            return
        self._sum.add(add, vector)

    def _uncover(self, uncover: Uncover) -> None:
        """Take the masks off: what is left is the mean over the sites, and no single update."""
        if self._ring is None:
            return
        ring, self._ring = self._ring, None
        ring.remove([Strand(key, minus) for key, minus in uncover.masks])
        try:
            self._mean, _ = ring.mean()
        except NotRecoverable as error:  # a site's masks were of another exchange: the sum is noise
            self._log.log(WARNING, "round %d: its update is left out: %s", uncover.round, error)

    # ---- a round's end

    def _apply(self, apply: Apply, link: Link) -> None:
        try:
            mean = self._taken_mean(apply.weight)
            if mean is not None:
                self.model = self._optimizer.apply(self.model, mean)
        except Refused as error:
            self._log.log(WARNING, "round %d: its update is left out: %s", apply.round, error)
        self._publish(apply.version, link)
        if self._job.save:
            self._due = self._checkpoint(apply)
        every = self._job.config.evaluate_every
        if every and apply.round % every == 0:
            self._evaluate(apply.round)

    def _evaluate(self, round_: int) -> None:
        """Evaluate the present model beside the next round, if there is something to evaluate it with."""
        if self._job.evaluate is not None:
            measure = partial(self._job.evaluate, round_, self.model)
        elif self._job.task.evaluate:
            measure = partial(self.common.evaluate, self.model)
        else:
            return
        self._measuring.append((round_, self._beside.submit("evaluation", round_, measure)))

    def _taken_mean(self, weight: float) -> Vector | None:
        """Return the mean update of the round, if it has one, and begin anew."""
        mean, self._mean = self._mean, None
        return mean if self._job.federation is not None else self._sum.mean(weight)

    def _checkpoint(self, apply: Apply) -> Checkpoint:
        state = typed.dumps(typed.write(self._run.state())).decode()
        return Checkpoint(apply.round, apply.version, self.model, self._optimizer.state(), state)

    def _save(self, save: Save, checkpoint: Checkpoint) -> None:
        try:
            save(checkpoint)
        except FedgcError as error:
            self._log.log(WARNING, "round %d: %s", checkpoint.round, error)

    def _append(self, row: RoundRow, link: Link) -> None:
        self._sum.clear()
        self._ring = self._mean = None
        clients = tuple(_counted(client, link) for client in row.clients)
        reason, left_out = (self._by_name(said, link) for said in (row.reason, row.left_out))
        row = replace(row, clients=clients, reason=reason, left_out=left_out)
        self._log.log(INFO, "%s", line_of(row))
        self._over += 1
        self._skipped += row.outcome == "skipped"
        self._job.sink.append(row)
        for client in row.clients:
            if client.failure:
                name = link.name(client.client) or client.client
                self._warn_once(client.client, row.round, f"{name}: {' '.join(client.failure.split())}")
        self._account(row)
        if self._due is not None and self._job.save:
            self._keep(self._job.save, self._due)
        self._due = None

    def _keep(self, save: Save, due: Checkpoint) -> None:
        """Write a checkpoint beside the next round; under masks at once.

        No site masks an update of a model of which a sum was had: from that no run can go on.
        """
        if self._job.federation is not None:
            self._save(save, due)
        else:
            self._beside.submit("checkpoint", due.round, partial(self._save, save, due))

    def _account(self, row: RoundRow) -> None:
        """Say how much privacy the sums up to this one have spent, where that is agreed on."""
        federation = self._job.federation
        if federation is not None and federation.privacy is not None and row.outcome in RELEASES:
            self._spent[row.round] = {"epsilon": federation.privacy.spent(row.version + 1)}
            self._job.sink.evaluated(row.round, self._spent[row.round])

    def _hear_measures(self, *, wait: bool) -> None:
        while self._measuring and (wait or self._measuring[0][1].done()):
            round_, future = self._measuring.pop(0)
            try:
                self.metrics[round_] = {**future.result(), **self._spent.get(round_, {})}
            except CancelledError:  # it was left out, and that was said
                continue
            except FedgcError as error:
                self._warn_once("evaluation", round_, str(error))
                continue
            figures = " ".join(f"{name}={value:.4g}" for name, value in self.metrics[round_].items())
            self._log.log(INFO, "round %d evaluated: %s", round_, figures)
            self._job.sink.evaluated(round_, self.metrics[round_])

    # ---- for people

    def _warn_once(self, about: str, round_: int, said: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self._log.log(WARNING, "round %d: %s", round_, said)

    def _by_name(self, text: str, link: Link) -> str:
        """Return a sentence with the names of clients for their identities."""
        for client, name in (self._names | {each: link.name(each) for each in link.clients()}).items():
            text = text.replace(client, name or client)
        return text

    def _show(self, link: Link) -> None:
        now = self._clock()
        if now - self._shown >= PRESENT_S:
            self._shown = now
            self._job.sink.present(self._live(link))

    def _live(self, link: Link) -> Live:
        current = self._run.round
        covered, chunks, replicas = current.progress if current else (0, 0, 0)
        phase = "over" if self.finished else current.state.value if current else "gathering"
        return Live(
            round=self._run.number,
            rounds=self._job.config.rounds,
            version=self._run.version,
            phase=phase,
            elapsed_s=self._clock() - self._started,
            covered=covered,
            chunks=chunks,
            replicas=replicas,
            clients=self._live_clients(link),
            unit="clients" if self._job.config.work == "local" else "chunks",
        )

    def _live_clients(self, link: Link) -> tuple[LiveClient, ...]:
        current, present = self._run.round, set(link.clients())
        planned = current.plan.clients if current else ()
        finished, held = _done_of(current) if current else ({}, {})
        self._names |= {client: link.name(client) for client in present | set(planned)}
        return tuple(
            LiveClient(
                client,
                name,
                client in present,
                finished.get(client, 0),
                link.link(client),
                held.get(client, 0),
            )
            for client, name in sorted(self._names.items(), key=lambda pair: (pair[1], pair[0]))
        )


def _done_of(current: Round) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return what each client has done of what is its to do: chunks, or steps of local work."""
    plan, statistics = current.plan, current.statistics
    if plan.work == "local":
        done, held = statistics.steps, [plan.steps] * len(plan.clients)
    else:
        done, held = statistics.finished, list(plan.placement.loads)
    return dict(zip(plan.clients, done, strict=True)), dict(zip(plan.clients, held, strict=True))


def _counted(row: ClientRow, link: Link) -> ClientRow:
    amounts = link.settle(row.client)
    return replace(
        row,
        up_bytes=amounts.up_bytes,
        down_bytes=amounts.down_bytes,
        control_bytes=amounts.control_bytes,
        upload_s=amounts.upload_s,
        download_s=amounts.download_s,
        refused=row.refused + amounts.refused,
        link=link.link(row.client),
    )


def line_of(row: RoundRow) -> str:
    """Return the one line that a round is worth in the log."""
    up = sum(client.up_bytes for client in row.clients)
    down = sum(client.down_bytes for client in row.clients)
    control = sum(client.control_bytes for client in row.clients)
    loss = "-" if row.loss is None else f"{row.loss:.4g}"
    return (
        f"round {row.round} {row.outcome} version={row.version} loss={loss}"
        f" covered={row.covered}/{row.chunks} blocks={row.blocks} clients={len(row.clients)}"
        f" working_s={row.working_s:.3f} collecting_s={row.collecting_s:.3f}"
        f" up={up} down={down} control={control} discarded={row.discarded} repairs={row.repairs}"
        f" reason={row.reason!r}"
    )
