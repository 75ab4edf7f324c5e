"""Common parts of the shipped tasks: a table of samples, a fifth held out for evaluation, the rest in chunks.

The stratified train-test split does not depend on the run's seed, so that metrics of different runs are
comparable; the partition into chunks does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from fedgc.config import RunConfig
from fedgc.errors import BadTask
from fedgc.training.tasks.partition import Indices, Role, Values, partition
from fedgc.training.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor, nn

DATA: Final = Path(__file__).with_name("data")
HELD_OUT: Final = 5  # every fifth sample of each class is held out


@dataclass(frozen=True, slots=True)
class Table:
    """Samples and their labels."""

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]

    def rows(self, rows: Indices) -> tuple["Tensor", "Tensor"]:
        """Return these rows as tensors."""
        import torch

        return torch.from_numpy(self.inputs[rows]), torch.from_numpy(self.labels[rows])


def numbers(name: str, heads: int = 0) -> NDArray[np.float64]:
    """Return the rows of a table shipped with fedgc, without its `heads` header lines."""
    return np.loadtxt(DATA / f"{name}.csv.gz", delimiter=",", skiprows=heads)


def classification(
    task: str, config: RunConfig, read: Callable[[], Table], model: Callable[[], "nn.Module"]
) -> Task:
    """Return the task of classifying the rows of a table that every machine can read."""
    table = read()
    trained, held_out = split(table.labels)

    def column(role: Role, name: str) -> Values:
        if role != "label" or name:
            raise BadTask(f"partition {config.partition}: task {task} has labels and no other column")
        return table.labels[trained]

    pieces = partition(len(trained), config, column)
    rows = {f"{task}-{i:04}-of-{config.chunks:04}": trained[piece] for i, piece in enumerate(pieces)}

    def load(chunk: str) -> tuple["Tensor", "Tensor"]:
        if chunk not in rows:
            raise BadTask(f"task {task}: saw chunk {chunk!r}, needed one of {config.chunks} made by this run")
        return table.rows(rows[chunk])

    def evaluate(module: "nn.Module") -> Mapping[str, float]:
        return figures(module, *table.rows(held_out))

    sizes = {chunk: len(indices) for chunk, indices in rows.items()}
    return Task(model=model, chunks=sizes, load=load, loss=cross_entropy, evaluate=evaluate, may_move=True)


def split(labels: NDArray[np.int64]) -> tuple[Indices, Indices]:
    """Return the rows to train on and the rows held out: every fifth of each class, in the table's order."""
    held_out = np.sort(
        np.concatenate([np.flatnonzero(labels == label)[::HELD_OUT] for label in np.unique(labels)])
    )
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out


def cross_entropy(module: "nn.Module", batch: tuple["Tensor", "Tensor"]) -> "Tensor":
    """Return the mean cross entropy of the module's logits."""
    from torch.nn import functional

    inputs, labels = batch
    return functional.cross_entropy(module(inputs), labels)


def figures(module: "nn.Module", inputs: "Tensor", labels: "Tensor") -> Mapping[str, float]:
    """Return the loss and the accuracy on these samples."""
    from torch.nn import functional

    device = next(module.parameters()).device
    logits, truth = module(inputs.to(device)), labels.to(device)
    accuracy = (logits.argmax(dim=1) == truth).float().mean()
    return {"loss": float(functional.cross_entropy(logits, truth)), "accuracy": float(accuracy)}
