"""Training under simulated time: real gradients of a real task with the clock of a simulation.

In coded work a chunk's update depends only on the model, the chunk and the seed, so every holder computes the
same one. One engine therefore serves the whole fleet: it trains a chunk when the first client has finished
it, and mixes the codewords of all clients. The result is bit-identical to separate engines. In local work
every client has an engine of its own, taken to as many steps as the clock allows; a client that dies without
its work loses it. `Job.engines` replaces these engines, for example by one that trains all models as a batch.
`partial` off simulates servers that discard the steps of unfinished clients, for comparison.

    trained = train(Job(task, config, scenario))
    [(point.seconds, point.metrics["accuracy"]) for point in trained.points]

All clients can load all chunks; the placement decides what each holds. In coded work a chunk's work is
proportional to its samples, a unit being a client's equal share; in local work a round's steps are a unit.
"""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from fedgc.codecs import EXACT, make_codec
from fedgc.config import RunConfig
from fedgc.errors import BadSetting, EdgeFailed, Refused
from fedgc.history import RoundRow
from fedgc.messages import (
    Add,
    Continue,
    Failed,
    Held,
    Progress,
    Repair,
    Report,
    Reveal,
    Take,
    Work,
)
from fedgc.run.machine import Append, Apply, Run, RunParts
from fedgc.run.planner import Planner
from fedgc.run.sample_pins import SamplePins
from fedgc.sim.clock import UNCONTENDED, ArrayClientModel, Finding, Line, Scenario, Terms, VirtualClock
from fedgc.sim.exclusion import Exclusion
from fedgc.sim.ours import SHARED
from fedgc.training import Answer, CommonModel, Engine, ServerOptimizer, Vector, new_engine
from fedgc.training.pace import Pace
from fedgc.training.round_sum import RoundSum
from fedgc.training.tasks import Task

MODELS_KEPT: Final = 4  # common models from which a client with latency may begin
FLEET: Final = "fleet"  # the one engine's name
PRIVACY: Final = 1  # the stream of seeds for noise
STILL: Final = Pace(float, lambda _: None)  # the virtual clock measures the time


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

    def __post_init__(self) -> None:
        if self.engines is not None and self.config.work != "local":
            raise BadSetting(f"training: saw engines for {self.config.work} work, needed local work")
        if self.config.fragments > 1 or self.config.download_codec != EXACT:
            raise BadSetting("training: saw links.fragments or links.download-codec, needed their defaults")
        if len(self.scenario) < self.config.rounds:
            raise BadSetting(
                f"training: saw {len(self.scenario)} rounds of scenario, needed {self.config.rounds}"
            )


@dataclass(frozen=True, slots=True)
class Point:
    """The state of training at the end of a round."""

    seconds: float
    row: RoundRow
    sent: float  # whole updates so far
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of training: points over time, and the model."""

    points: tuple[Point, ...]
    model: Vector = field(repr=False)


class Engines(Protocol):
    """Trains for simulated clients; also an observer of the clock."""

    def begin(self, work: Work) -> None:
        """A client was given this work."""

    def carry_on(self, work: Continue) -> None:
        """A client continues from a round that was not exchanged."""

    def finding(self, chunk: int, target: int) -> Finding:
        """Return the finding of taking this chunk to that many steps."""

    def reached(self, client: str, steps: int) -> Finding:
        """Return the finding of this client's local work after that many steps."""

    def lost(self, client: str) -> None:
        """A client has lost its state."""

    def load(self, version: int, model: Vector) -> None:
        """Store a new common model."""

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

    def begin(self, work: Work) -> None:
        """Prepare a round; the work of each client names its own chunks."""
        names = dict(work.names)
        if self._work is None or self._work.round < work.round:
            self._found.clear()
        else:
            names |= dict(self._work.names)
        self._work = replace(work, client=FLEET, order=(), names=tuple(sorted(names.items())), lockstep=False)
        self.engine.handle(self._work)

    def carry_on(self, work: Continue) -> None:
        """Continue from the last round."""
        if self._work is not None and self._work.round < work.round:
            self._work = replace(self._work, round=work.round, target=work.target)
            self.engine.handle(Continue(FLEET, work.round, work.target, (), work.lease_s))

    def finding(self, chunk: int, target: int) -> Finding:
        """Train the chunk, or return the stored result."""
        if (chunk, target) not in self._found:
            self._found[chunk, target] = self._trained(chunk)
        return self._found[chunk, target]

    def reached(self, client: str, steps: int) -> Finding:
        """Raise: local work needs one model for each client."""
        raise EdgeFailed(f"training: {client} did {steps} steps of local work, needed coded work")

    def lost(self, client: str) -> None:
        """Do nothing: the engine can compute a lost replica again."""

    def load(self, version: int, model: Vector) -> None:
        """Store the new common model."""
        self.engine.load(version, model)

    def sent(self, command: Reveal | Repair) -> Vector:
        """Mix the codeword."""
        if command.mix is None:
            raise EdgeFailed(f"training: {command.client} was asked for no mix, needed coded work")
        return _vector_of(self.engine.answer(command), command)

    def close(self) -> None:
        """Release all state."""
        self.engine.close()

    def _trained(self, chunk: int) -> Finding:
        if self._work is None:
            raise BadSetting(f"training: chunk {chunk} was finished before any work was given")
        self.engine.handle(Take(FLEET, self._work.round, (chunk,)))
        while not self.engine.idle:
            said = self.engine.step()
            if isinstance(said, Failed):
                raise EdgeFailed(f"training: {said.reason}")
            if isinstance(said, Progress):
                return Finding(said.samples, said.squared_norm, said.loss, said.sketch)
        raise EdgeFailed(f"training: chunk {chunk} did not finish")


