"""Training under simulated time: real gradients of a real task with the clock of a simulation.

In coded work a chunk's update depends only on the model, the chunk and the seed, so every holder computes the
same one. One engine therefore serves all clients: it trains a chunk when the first client has finished it,
and mixes the codewords of all clients. In local work every client has a trajectory of its own, taken to as
many steps as the clock allows, by a few models in worker processes, or as one batch of models (`fleet`); a
client that dies without its work loses it. Both are bit-identical to an engine for each client, but for a
stack, which is equal up to rounding. `Job.engines` replaces them. `partial` off simulates servers that
discard the steps of unfinished clients, for comparison.

    trained = train(Job(task, config, scenario))
    [(point.seconds, point.metrics["accuracy"]) for point in trained.points]

All clients can load all chunks, and the placement decides what each holds; with `owned` each has its own. In
coded work a chunk's work is proportional to its samples, a unit being a client's equal share; in local work a
round's steps are a unit.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, EdgeFailed, FedgcError, Refused
from fedgc.guards import LOG
from fedgc.history import LEFT_OUT, RoundRow
from fedgc.messages import (
    SUMMED,
    Add,
    Continue,
    Failed,
    Held,
    Progress,
    Repair,
    Reveal,
    Take,
    Work,
)
from fedgc.processes.temporary_folder import temporary_folder
from fedgc.run.machine import Append, Apply, Finished, Run, RunParts
from fedgc.run.outlier_gain import shows_gains
from fedgc.run.planner import Planner
from fedgc.run.sample_pins import SamplePins
from fedgc.sim.checkpoint import Checkpoint, Findings, Keeper, Made, Numbers, Part
from fedgc.sim.clock import UNCONTENDED, ClientModel, Finding, Line, Scenario, Terms, VirtualClock
from fedgc.sim.clock.interfaces import Observer
from fedgc.sim.exclusion import Exclusion
from fedgc.sim.fleet import Fleet
from fedgc.sim.ours import SHARED
from fedgc.training import Answer, CommonModel, Vector, new_engine
from fedgc.training.digest import content_digest, probed
from fedgc.training.next_model import NextModel
from fedgc.training.round_sum import RoundSum
from fedgc.training.simulated import STILL
from fedgc.training.tasks import Task
from fedgc.training.trainer import set_threads

FLEET: Final = "fleet"  # the one engine's name
DIGESTED: Final = 64  # chunks that the digest of the data covers
PRIVACY: Final = 1  # the stream of seeds for noise


@dataclass(frozen=True, slots=True)
class Job:
    """The task, settings and scenario of one training run; the scenario has one entry for each round."""

    task: Task
    config: RunConfig
    scenario: Scenario
    line: Line = UNCONTENDED
    engines: "Callable[[Job, Path], Engines] | None" = None  # replaces an engine for each client
    partial: bool = True
    planner: Planner | None = None
    make: Callable[[], Task] | None = None  # makes the task in worker processes
    workers: int = 1
    stack: int = 1  # clients that are trained as one batch of models
    ray: str = ""  # the address of a Ray cluster that the processes are on; empty: this machine
    keeps_clients: bool = True  # the points of the result have the rows of clients
    owned: bool = False  # each client has an equal share of the chunks, and no other can load them
    grace_s: float = 0.0  # until the server notices that a client has died

    def __post_init__(self) -> None:
        if self.engines is not None and self.config.work != "local":
            raise BadSetting(f"training: saw engines for {self.config.work} work, needed local work")
        if self.config.fragments > 1:
            raise BadSetting(f"training: saw links.fragments = {self.config.fragments}, needed 1")
        if self.engines is None and self.config.protects_records:
            raise BadSetting("privacy.unit: saw record, which is not simulated, needed client")
        if (self.workers > 1 or self.ray) and self.make is None:
            raise BadSetting(
                f"training: saw {self.workers} processes, needed a function that makes the task in each"
            )
        beside = {
            "coded work": self.config.work != "local",
            f"{self.workers} processes": self.workers > 1,
            "Ray": bool(self.ray),
            "engines of the caller": self.engines is not None,
        }
        for seen in (name for name, given in beside.items() if given and self.stack > 1):
            raise BadSetting(
                f"training: saw a stack of {self.stack} clients with {seen}, "
                "needed local work in this process"
            )
        if len(self.scenario) < self.config.rounds:
            raise BadSetting(
                f"training: saw {len(self.scenario)} rounds of scenario, needed {self.config.rounds}"
            )

    def description(self, common: CommonModel) -> dict[str, object]:
        """Return the settings, and digests of the first model, data and clients."""
        model, sizes = sha256(repr(common.layout).encode()), self.task.sizes()
        model.update(common.first().data)
        data, names = sha256(repr(sorted(sizes.items())).encode()), list(sizes)
        for at in probed(len(names), DIGESTED):
            data.update(content_digest(self.task, names[at], sizes[names[at]]).encode())
        clients = sha256(repr((self.line, self.partial, self.owned, self.grace_s)).encode())
        for conditions in self.scenario:
            for each in fields(conditions):
                clients.update(np.asarray(getattr(conditions, each.name)).tobytes())
        return {
            **{name: version(name) for name in ("fedgc", "numpy", "torch")},
            **self.config.table(),
            "clients as a stack": "yes" if self.stack > 1 else "no",
            "digest of the first model": model.hexdigest()[:8],
            "digest of the data": data.hexdigest()[:8],
            "digest of speeds, links and failures": clients.hexdigest()[:8],
        }


@dataclass(frozen=True, slots=True)
class Point:
    """The state of training at the end of a round."""

    seconds: float
    row: RoundRow
    sent: float  # whole updates so far
    down: float  # whole models that clients were sent so far
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of training: points over time, and the model.

    If it ended before its last round, `ended` says what failed, or `spent` that no privacy budget is left.
    """

    points: tuple[Point, ...]
    model: Vector = field(repr=False)
    ended: str = ""
    spent: str = ""


