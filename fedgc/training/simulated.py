"""Training of simulated clients in one process: a single model serves all of them, one after the other.

A `Stretch` is some local steps of one client's trajectory. The result depends only on the stretch and on what
the client keeps (`client_file`), so it is the same in any process and in any order of clients. The state of a
client is its model's vector, then its optimizer, the buffers outside the vector, and its private tensors, if
it has any of these.
"""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, words_of
from fedgc.messages import Work
from fedgc.training.cache import Saved
from fedgc.training.client_file import ClientFile, Extent
from fedgc.training.flat import FlatModel, Vector
from fedgc.training.injection import pool_chunks
from fedgc.training.local_loop import Begin
from fedgc.training.pace import Pace
from fedgc.training.randomness import restored
from fedgc.training.shared_momentum import lead_of, squared_distance
from fedgc.training.task_loop import TaskLoop
from fedgc.training.tasks import Task
from fedgc.training.trainer import Trainer

STATES: Final = "clients"  # the file in the folder of a simulation
LOADED: Final = 16  # other clients whose samples stay in memory
STILL: Final = Pace(float, lambda _: None)  # a virtual clock measures the time


@dataclass(frozen=True, slots=True)
class Stretch:
    """Local steps of a client from step `first` to step `last` since the common model."""

    work: Work
    first: int
    last: int
    kept: Extent | None  # what the client keeps: its private tensors, and if `first` is not 0 its trajectory
    room: Extent  # where to write what it keeps afterwards
    losses: float = 0.0  # sums over the steps before `first`
    led: float = 0.0


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a stretch; `spilled` holds the state if `kept` had no room for it."""

    losses: float
    led: float
    squared_norm: float
    kept: Extent
    spilled: bytes = b""


class ClientStates:
    """The common models, and what clients keep: files in `folder`."""

    def __init__(self, config: RunConfig, flat: FlatModel, folder: Path) -> None:
        self._config, self._flat, self._folder = config, flat, folder
        self._file = ClientFile(folder / STATES)
        self._own = flat.read_private()  # as every client makes them
        self._models: dict[int, Vector] = {}  # mapped from files
        self._shared: Mapping[int, Vector] | None = None
        self._lead: tuple[tuple[int, int, int, float], Vector | None] = (-1, 0, 0, 0.0), None

    def kept(self, stretch: Stretch) -> tuple[Saved | None, Mapping[str, Tensor]]:
        """Return the trajectory so far, and the private tensors."""
        if stretch.kept is None:
            return None, self._own
        state, ends = self._file.read(stretch.kept), 4 * self._flat.size
        vector = vector_in(state, self._flat.size)
        if state.size == ends:
            return (Saved(vector, [], {}) if stretch.first else None), {}
        unsent, optimizer, own = torch.load(io.BytesIO(state[ends:].tobytes()), weights_only=True)
        return (Saved(vector, unsent, optimizer) if stretch.first else None), own

    def written(
        self, stretch: Stretch, end: Saved, private: Mapping[str, Tensor], trained: Trained
    ) -> Trained:
        """Write what the client keeps after a stretch, and return the result with its place."""
        rest = io.BytesIO()
        if end.unsent or end.optimizer or private:
            torch.save([end.unsent, dict(end.optimizer), dict(private)], rest)
        parts = end.vector.data, rest.getbuffer()
        if sum(part.nbytes for part in parts) > stretch.room.room:
            return replace(trained, spilled=b"".join(parts))
        return replace(trained, kept=self._file.write(stretch.room, *parts))

    def share(self, models: Mapping[int, Vector]) -> None:
        """Take the common models from another object of this process, in place of their files."""
        self._shared = models

    def model(self, version: int) -> Vector:
        """Return a common model, mapped from its file unless it is shared."""
        if self._shared is not None:
            return self._shared[version]
        if version not in self._models:
            last = list(self._models.items())[-1:]
            path = model_file(self._folder, version)
            self._models = {**dict(last), version: np.memmap(path, np.float32, "r")}
        return self._models[version]

    def lead_of(self, work: Work) -> Vector | None:
        """Return the lead of shared momentum, which clients have in common that had the same models."""
        origin = work.version, work.before, work.first_step, work.common_steps
        if self._lead[0] != origin:
            led = work.common_steps and self._config.alpha < 1.0
            versions = (work.before, work.version) if led else ()
            models = {version: self.model(version) for version in versions}
            self._lead = origin, lead_of(self._config, models, work, self._flat.parameters)
        return self._lead[1]


class ClientTrainer:
    """Trains stretches one after the other."""

    def __init__(self, task: Task, config: RunConfig, folder: Path) -> None:
        self._trainer = Trainer(task, config)
        self._loop = TaskLoop(self._trainer, STILL, keeps=LOADED)
        self._states = ClientStates(config, self._trainer.flat, folder)

    def share(self, models: Mapping[int, Vector]) -> None:
        """Train from these common models, in place of their files."""
        self._states.share(models)

    def train(self, stretch: Stretch) -> Trained:
        """Do the steps; raise EdgeFailed if the task's code fails."""
        with failing(stretch.work):
            return self._trained(stretch)

    def _trained(self, stretch: Stretch) -> Trained:
        work, reached, losses, led = stretch.work, stretch.first, stretch.losses, stretch.led
        flat, model, lead = self._trainer.flat, self._states.model(work.version), self._states.lead_of(work)
        saved, own = self._states.kept(stretch)
        if flat.private:
            flat.write_private(own)
        chunks = chunks_of(work)
        self._loop.begin(Begin(work, chunks, model, lead, saved, reached))
        with restored():  # not around `begin`: a task may draw the data of each client
            while reached < stretch.last:
                done = self._loop.advance(reached, stretch.last)
                if done is not None:
                    reached, losses, led = reached + done.steps, losses + done.losses, led + done.led
        end, squared_norm = self._loop.saved(), self._loop.squared_gradient
        if self._trainer.config.measure != "gradient":
            squared_norm = squared_distance(model[: flat.parameters], end.vector, lead, led)
        trained = Trained(losses, led, squared_norm, stretch.room)
        return self._states.written(stretch, end, flat.read_private(), trained)


@contextmanager
def failing(work: Work) -> Iterator[None]:
    """Name the client and the round where the task's code fails."""
    try:
        yield
    except EdgeFailed:
        raise
    except Exception as error:  # the user's code may raise anything
        raise EdgeFailed(f"training: {work.client}, round {work.round}: {words_of(error)}") from error


def chunks_of(work: Work) -> tuple[str, ...]:
    """Return the names of a client's chunks in the order of their numbers; of all with data injection."""
    if work.pool is not None:
        return pool_chunks(work.pool)
    return tuple(name for _, name in sorted(work.names))


def model_file(folder: Path, version: int) -> Path:
    """Return the file of a common model."""
    return folder / f"model-{version}"


def vector_in(state: np.ndarray, size: int) -> Vector:
    """Return the vector at the beginning of a client's state."""
    vector: Vector = state[: 4 * size].view(np.float32)
    return vector
