"""Test the loop of a script in its own process, without a client."""

from collections.abc import Iterable

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from fedgc.config import RunConfig
from fedgc.errors import BadTask
from fedgc.training.loop.environment import ScriptEnvironment
from fedgc.training.loop.model_state import ModelState
from fedgc.training.loop.training_loop import TrainingLoop


class Endless(TrainingLoop):
    """The loop of a script in a federation whose client asks for nothing but steps."""

    def __init__(self, samples: int | None = None) -> None:
        environment = ScriptEnvironment("", "", RunConfig().table(), {}, "")
        super().__init__(ModelState(nn.Linear(1, 1)), environment, None, samples, None, None)

    def step(self) -> bool:
        return True


def epochs(batches: Iterable[object], sampler: DistributedSampler, count: int) -> list[int]:
    """Return the sampler's epoch at so many batches."""
    return [sampler.epoch for _, _ in zip(range(count), batches, strict=False)]


def test_order_of_samples_changes_with_each_pass():
    """Also if the loop is left and entered again; the script may set the epoch itself."""
    data = TensorDataset(torch.arange(4.0))
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    loader, fed = DataLoader(data, 2, sampler=sampler), Endless(4)
    assert epochs(fed.steps(loader), sampler, 5) == [0, 0, 1, 1, 2]
    assert epochs(fed.steps(loader), sampler, 3) == [3, 3, 4]
    sampler.set_epoch(9)
    assert epochs(fed.steps(loader), sampler, 3) == [9, 9, 10]


@pytest.mark.parametrize(
    ("loader", "says"),
    [([], "saw a loader without a batch"), (iter([1, 2]), "saw a loader that can be passed over once")],
)
def test_loader_that_has_no_more_batches_is_named(loader: Iterable[object], says: str):
    with pytest.raises(BadTask, match=says):
        list(Endless(2).steps(loader))


def test_parameter_that_is_unfrozen_after_join_is_named():
    """It would be trained by each client for itself."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1))
    model[:2].requires_grad_(requires_grad=False)
    state = ModelState(model, private=["1.*"])
    into = np.zeros(state.layout.size, np.float32)
    model[1].requires_grad_()
    model[2].requires_grad_(requires_grad=False)
    state.read(into)
    model[0].requires_grad_()
    with pytest.raises(BadTask, match=r"saw 0\.weight trained, which was frozen at fedgc\.join"):
        state.read(into)


def test_parameter_that_is_added_after_join_is_named():
    """It was not frozen, and requires_grad=True would not help."""
    model = nn.Sequential(nn.Linear(2, 2))
    state = ModelState(model)
    model.append(nn.Linear(2, 1))
    with pytest.raises(BadTask, match=r"saw 1\.weight trained, which the model did not have at fedgc\.join"):
        state.read(np.zeros(state.layout.size, np.float32))


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
