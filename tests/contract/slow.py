"""A task whose steps take time and no work, so that a test can end a server in the middle of a round."""

import time

import torch
from torch import nn

from fedgc.config import RunConfig
from fedgc.task import Task

STEP_S = 0.25


def task(config: RunConfig) -> Task:
    def loss(module: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        time.sleep(STEP_S)
        return module(batch[0]).square().mean()

    return Task(
        model=lambda: nn.Linear(4, 1),
        chunks={f"part-{chunk}": 4 for chunk in range(config.chunks)},
        load=lambda name: (torch.full((4, 4), float(name.removeprefix("part-"))),),
        loss=loss,
    )