class OneForEach:
    """One engine for each client of local work, trained on the data of the plan."""

    def __init__(self, job: "Job", folder: Path) -> None:
        self._job, self._folder = job, folder
        self._models: dict[int, Vector] = {}
        self._engines: dict[str, Engine] = {}
        self._found: dict[str, tuple[int, Finding]] = {}  # steps since the common model, and their finding

    def begin(self, work: Work) -> None:
        """Give the work to the client's engine."""
        engine = self._engine(work.client)
        versions = (work.version - 1, work.version) if work.common_steps else (work.version,)
        for version in versions:
            if version in self._models:
                engine.load(version, self._models[version])
        engine.handle(work)
        reached = max((each.reached for each in engine.kept()), default=0)
        if not reached:
            self._found.pop(work.client, None)

    def carry_on(self, work: Continue) -> None:
        """Continue the client's work."""
        self._engine(work.client).handle(work)

    def finding(self, chunk: int, target: int) -> Finding:
        """Raise: local work does not train single chunks."""
        raise EdgeFailed(f"training: chunk {chunk} was taken to {target} steps, needed local work")

    def reached(self, client: str, steps: int) -> Finding:
        """Train to this number of steps."""
        at, found = self._found.get(client, (0, Finding()))
        if at < steps:
            engine = self._engine(client)
            report = _stepped(engine, steps)
            found = Finding(report.samples, report.squared_norm, report.loss)
            self._found[client] = (steps, found)
        return found

    def lost(self, client: str) -> None:
        """Discard the client's work."""
        if client in self._engines:
            self._engines.pop(client).close()
        self._found.pop(client, None)

    def load(self, version: int, model: Vector) -> None:
        """Store the new common model and a few earlier ones from which clients may still begin."""
        self._models = {old: each for old, each in self._models.items() if old > version - MODELS_KEPT}
        self._models[version] = model

    def sent(self, command: Reveal | Repair) -> Vector:
        """Return the client's update as decoded by the server."""
        if isinstance(command, Repair):
            raise EdgeFailed(f"training: {command.client} was asked for a repair, needed local work")
        engine = self._engine(command.client)
        answer = engine.answer(command)
        if answer is not None and answer.encoded is not None:
            return make_codec(command.wire).decode(answer.encoded, engine.size)
        return _vector_of(answer, command)

    def close(self) -> None:
        """Release all state."""
        for engine in self._engines.values():
            engine.close()

    def _engine(self, client: str) -> Engine:
        if client not in self._engines:
            task, config = self._job.task, self._job.config
            self._engines[client] = new_engine(task, config, STILL, self._folder)
        return self._engines[client]


def _vector_of(answer: Answer | None, command: Reveal | Repair) -> Vector:
    if answer is None or answer.vector is None:
        raise EdgeFailed(f"training: {command.client} sent no vector")
    vector: Vector = answer.vector[:]
    return vector


