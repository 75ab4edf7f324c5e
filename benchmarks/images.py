"""A task over small gray images with any partition into chunks, for the training benchmarks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fedgc.training.tasks.partition import Indices
from fedgc.training.tasks.shipped import cross_entropy, figures
from fedgc.training.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


@dataclass(frozen=True, slots=True)
class Images:
    """Square training and test images (n x side x side) with their labels."""

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]
    test_inputs: NDArray[np.float32]
    test_labels: NDArray[np.int64]


def images(
    table: Images,
    rows: Mapping[str, Indices],
    *,
    model: str,
    optimizer: str,
    tests: Mapping[str, Indices] = MappingProxyType({}),
) -> Task:
    """Return the classification task; `rows` holds the samples of each chunk, which are shared data.

    `tests` holds test samples whose accuracy is a figure of its own, by its name.
    `model` is mlp (a hidden layer of 128) or cnn (layers of 8 and 16 channels), `optimizer` sgd or adam.
    """
    classes, side = int(table.labels.max()) + 1, table.inputs.shape[1]

    def load(chunk: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        return table.inputs[rows[chunk]], table.labels[rows[chunk]]

    def evaluate(module: "nn.Module") -> Mapping[str, float]:
        import torch

        def on(rows: Indices | slice) -> Mapping[str, float]:
            inputs, labels = table.test_inputs[rows], table.test_labels[rows]
            return figures(module, torch.from_numpy(inputs), torch.from_numpy(labels))

        return {**on(slice(None)), **{name: on(rows)["accuracy"] for name, rows in tests.items()}}

    return Task(
        model=lambda: MODELS[model](side, classes),
        chunks={name: len(each) for name, each in rows.items()},
        load=load,
        loss=cross_entropy,
        evaluate=evaluate,
        optimizer=OPTIMIZERS[optimizer],
        may_move=True,
    )


def _mlp(side: int, classes: int) -> "nn.Module":
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(side * side, 128), nn.ReLU(), nn.Linear(128, classes))


def mlp_losses(parts: Sequence["Tensor"], batch: tuple["Tensor", ...]) -> "Tensor":
    """Return the losses of a stack of models mlp on a batch each, as `vmap` of the task's loss would."""
    import torch
    from torch.nn import functional

    inputs, labels = batch
    hidden_w, hidden_b, last_w, last_b = parts
    hidden = torch.baddbmm(hidden_b[:, None], inputs.flatten(2), hidden_w.transpose(1, 2)).relu()
    logits = torch.baddbmm(last_b[:, None], hidden, last_w.transpose(1, 2))
    each = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return each.view(labels.shape).mean(1)


def _cnn(side: int, classes: int) -> "nn.Module":
    from torch import nn

    left = (side // 2) // 2
    return nn.Sequential(
        nn.Unflatten(1, (1, side)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * left * left, classes),
    )


def _adam(parameters: Iterable["Tensor"], rate: float) -> "Optimizer":
    from torch.optim import Adam

    return Adam(parameters, lr=rate)


MODELS: Final[Mapping[str, Callable[[int, int], Any]]] = MappingProxyType({"mlp": _mlp, "cnn": _cnn})
OPTIMIZERS: Final[Mapping[str, Any]] = MappingProxyType({"sgd": None, "adam": _adam})
