"""A task for tests of training: six chunks of unequal size, five inputs, two classes."""

from functools import partial

import torch
from torch import nn

from fedgc.training.tasks import Task

SIZES = {f"c{at}": 8 + 4 * at for at in range(6)}


def load(name):
    """Return a chunk's samples."""
    generator = torch.Generator().manual_seed(int(name[1:]))
    inputs = torch.randn(SIZES[name], 5, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def loss(module, batch):
    """Return the mean loss of a batch."""
    return nn.functional.cross_entropy(module(batch[0]), batch[1])


def accuracy(module):
    """Return the accuracy over all chunks."""
    inputs, labels = (torch.cat(parts) for parts in zip(*map(load, SIZES), strict=True))
    return {"accuracy": float((module(inputs).argmax(1) == labels).float().mean())}


TASK = Task(
    model=partial(nn.Linear, 5, 2), chunks=SIZES, load=load, loss=loss, evaluate=accuracy, may_move=True
)