def _stepped(engine: Engine, steps: int) -> Report:
    """Continue local work to this number of steps; return the client's report."""
    said = None
    while max((each.reached for each in engine.kept()), default=0) < steps and not engine.idle:
        said = engine.step()
        if isinstance(said, Failed):
            raise EdgeFailed(f"training: {said.reason}")
    report = said if isinstance(said, Report) else next(iter(engine.keep()), None)
    if not isinstance(report, Report) or report.steps != steps:
        raise EdgeFailed(f"training: saw no local work of {steps} steps, needed some")
    return report


def engines_of(job: Job, folder: Path) -> Engines:
    """Return the engines for this job."""
    if job.config.work == "coded":
        return OneForAll(job.task, job.config, folder)
    return job.engines(job, folder) if job.engines is not None else OneForEach(job, folder)


class _Training:
    """One training run: machine, clock, engines and sum."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._job = job
        self._common = CommonModel(job.task, job.config)
        self._optimizer = ServerOptimizer(job.config, self._common.parameters)
        self.model = self._common.first()
        chance = np.random.default_rng([job.config.seed, PRIVACY]).bytes
        self._sum = RoundSum(job.config, self._common.size, chance)
        job.task.allow(job.config.placement)
        self._fleet = engines_of(job, folder)
        self._load(0)
        self._metrics: Mapping[str, float] = {}
        self.points: list[Point] = []
        held = tuple(Held(name, samples, SHARED) for name, samples in job.task.sizes().items())
        self._clock = self._made(held)
        self._exclusion = Exclusion(self._clock.up_s, 4 * self._common.size)
        parts = RunParts(job.planner, pins=SamplePins(job.config.pinned_samples))
        self._run = Run(job.config, now=0.0, size=self._common.size, parts=parts)

    def _load(self, version: int) -> None:
        self._fleet.load(version, self.model)
        self._sum.begin(version, self.model, self._common.layout.shapes)

    def _made(self, held: tuple[Held, ...]) -> VirtualClock:
        scenario = self._job.scenario
        clients, samples = scenario[0].clients, sum(each.samples for each in held)
        local = self._job.config.work == "local"
        units = [1.0] if local else [each.samples * clients / samples for each in held]
        client_model = ArrayClientModel(lambda number: scenario[number - 1], units)
        terms = Terms(
            self._job.config.round_steps, 4 * self._common.size, self._job.line, partial=self._job.partial
        )
        return VirtualClock([f"client {at}" for at in range(clients)], client_model, terms, held, self._fleet)

    def run(self, until: Callable[[Point], bool]) -> None:
        """Run from the first client to the last round, or until the caller has seen enough."""
        given: list[Any] = []
        for w in range(self._job.scenario[0].clients):
            given += self._run.handle(self._clock.joined(w, 0.0))
        try:
            self._clock.run(self._run, given, lambda: self._ended(until), self._heed)
        finally:
            self._fleet.close()

    def _ended(self, until: Callable[[Point], bool]) -> bool:
        return self._run.finished or (bool(self.points) and until(self.points[-1]))

    def _heed(self, output: object) -> None:
        if isinstance(output, Add):
            self._add(output)
        elif isinstance(output, Apply):
            self._apply(output)
        elif isinstance(output, Append):
            self._sum.clear()
            self.points.append(Point(self._clock.now, output.row, self._clock.sent, self._metrics))
            for client, pause_s in self._exclusion.after(output, self._clock.now):
                self._clock.exclude(client, pause_s)

    def _add(self, add: Add) -> None:
        self._sum.add(add, self._fleet.sent(self._clock.asked[add.client, add.attempt]))

    def _apply(self, apply: Apply) -> None:
        with suppress(Refused):  # as on a server, the update is left out
            mean = self._sum.mean(apply.weight)
            if mean is not None:
                self.model = self._optimizer.apply(self.model, mean)
        self._load(apply.version)
        every = self._job.config.evaluate_every
        if every and apply.round % every == 0:
            self._metrics = self._common.evaluate(self.model)


def train(job: Job, until: Callable[[Point], bool] = lambda _: False) -> Trained:
    """Train to the end, or `until` a round is the last one; an engine's failure ends the run."""
    with tempfile.TemporaryDirectory(prefix="fedgc-sim-") as folder:
        training = _Training(job, Path(folder))
        training.run(until)
    return Trained(tuple(training.points), training.model)
