"""The same digits as a task of fedgc, which brings the loop: to compare the scripts with."""

from collections.abc import Mapping

import torch
from torch import nn

import fedgc
from digits import accuracy, digits, network


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the loss of a batch."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def task(config: fedgc.RunConfig) -> fedgc.Task:
    """Return the task; its chunks are dealt to the clients."""
    trained, held_out = digits()

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        return {"accuracy": accuracy(model, held_out)}

    return fedgc.over(trained, config, model=network, loss=loss, evaluate=evaluate)
