"""Training under simulated time: real gradients of a real task, the clock of a simulation.

A chunk's update is a function of the model, the chunk and the seed alone: every device that holds the chunk
makes the same one. So one engine stands for the whole fleet: it takes a chunk to its target the first time
that any device has finished it, and mixes the codewords of all. Nothing is left out by that, not a bit of
the result: the sum is made of the same codewords, in the order in which they would have arrived.

    trained = train(Job(task, config, weather))
    [(point.seconds, point.metrics["accuracy"]) for point in trained.points]

All devices can load all chunks; a chunk's work goes with its samples, a unit being a device's equal share.

May import: train, run and below.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgc.codes import block_size
from fedgc.config import RunConfig
from fedgc.errors import BadSetting, EdgeFailed
from fedgc.history import RoundRow
from fedgc.messages import Add, Continue, Failed, Held, Mix, Progress, Take, Work
from fedgc.replay import UNCONTENDED, Finding, Line, Terms, Under, Weather, World
from fedgc.run import Append, Apply, Run
from fedgc.task import Task
from fedgc.train import CommonModel, Engine, ServerOptimiser, Vector

FLEET = "fleet"  # the one engine's name


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained, with which settings, on which machines; the weather holds a round for each."""

    task: Task
    config: RunConfig
    weather: Weather
    line: Line = UNCONTENDED

    def __post_init__(self) -> None:
        if len(self.weather) < self.config.rounds:
            raise BadSetting(
                f"training: saw {len(self.weather)} rounds of weather, needed {self.config.rounds}"
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


class OneForAll:
    """The engine that stands for the fleet."""

    def __init__(self, task: Task, config: RunConfig, folder: Path) -> None:
        self.engine = Engine(task, config, clock=float, rest=lambda _: None, spill_dir=folder)
        self._work: Work | None = None
        self._found: dict[tuple[int, int], Finding] = {}

    def begin(self, work: Work) -> None:
        """Get ready for a round; every device that is told of it names its own chunks."""
        names = dict(work.names)
        if self._work is None or self._work.round < work.round:
            self._found.clear()
        else:
            names |= dict(self._work.names)
        self._work = replace(work, device=FLEET, order=(), names=tuple(sorted(names.items())), lockstep=False)
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

    def reached(self, device: str, steps: int) -> Finding:
        """Refuse: one engine cannot stand for the different models of local work."""
        raise EdgeFailed(f"training: {device} did {steps} steps of local work, needed coded work")

    def lost(self, device: str) -> None:
        """What one device loses, another would make again: nothing is lost here."""

    def _trained(self, chunk: int) -> Finding:
        if self._work is None:
            raise BadSetting(f"training: chunk {chunk} was finished before any work was given")
        self.engine.handle(Take(FLEET, self._work.round, chunk))
        while not self.engine.idle:
            said = self.engine.step()
            if isinstance(said, Failed):
                raise EdgeFailed(f"training: {said.reason}")
            if isinstance(said, Progress):
                return Finding(said.samples, said.squared_norm, said.loss, said.sketch)
        raise EdgeFailed(f"training: chunk {chunk} came to no end")


class _Training:
    """One run: the machine, the clock, the engine, the sum."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._job = job
        self._common = CommonModel(job.task, job.config)
        self._optimiser = ServerOptimiser(job.config, self._common.parameters)
        self.model = self._common.first()
        self._sum = np.zeros(self._common.size)
        self._fleet = OneForAll(job.task, job.config, folder)
        self._fleet.engine.load(0, self.model)
        self._metrics: Mapping[str, float] = {}
        self.points: list[Point] = []
        held = self._fleet.engine.holds()
        self._world = self._made(held)
        self._run = Run(job.config, now=0.0, size=self._common.size)

    def _made(self, held: tuple[Held, ...]) -> World:
        weather = self._job.weather
        devices, samples = weather[0].devices, sum(each.samples for each in held)
        units = [each.samples * devices / samples for each in held]
        nature = Under(lambda number: weather[number - 1], units)
        terms = Terms(self._job.config.local_steps, 4 * self._common.size, self._job.line)
        return World([f"device {at}" for at in range(devices)], nature, terms, held, self._fleet)

    def run(self) -> None:
        """Go from the first device to the last round."""
        given: list[Any] = []
        for worker in range(self._job.weather[0].devices):
            given += self._run.handle(self._world.joined(worker, 0.0))
        try:
            self._world.run(self._run, given, lambda: self._run.finished, self._heed)
        finally:
            self._fleet.engine.close()

    def _heed(self, output: object) -> None:
        if isinstance(output, Add):
            self._add(output)
        elif isinstance(output, Apply):
            self._apply(output)
        elif isinstance(output, Append):
            self._sum[:] = 0.0
            self.points.append(Point(self._world.now, output.row, self._world.sent, self._metrics))

    def _add(self, add: Add) -> None:
        mix = self._world.asked[add.device, add.attempt]
        if not isinstance(mix, Mix):
            raise EdgeFailed(f"training: {add.device} sent a vector without a mix, needed coded work")
        codeword = self._fleet.engine.codeword(mix)
        length = block_size(self._sum.size, len(add.weights))
        for block, weight in enumerate(add.weights):
            target = self._sum[block * length : (block + 1) * length]
            target += weight * codeword[: target.size]

    def _apply(self, apply: Apply) -> None:
        mean = (self._sum / apply.weight).astype(np.float32)
        self.model = self._optimiser.apply(self.model, mean)
        self._fleet.engine.load(apply.version, self.model)
        every = self._job.config.evaluate_every
        if every and apply.round % every == 0:
            self._metrics = self._common.evaluate(self.model)


def train(job: Job) -> Trained:
    """Train to the end; an engine's failure ends it, since it would be every device's."""
    with tempfile.TemporaryDirectory(prefix="fedgc-sim-") as folder:
        training = _Training(job, Path(folder))
        training.run()
    return Trained(tuple(training.points), training.model)