class Engines(Observer, Protocol):
    """Trains for simulated clients; also an observer of the clock."""

    def load(self, version: int, model: Vector, in_transit: Collection[int] = ()) -> None:
        """Store a new common model; clients will begin from those that are `in_transit`, too."""

    def sent(self, command: Reveal | Repair) -> Vector:
        """Return the vector that a client sends for this command."""

    def close(self) -> None:
        """Release all state."""


class OneForAll:
    """One engine for all clients of coded work."""

    def __init__(self, task: Task, config: RunConfig, folder: Path) -> None:
        self.engine = new_engine(task, config, STILL, folder)
        self._work: Work | None = None
        self._found: dict[tuple[int, int], Finding] = {}
        self.models: dict[int, Vector] = {}  # the last two
        self.findings = Findings()

    def begin(self, work: Work) -> None:
        """Prepare a round; the work of each client names its own chunks."""
        names = dict(work.names)
        if self._work is None or self._work.round < work.round:
            self._found.clear()
        else:
            names |= dict(self._work.names)
        self._work = replace(work, client=FLEET, order=(), names=tuple(sorted(names.items())), lockstep=False)
        self._handle(self._work)

    def carry_on(self, work: Continue) -> None:
        """Continue from the last round."""
        if self._work is not None and self._work.round < work.round:
            self._work = replace(self._work, round=work.round, target=work.target)
            self._handle(Continue(FLEET, work.round, work.target, (), work.lease_s))

    def _handle(self, command: Work | Continue) -> None:
        if not self.findings.replays:
            self.engine.handle(command)

    def finding(self, chunk: int, target: int) -> Finding:
        """Train the chunk, or return the stored result."""
        if (chunk, target) not in self._found:
            self._found[chunk, target] = self.findings.of(lambda: self._trained(chunk), _finding)
        return self._found[chunk, target]

    def reached(self, client: str, steps: int) -> Finding:
        """Raise: local work needs one model for each client."""
        raise EdgeFailed(f"training: {client} did {steps} steps of local work, needed coded work")

    def lost(self, client: str) -> None:
        """Do nothing: the engine can compute a lost replica again."""

    def load(self, version: int, model: Vector, in_transit: Collection[int] = ()) -> None:  # noqa: ARG002
        """Store the new common model; in coded work no client begins from an older one."""
        before = {old: each for old, each in self.models.items() if old == version - 1}
        self.models = before | {version: model}
        self.engine.load(version, model)

    def sent(self, command: Reveal | Repair) -> Vector:
        """Mix the codeword."""
        if command.mix is None:
            raise EdgeFailed(f"training: {command.client} was asked for no mix, needed coded work")
        return _vector_of(self.engine.answer(command), command)

    def close(self) -> None:
        """Release all state."""
        self.engine.close()

    # ---- checkpoints

    @property
    def settled(self) -> bool:
        """Whether the work is that of the newest model, from which it can be done again."""
        return self._work is not None and self._work.version == max(self.models)

    def parts(self) -> tuple[Part, ...]:
        """Return nothing: what is lost can be trained again."""
        return ()

    def restore(self, kind: str, of: Sequence[Any], data: bytes) -> None:
        """Do nothing."""

    def restored(self) -> None:
        """Train again what this round has trained, after the same commands as before."""
        if self._work is not None:
            self.engine.handle(self._work)
        for chunk, _ in self._found:
            self._trained(chunk)

    # ---- training

    def _trained(self, chunk: int) -> tuple[float, ...]:
        if self._work is None:
            raise BadSetting(f"training: chunk {chunk} was finished before any work was given")
        self.engine.handle(Take(FLEET, self._work.round, (chunk,)))
        while not self.engine.idle:
            said = self.engine.step()
            if isinstance(said, Failed):
                raise EdgeFailed(f"training: {said.reason}")
            if isinstance(said, Progress):
                return said.samples, said.squared_norm, said.loss, *said.sketch
        raise EdgeFailed(f"training: chunk {chunk} did not finish")


