"""Training under simulated time: real gradients of a real task, the clock of a simulation.

In coded work a chunk's update is a function of the model, the chunk and the seed alone: every client that
holds the chunk makes the same one. So one engine stands for the whole fleet: it takes a chunk to its target
the first time that any client has finished it, and mixes the codewords of all. Nothing is left out by that,
not a bit of the result: the sum is made of the same codewords, in the order in which they would have arrived.
In local work every client has an engine of its own, which is taken to as many steps as the clock allows; a
client that dies without its work loses it. `Job.engines` replaces these engines, for example by one that
trains all models at once; `partial` off is for comparison, with servers that have no use for the steps of a
client that did not do all.

    trained = train(Job(task, config, scenario))
    [(point.seconds, point.metrics["accuracy"]) for point in trained.points]

All clients can load all chunks; what a client holds, the placement says. In coded work a chunk's work goes
with its samples, a unit being a client's equal share; in local work a round's steps are a unit.
"""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from fedgc.codecs import EXACT, make_codec, rounding
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
from fedgc.sim.clock import UNCONTENDED, ArrayClientModel, Finding, Line, Scenario, Terms, VirtualClock
from fedgc.sim.ours import SHARED
from fedgc.training import CommonModel, Engine, ServerOptimizer, Vector, new_engine
from fedgc.training.pace import Pace
from fedgc.training.round_sum import RoundSum
from fedgc.training.tasks import Task

MODELS_KEPT: Final = 4  # common models from which a client that hears late may begin
FLEET: Final = "fleet"  # the one engine's name
STILL: Final = Pace(float, lambda _: None)  # the virtual clock counts the time


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained, with which settings, on which machines; the scenario holds a round for each."""

    task: Task
    config: RunConfig
    scenario: Scenario
    line: Line = UNCONTENDED
    engines: "Callable[[Job, Path], Engines] | None" = None  # in place of an engine for each client
    partial: bool = True
    planner: Planner | None = None

    def __post_init__(self) -> None:
        if self.engines is not None and self.config.work != "local":
            raise BadSetting(f"training: saw engines for {self.config.work} work, needed local work")
        if len(self.scenario) < self.config.rounds:
            raise BadSetting(
                f"training: saw {len(self.scenario)} rounds of scenario, needed {self.config.rounds}"
            )


@dataclass(frozen=True, slots=True)
class Point:
    """Where training stood at the end of a round."""

    seconds: float
    row: RoundRow
    sent: float  # whole updates so far
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Trained:
    """What came out: the way, and the model."""

    points: tuple[Point, ...]
    model: Vector = field(repr=False)


class Engines(Protocol):
    """Whoever trains; a world's witness as well."""

    def begin(self, work: Work) -> None:
        """A client was given this work."""

    def carry_on(self, work: Continue) -> None:
        """A client goes on from a round that was not exchanged."""

    def finding(self, chunk: int, target: int) -> Finding:
        """Return what a client finds that takes this chunk to that many steps."""

    def reached(self, client: str, steps: int) -> Finding:
        """Return what this client finds in local work that has come to so many steps."""

    def lost(self, client: str) -> None:
        """A client has lost its state."""

    def load(self, version: int, model: Vector) -> None:
        """There is a new common model."""

    def sent(self, told: Reveal | Repair) -> Vector:
        """Return what a client sends that was told this."""

    def close(self) -> None:
        """Forget everything."""


class OneForAll:
    """The engine that stands for the fleet."""

    def __init__(self, task: Task, config: RunConfig, folder: Path) -> None:
        self.engine = new_engine(task, config, STILL, folder)
        self._work: Work | None = None
        self._found: dict[tuple[int, int], Finding] = {}

    def begin(self, work: Work) -> None:
        """Get ready for a round; every client that is told of it names its own chunks."""
        names = dict(work.names)
        if self._work is None or self._work.round < work.round:
            self._found.clear()
        else:
            names |= dict(self._work.names)
        self._work = replace(work, client=FLEET, order=(), names=tuple(sorted(names.items())), lockstep=False)
        self.engine.handle(self._work)

    def carry_on(self, work: Continue) -> None:
        """Go on from where the last round stood."""
        if self._work is not None and self._work.round < work.round:
            self._work = replace(self._work, round=work.round, target=work.target)
            self.engine.handle(Continue(FLEET, work.round, work.target, (), work.lease_s))

    def finding(self, chunk: int, target: int) -> Finding:
        """Train the chunk, or remember it."""
        if (chunk, target) not in self._found:
            self._found[chunk, target] = self._trained(chunk)
        return self._found[chunk, target]

    def reached(self, client: str, steps: int) -> Finding:
        """Refuse: one engine cannot stand for the different models of local work."""
        raise EdgeFailed(f"training: {client} did {steps} steps of local work, needed coded work")

    def lost(self, client: str) -> None:
        """What one client loses, another would make again: nothing is lost here."""

    def load(self, version: int, model: Vector) -> None:
        """Keep the new common model."""
        self.engine.load(version, model)

    def sent(self, told: Reveal | Repair) -> Vector:
        """Mix the codeword, whoever sends it."""
        if told.mix is None:
            raise EdgeFailed(f"training: {told.client} was asked for no mix, needed coded work")
        _, codeword = self.engine.answer(told)
        if codeword is None:
            raise EdgeFailed(f"training: {told.client} sent no codeword")
        return codeword

    def close(self) -> None:
        """Forget everything."""
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
        raise EdgeFailed(f"training: chunk {chunk} came to no end")


