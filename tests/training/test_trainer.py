"""Test local steps on modules that choose their own mode."""

import torch
from torch import nn

from fedgc.config import RunConfig
from fedgc.training.tasks import Task
from fedgc.training.trainer import LocalStep, Trainer


class Frozen(nn.Module):
    """A network whose running statistics stay as they are, also in training mode."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def forward(self, inputs):
        return self.layers(inputs)

    def train(self, mode=True):
        super().train(mode)
        self.layers[1].eval()
        return self


def test_frozen_statistics_stay_without_earlier_evaluation():
    data = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.ones(40, 1)
    loss = lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1])  # noqa: E731
    task = Task(model=Frozen, chunks={"all": 40}, load=lambda _: data, loss=loss)
    trainer = Trainer(task, RunConfig(work="local", device="cpu", threads=1))
    trainer.load(("all",))
    trainer.begin(trainer.flat.read())
    for number in range(2):
        trainer.step(("all",), LocalStep((0, "client"), number))
        assert not trainer.flat.module.layers[1].running_mean.any()
        assert trainer.flat.module.layers[0].training
