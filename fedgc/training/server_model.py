"""The server's side of a task: where the common model starts, and what it is worth."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from fedgc.config import RunConfig
from fedgc.errors import TaskFailed
from fedgc.training.devices import choose
from fedgc.training.flat import FlatModel, Vector
from fedgc.training.randomness import key, seeded
from fedgc.training.tasks import Task
from fedgc.training.trainer import fresh

LONGEST_VALUE: Final = 80  # characters of what a task returned, where an error quotes it


class CommonModel:
    """The model that all clients start from, as a vector and as a module."""

    def __init__(self, task: Task, config: RunConfig) -> None:
        self._task, self._config = task, config
        made = fresh(task, config)
        self.parameters, self.size = made.parameters, made.size
        self._flat: FlatModel | None = None  # a whole model: only where it is asked for

    def first(self) -> Vector:
        """Return the vector that the run starts from."""
        return fresh(self._task, self._config).read()

    def vector(self, state: Mapping[str, np.ndarray[Any, np.dtype[Any]]]) -> Vector:
        """Return the vector of a model's `state_dict`; raise TaskFailed if the task has another model."""
        flat = fresh(self._task, self._config)
        try:
            flat.module.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        except (RuntimeError, TypeError) as error:
            raise TaskFailed(" ".join(str(error).split())) from error
        return flat.read()

    def module(self, vector: Vector) -> torch.nn.Module:
        """Return the module with this vector in it, in evaluation mode; the next call reuses it."""
        if self._flat is None:
            self._flat = FlatModel(fresh(self._task, self._config).module.to(choose(self._config.device)))
        self._flat.write(vector)
        return self._flat.module.eval()

    def evaluate(self, vector: Vector) -> Mapping[str, float]:
        """Return the task's figures for this vector, or nothing where the task has none."""
        if self._task.evaluate is None:
            return {}
        module = self.module(vector)
        try:
            with seeded(key(self._config.seed, "evaluate")), torch.no_grad():
                figures: object = self._task.evaluate(module)
        except Exception as error:  # the edge to the user's code
            said = f"{type(error).__name__}: {error}".split("\n")[0]
            raise TaskFailed(f"evaluate() raised {said}") from error
        return _numbers(figures)


def _numbers(figures: object) -> Mapping[str, float]:
    if not isinstance(figures, Mapping):
        raise TaskFailed(f"evaluate() returned {_short(figures)}, needed a mapping from names to numbers")
    numbers = {}
    for name, value in figures.items():
        try:
            numbers[str(name)] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:  # torch's for a tensor of many numbers
            raise TaskFailed(f"evaluate() returned {name} = {_short(value)}, needed a number") from error
    return numbers


def _short(value: object) -> str:
    return " ".join(repr(value).split())[:LONGEST_VALUE]
