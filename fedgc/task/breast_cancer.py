"""Breast cancer, Wisconsin: 30 measurements of a cell nucleus, benign or malignant; a small perceptron.

Measurements are standardised over the whole table: the task stands for data that may be pooled.

May import: task, config; torch and sklearn inside functions.
"""

from typing import TYPE_CHECKING

import numpy as np

from fedgc.config import RunConfig
from fedgc.task.shipped import Table, classification
from fedgc.task.task import Task

if TYPE_CHECKING:
    from torch import nn


def breast_cancer(config: RunConfig) -> Task:
    """Return the task, its samples shuffled and cut in `config.chunks` chunks."""
    return classification("breast-cancer", config, _read, network)


def network() -> "nn.Module":
    """Make the perceptron."""
    from torch import nn

    return nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2))


def _read() -> Table:
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    standard = (found.data - found.data.mean(axis=0)) / found.data.std(axis=0)
    return Table(standard.astype(np.float32), found.target.astype(np.int64))
