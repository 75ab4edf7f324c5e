"""The server's side of a task: where the common model starts, and what it is worth.

May import: config, errors, task; flat, trainer, devices of this room.
"""

from collections.abc import Mapping

import torch

from fedgc.config import RunConfig
from fedgc.errors import TaskFailed
from fedgc.task import Task
from fedgc.train.chance import key, seeded
from fedgc.train.devices import choose
from fedgc.train.flat import FlatModel, Vector
from fedgc.train.trainer import fresh


class CommonModel:
    """The model that all devices start from, as a vector and as a module."""

    def __init__(self, task: Task, config: RunConfig) -> None:
        self._evaluate = task.evaluate
        self._seed = config.seed
        self._first = fresh(task, config).read()
        self._flat = FlatModel(fresh(task, config).module.to(choose(config.device)))
        self.parameters = self._flat.parameters
        self.size = self._flat.size

    def first(self) -> Vector:
        """Return the vector that the run starts from."""
        return self._first.copy()

    def module(self, vector: Vector) -> torch.nn.Module:
        """Return the module with this vector in it, in evaluation mode; the next call reuses it."""
        self._flat.write(vector)
        return self._flat.module.eval()

    def evaluate(self, vector: Vector) -> Mapping[str, float]:
        """Return the task's figures for this vector, or nothing where the task has none."""
        if self._evaluate is None:
            return {}
        module = self.module(vector)
        try:
            with seeded(key(self._seed, "evaluate")), torch.no_grad():
                return {name: float(value) for name, value in self._evaluate(module).items()}
        except Exception as error:  # the edge to the user's code
            said = f"{type(error).__name__}: {error}".split("\n")[0]
            raise TaskFailed(f"evaluate() raised {said}") from error
