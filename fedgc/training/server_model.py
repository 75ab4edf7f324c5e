"""The common model on the server: its initial vector, its tensors, and its evaluation.

`CommonModel` is made by a task. `AnnouncedModel` needs no code of the model: a client has announced the
layout of its vector, and sent the initial one.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedgc.config import RunConfig
from fedgc.errors import TaskFailed
from fedgc.messages import Layout
from fedgc.training.adapter import announced_layout
from fedgc.training.devices import choose
from fedgc.training.figures import figures_from
from fedgc.training.flat import FlatModel, Vector, check_vector
from fedgc.training.randomness import key, seeded
from fedgc.training.tasks import Task
from fedgc.training.trainer import initial_model


class CommonModel:
    """The model that all clients start from, as a vector and as a module."""

    def __init__(self, task: Task, config: RunConfig) -> None:
        self.task, self._config = task, config
        made = initial_model(task, config)
        self.layout = announced_layout(made.layout, made.module, task.private)
        self.parameters, self.size = made.parameters, made.size
        self._flat: FlatModel | None = None  # made when first needed, to save memory

    def first(self) -> Vector:
        """Return the initial vector of the run."""
        return initial_model(self.task, self._config).read()

    def vector(self, state: Mapping[str, np.ndarray[Any, np.dtype[Any]]]) -> Vector:
        """Return the vector of a `state_dict`; raise TaskFailed if it does not fit the task's model."""
        flat = initial_model(self.task, self._config)
        try:
            flat.module.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        except (RuntimeError, TypeError) as error:
            raise TaskFailed(" ".join(str(error).split())) from error
        return flat.read()

    def module(self, vector: Vector) -> torch.nn.Module:
        """Return the module with this vector, in evaluation mode; the next call reuses the module."""
        if self._flat is None:
            made = initial_model(self.task, self._config).module.to(choose(self._config.device))
            self._flat = FlatModel(made, self.task.private)
        self._flat.write(vector)
        return self._flat.module.eval()

    def state(self, vector: Vector) -> Mapping[str, object]:
        """Return the `state_dict` of the module with this vector."""
        state: Mapping[str, object] = self.module(vector).state_dict()
        return state

    @property
    def evaluates(self) -> bool:
        """Whether the task evaluates models on the server."""
        return self.task.evaluate is not None

    def evaluate(self, vector: Vector) -> Mapping[str, float]:
        """Return the task's metrics for this vector; empty if the task has no `evaluate`."""
        if self.task.evaluate is None:
            return {}
        module, evaluate = self.module(vector), self.task.evaluate
        with seeded(key(self._config.seed, "evaluate")), torch.no_grad():
            return figures_from("evaluate", lambda: evaluate(module))


class AnnouncedModel:
    """A common model of which the server knows the layout and a first vector.

    >>> from fedgc.messages import TensorSpec
    >>> layout = Layout((TensorSpec("weight", "float32", (1, 2)),), 1)
    >>> AnnouncedModel(layout, np.float32([1, 2])).state(np.float32([3, 4]))["weight"].tolist()
    [[3.0, 4.0]]
    """

    evaluates = False

    def __init__(self, layout: Layout, first: Vector) -> None:
        self.layout, self._first = layout, first
        self.parameters, self.size = layout.parameter_size, layout.size
        check_vector(first, self.size)

    def first(self) -> Vector:
        """Return the initial vector of the run."""
        return self._first.copy()

    def state(self, vector: Vector) -> Mapping[str, object]:
        """Return the tensors of the vector by name; frozen ones are on the clients alone."""
        return {name: torch.from_numpy(part.copy()) for name, part in self.layout.split(vector).items()}

    def evaluate(self, vector: Vector) -> Mapping[str, float]:  # noqa: ARG002  clients score it
        """Return nothing: the server has neither data nor the model's code."""
        return {}
