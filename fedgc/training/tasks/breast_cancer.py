"""The shipped task breast-cancer: Wisconsin breast cancer data (data/README.md) and a small perceptron.

The 30 measurements of a cell nucleus are standardized over the whole table, as for data that may be pooled.
"""

from typing import TYPE_CHECKING

import numpy as np

from fedgc.config import RunConfig
from fedgc.training.tasks.shipped import Table, classification, numbers
from fedgc.training.tasks.task import Task

if TYPE_CHECKING:
    from torch import nn


def breast_cancer(config: RunConfig) -> Task:
    """Return the task, its samples shuffled and cut into `config.chunks` chunks."""
    return classification("breast-cancer", config, read, network)


def network() -> "nn.Module":
    """Make the perceptron."""
    from torch import nn

    return nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2))


def read() -> Table:
    """Return all samples; label 0 is malignant, 1 benign."""
    rows = numbers("breast_cancer", heads=1)
    data = rows[:, :-1]
    standard = (data - data.mean(axis=0)) / data.std(axis=0)
    return Table(standard.astype(np.float32), rows[:, -1].astype(np.int64))
