"""Test the loop of a script in its own process, without a client."""

import torch
from torch import nn

from fedgc.training.loop.model_state import ModelState
from fedgc.training.loop.training_loop import TrainingLoop


def test_validation_leaves_mode_of_each_submodule():
    """As in fine-tuning, where the running statistics of a frozen part stay."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    model.train()[1].eval()
    seen = []

    def validate(module: nn.Module) -> dict[str, float]:
        seen.append([each.training for each in module.modules()])
        return {"mean": float(module(torch.ones(3, 2)).mean())}

    TrainingLoop(ModelState(model), None, None, 1, validate, None)._score(1)
    assert seen == [[False] * 4]
    assert [each.training for each in model.modules()] == [True, True, False, True]
