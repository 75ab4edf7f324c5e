"""The shipped task digits: 8 x 8 images of handwritten digits (data/README.md) and a small CNN.

The network has batch normalization and dropout on purpose: both must give the same result on all replicas of
a chunk, and each run of this task exercises that.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedgc.config import RunConfig
from fedgc.training.tasks.shipped import Table, classification, numbers
from fedgc.training.tasks.task import Task

if TYPE_CHECKING:
    from torch import nn


def digits(config: RunConfig) -> Task:
    """Return the task, its samples shuffled and cut into `config.chunks` chunks."""
    return classification("digits", config, read, network)


def digits_part(config: RunConfig, client: Mapping[str, str | int | float]) -> Task:
    """Return the task with the samples of one client: the second of seven parts for `part = "2/7"`.

    A client has `part` in its node config. Without it, as on the server, the task has all samples.
    """
    number, _, parts = str(client.get("part", "1/1")).partition("/")
    task = classification("digits", replace(config, chunks=int(parts)), read, network)
    name = list(task.sizes())[int(number) - 1]
    return replace(task, chunks={name: task.sizes()[name]}, may_move=False)


def network() -> "nn.Module":
    """Make the network: 9962 parameters and the 32 running statistics of its normalization."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(512, 10),
    )


def read() -> Table:
    """Return all images, one channel each."""
    rows = numbers("digits")
    gray = (rows[:, :-1] / 16.0).astype(np.float32)  # gray values 0 to 16
    return Table(gray.reshape(-1, 1, 8, 8), rows[:, -1].astype(np.int64))
