"""Test plain SGD: equal to torch's own step bit for bit, without its imports."""

import copy
import subprocess
import sys

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedgc.training.sgd import PlainSGD


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3))


@given(seed=st.integers(0, 2**32), rates=st.lists(st.floats(1e-6, 10), min_size=1, max_size=5))
def test_sgd_equals_torch_sgd_bit_for_bit(seed: int, rates: list[float]):
    torch.manual_seed(seed)
    ours = network()
    theirs = copy.deepcopy(ours)
    way, torchs = PlainSGD([*ours.parameters()], rates[0]), torch.optim.SGD(theirs.parameters(), lr=rates[0])
    for rate in rates:
        inputs, labels = torch.randn(4, 5), torch.randint(0, 3, (4,))
        for module, optimizer in ((ours, way), (theirs, torchs)):
            module.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(module(inputs), labels).backward()
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
        for mine, its in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
            torch.testing.assert_close(mine, its, rtol=0, atol=0, equal_nan=True)


def test_parameter_without_gradient_stays_and_sparse_one_moves():
    still, table = torch.ones(2, requires_grad=True), nn.Embedding(4, 2, sparse=True)
    nn.init.ones_(table.weight)
    table(torch.tensor([1, 1])).sum().backward()
    PlainSGD([still, table.weight], 0.5).step()
    assert still.tolist() == [1, 1]
    assert table.weight.tolist() == [[1, 1], [0, 0], [1, 1], [1, 1]]


def test_paused_trajectory_keeps_no_module_state():
    way = PlainSGD([torch.ones(1, requires_grad=True)], 0.1)
    assert way.state_dict() == {}
    way.load_state_dict({"state": {}, "param_groups": [{"lr": 0.7}]})  # as torch's own, of an older cache
    assert [group["lr"] for group in way.param_groups] == [0.1]


def test_client_trains_without_torch_compiler(tmp_path):
    code = f"""
import sys, time
from pathlib import Path
from fedgc.config import RunConfig
from fedgc.messages import Work
from fedgc.training.tasks import named
from fedgc.training import CommonModel, new_engine
from fedgc.training.pace import Pace

config = RunConfig(work="coded", chunks=2, threads=1)
task = named("digits", config)
engine = new_engine(task, config, Pace(time.monotonic, time.sleep), Path({str(tmp_path)!r}))
engine.load(0, CommonModel(task, config).first())
names = tuple((number, held.name) for number, held in enumerate(engine.holds()))
engine.handle(Work("me", 1, 0, 1, (0,), names, seed=0, lease_s=60.0))
print(type(engine.step()).__name__, "torch._dynamo" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert said.stdout.strip() == "Progress False", said.stderr