class OneForEach:
    """An engine for every client of local work; what it trains on, the plan says."""

    def __init__(self, job: "Job", folder: Path) -> None:
        self._job, self._folder = job, folder
        self._models: dict[int, Vector] = {}
        self._engines: dict[str, Engine] = {}
        self._found: dict[str, tuple[int, Finding]] = {}  # steps since the common model, and what they gave

    def begin(self, work: Work) -> None:
        """Let the client's engine take its work up."""
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
        """Let it go on."""
        self._engine(work.client).handle(work)

    def finding(self, chunk: int, target: int) -> Finding:
        """Refuse: no chunk is trained by itself."""
        raise EdgeFailed(f"training: chunk {chunk} was taken to {target} steps, needed local work")

    def reached(self, client: str, steps: int) -> Finding:
        """Train as far as the clock says."""
        at, found = self._found.get(client, (0, Finding()))
        if at < steps:
            engine = self._engine(client)
            report = _stepped(engine, steps)
            found = Finding(report.samples, report.squared_norm, report.loss)
            self._found[client] = (steps, found)
        return found

    def lost(self, client: str) -> None:
        """Forget all that the client did."""
        if client in self._engines:
            self._engines.pop(client).close()
        self._found.pop(client, None)

    def load(self, version: int, model: Vector) -> None:
        """Keep the new common model, and the few before it from which somebody may still begin."""
        self._models = {old: each for old, each in self._models.items() if old > version - MODELS_KEPT}
        self._models[version] = model

    def sent(self, told: Reveal | Repair) -> Vector:
        """Return the client's update as the server reads it off the wire."""
        if isinstance(told, Repair):
            raise EdgeFailed(f"training: {told.client} was asked for a repair, needed local work")
        _, update = self._engine(told.client).answer(told)
        if update is None:
            raise EdgeFailed(f"training: {told.client} sent an update without steps")
        return _decoded(update, told)

    def close(self) -> None:
        """Forget everything."""
        for engine in self._engines.values():
            engine.close()

    def _engine(self, client: str) -> Engine:
        if client not in self._engines:
            task, config = self._job.task, self._job.config
            self._engines[client] = new_engine(task, config, STILL, self._folder)
        return self._engines[client]


def _stepped(engine: Engine, steps: int) -> Report:
    """Go on with local work up to so many steps; return what its client would report then."""
    said = None
    while max((each.reached for each in engine.kept()), default=0) < steps and not engine.idle:
        said = engine.step()
        if isinstance(said, Failed):
            raise EdgeFailed(f"training: {said.reason}")
    report = said if isinstance(said, Report) else next(iter(engine.keep()), None)
    if not isinstance(report, Report) or report.steps != steps:
        raise EdgeFailed(f"training: saw no local work of {steps} steps, needed some")
    return report


def _decoded(update: Vector, told: Reveal) -> Vector:
    """Return an update as the server decodes it."""
    if told.wire == EXACT:
        return update
    codec = make_codec(told.wire)
    sent = codec.encode(update, rounding(told.round, told.attempt, told.client))
    return codec.decode(sent, update.size)


def engines_of(job: Job, folder: Path) -> Engines:
    """Return the engines that train for this job."""
    if job.config.work == "coded":
        return OneForAll(job.task, job.config, folder)
    return job.engines(job, folder) if job.engines is not None else OneForEach(job, folder)


class _Training:
    """One run: the machine, the clock, the engine, the sum."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._job = job
        self._common = CommonModel(job.task, job.config)
        self._optimizer = ServerOptimizer(job.config, self._common.parameters)
        self.model = self._common.first()
        self._sum = RoundSum(job.config, self._common.size)
        job.task.allow(job.config.placement)
        self._fleet = engines_of(job, folder)
        self._fleet.load(0, self.model)
        self._metrics: Mapping[str, float] = {}
        self.points: list[Point] = []
        held = tuple(Held(name, samples, SHARED) for name, samples in job.task.sizes().items())
        self._clock = self._made(held)
        self._run = Run(job.config, now=0.0, size=self._common.size, parts=RunParts(job.planner))

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

    def run(self) -> None:
        """Go from the first client to the last round."""
        given: list[Any] = []
        for w in range(self._job.scenario[0].clients):
            given += self._run.handle(self._clock.joined(w, 0.0))
        try:
            self._clock.run(self._run, given, lambda: self._run.finished, self._heed)
        finally:
            self._fleet.close()

    def _heed(self, output: object) -> None:
        if isinstance(output, Add):
            self._add(output)
        elif isinstance(output, Apply):
            self._apply(output)
        elif isinstance(output, Append):
            self._sum.clear()
            self.points.append(Point(self._clock.now, output.row, self._clock.sent, self._metrics))

    def _add(self, add: Add) -> None:
        self._sum.add(add, self._fleet.sent(self._clock.asked[add.client, add.attempt]))

    def _apply(self, apply: Apply) -> None:
        with suppress(Refused):  # as on a server, the update is left out
            mean = self._sum.mean(apply.weight)
            if mean is not None:
                self.model = self._optimizer.apply(self.model, mean)
        self._fleet.load(apply.version, self.model)
        every = self._job.config.evaluate_every
        if every and apply.round % every == 0:
            self._metrics = self._common.evaluate(self.model)


def train(job: Job) -> Trained:
    """Train to the end; an engine's failure ends it, since it would be every client's."""
    with tempfile.TemporaryDirectory(prefix="fedgc-sim-") as folder:
        training = _Training(job, Path(folder))
        training.run()
    return Trained(tuple(training.points), training.model)