def _finding(samples: float, squared_norm: float, loss: float, *sketch: float) -> Finding:
    return Finding(int(samples), squared_norm, loss, sketch)


def _vector_of(answer: Answer | None, command: Reveal | Repair) -> Vector:
    if answer is None or answer.vector is None:
        raise EdgeFailed(f"training: {command.client} sent no vector")
    vector: Vector = answer.vector[:]
    return vector


def engines_of(job: Job, folder: Path, buffers: int) -> Engines:
    """Return the engines for this job, whose model has so many numbers in buffers."""
    if job.config.work == "coded":
        return OneForAll(job.task, job.config, folder)
    return job.engines(job, folder) if job.engines is not None else Fleet(job, folder, buffers)


Heard = Callable[[Point], object]
Progressed = Callable[[float], object]


class _Training:
    """One training run: machine, clock, engines and sum."""

    def __init__(
        self,
        job: Job,
        folder: Path,
        heard: Heard,
        progressed: Progressed,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._job, self._heard, self._progressed = job, heard, progressed
        set_threads(job.config)  # as worker processes do: evaluation gives the same figures
        self._common = CommonModel(job.task, job.config)
        self._optimizer = NextModel(
            job.config, self._common.parameters, self._common.size, self._common.layout.variances
        )
        self.model = self._common.first()
        noise = np.random.default_rng([job.config.seed, PRIVACY])
        parameters = self._common.parameters
        evaluates = bool(job.config.evaluate_every) and self._common.evaluates
        self._sum = RoundSum(
            job.config, self._common.size, noise.bytes, parameters=parameters, checks=evaluates
        )
        job.task.allow(job.config.placement)
        self._fleet = engines_of(job, folder, self._common.layout.buffer_size)
        self._keeper: Keeper | None = None
        if checkpoint is not None and isinstance(self._fleet, Fleet | OneForAll):
            numbers = Numbers(self._fleet, self._optimizer, self._sum, noise)
            self._keeper = Keeper(checkpoint, job.description(self._common), numbers)
        self._clock = self._made(job.task.sizes())
        self._load(0)
        self._metrics: Mapping[str, float] = {}
        self._left_out = ""  # why the update of the present round is not used
        self._uncounted: Collection[str] = ()  # the clients whose updates did not count in the last mean
        self.points: list[Point] = []
        self.ended = ""  # why, if early
        if isinstance(self._fleet, Fleet):
            self._fleet.forecast, self._fleet.taken = self._clock.forecast, self._noted
        self._exclusion = Exclusion(self._clock.up_s, 4 * self._common.size)
        pins, buffers = SamplePins(job.config.pinned_samples), self._common.layout.buffer_size
        parts = RunParts(job.planner, pins=pins, buffers=buffers)
        self._run = Run(job.config, now=0.0, size=self._common.size, parts=parts)

    @property
    def average(self) -> Vector:
        """The model to use: the one that clients train from, except with schedule-free SGD."""
        return self._optimizer.average(self.model)

    @property
    def spent(self) -> str:
        """Why no exchange can follow: nothing is left of the privacy budget; empty if one can."""
        return self._sum.private.ending if self._sum.private is not None else ""

    def _load(self, version: int) -> None:
        self._fleet.load(version, self.model, self._clock.downloads.versions)
        oldest = self._run.oldest if version else 0  # there is no run before the first model
        self._sum.begin(version, self.model, self._common.layout.shapes, oldest)

    def _made(self, sizes: Mapping[str, int]) -> VirtualClock:
        job, clients = self._job, self._job.scenario[0].clients
        samples, local = sum(sizes.values()), job.config.work == "local"
        units = [1.0] if local else [each * clients / samples for each in sizes.values()]
        client_model = ClientModel(lambda number: job.scenario[number - 1], units)
        terms = Terms(
            job.config.round_steps, 4 * self._common.size, job.line, job.grace_s, partial=job.partial,
            download_codec=job.config.download_codec, buffers=self._common.layout.buffer_size,
        )  # fmt: skip
        held = [Held(name, samples, "" if job.owned else SHARED) for name, samples in sizes.items()]
        ends = [len(held) * at // clients for at in range(clients + 1)]
        owned = [held[begin:end] for begin, end in pairwise(ends)] if job.owned else ()
        names = [f"client {at}" for at in range(clients)]
        return VirtualClock(names, client_model, terms, () if owned else held, self._fleet, owned)

    def run(self, until: Callable[[Point], bool]) -> None:
        """Run from the first client to the last round, or until the caller has seen enough."""
        given: list[Any] = []
        for w in range(self._job.scenario[0].clients):
            given += self._run.handle(self._clock.joined(w, 0.0))
        try:
            self._clock.run(self._run, given, lambda: self._ended(until), self._heed)
        finally:
            self._fleet.close()
        if self._keeper is not None:
            self._keeper.over()

    def _ended(self, until: Callable[[Point], bool]) -> bool:
        ended = self._run.finished or (bool(self.points) and (bool(self.spent) or until(self.points[-1])))
        keeper = self._keeper if self._replays or not ended else None
        if keeper is not None and keeper.turn(self._clock.now):
            self.model = keeper.model
            self._sum.begin(self._run.version, self.model, self._common.layout.shapes)
        return ended

    @property
    def _replays(self) -> bool:
        return self._keeper is not None and self._keeper.replays

    def _heed(self, output: object) -> None:
        if isinstance(output, Add):
            self._add(output)
        elif isinstance(output, Apply):
            self._apply(output)
        elif isinstance(output, Append):
            if output.row.outcome in SUMMED:
                self._sum.clear()
            why, self._left_out = self._left_out, ""
            row = output.row.without_steps_of(self._uncounted)
            row = row.without_update(why) if why else row
            up, down = self._clock.uploads.sent, self._clock.downloads.sent
            self._append(Point(self._clock.now, row, up, down, self._metrics))
            for client, pause_s in self._exclusion.after(output, self._clock.now):
                self._clock.exclude(client, pause_s)
        elif isinstance(output, Finished) and not output.complete:
            self.ended = output.reason

    def _append(self, point: Point) -> None:
        self._heard(point)
        kept = point if self._job.keeps_clients else replace(point, row=replace(point.row, clients=()))
        self.points.append(kept)
        self._noted(0)
        if self._keeper is not None:
            due = self._job.config.work == "local" or point.row.outcome in SUMMED
            self._keeper.ended(len(self.points), due=due)

    def _noted(self, taken: int) -> None:
        """Report the rounds that are done, with a part for the clients that have worked in this one."""
        self._progressed(len(self.points) + min(1.0, taken / self._job.scenario[0].clients))

    def _add(self, add: Add) -> None:
        if not self._replays:
            vector = self._fleet.sent(self._clock.asked[add.client][add.attempt])
            with suppress(FedgcError):  # the round has no mean then, as on a server
                self._sum.add(add, vector)

    def _apply(self, apply: Apply) -> None:
        keeper = self._keeper
        make = partial(self._applied, apply)
        self._metrics, self._left_out, self._uncounted = make() if keeper is None else keeper.made(make)
        if self._left_out:
            self._clock.downloads.unchanged.add(apply.version)

    def _applied(self, apply: Apply) -> Made:
        left_out, before = "", self.model
        figures: Mapping[str, float] = {}
        try:
            mean = self._sum.mean(apply.weight, apply.round)
            if mean is not None:
                self.model, _ = self._optimizer.apply(self.model, mean, apply.version - 1)
            if self._sum.private is not None:
                figures = self._sum.private.figures
        except Refused as error:  # as on a server
            left_out = str(error)
            LOG.warning("round %d: %s: %s", apply.round, LEFT_OUT, left_out)
        uncounted = sorted(self._sum.uncounted)
        self._load(apply.version)
        if not self._job.config.evaluates_after(apply.round):
            return figures, left_out, uncounted
        evaluated = self._common.evaluate(self.average)
        is_last = apply.round >= self._job.config.rounds
        check = self._sum.check if self.model is not before and not is_last else None
        if check is not None and shows_gains(evaluated):
            other = self._optimizer.average(check.alternative(before, self.model))
            self._sum.compared(check, evaluated, self._common.evaluate(other))
        return {**figures, **evaluated}, left_out, uncounted


def train(
    job: Job,
    heard: Heard = lambda _: None,
    progressed: Progressed = lambda _: None,
    until: Callable[[Point], bool] = lambda _: False,
    within: Path | None = None,
    checkpoint: Checkpoint | None = None,
) -> Trained:
    """Train to the end, or `until` a round is the last one; an engine's failure ends the run.

    `heard` receives each round as it ends, and `progressed` the number of rounds done, with fractions.
    Temporary files are `within` a folder, else within the system's. If there is a checkpoint, training goes
    on from it, and gives the same result; `heard` receives all rounds from the first.
    """
    if checkpoint is not None and job.engines is not None:
        raise BadSetting("checkpoint: saw engines of the caller, needed those of fedgc")
    if checkpoint is not None and job.config.late_updates == "count":  # it would need older models
        raise BadSetting("checkpoint: saw aggregation.late-updates = count, needed wait")
    with (
        nullcontext() if checkpoint is None else closing(checkpoint),
        temporary_folder("fedgc-simulation-", within) as folder,
    ):
        training = _Training(job, folder, heard, progressed, checkpoint)
        training.run(until)
    spent = training.spent if len(training.points) < job.config.rounds else ""
    return Trained(tuple(training.points), training.average, training.ended, spent)
