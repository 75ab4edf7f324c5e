"""Test model export: the file holds the trained model and loads without fedgc."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedgc.config import RunConfig
from fedgc.errors import Unusable
from fedgc.training import CommonModel
from fedgc.training.export import arrays_of, check_path, state_of, write_model
from fedgc.training.flat import FlatModel
from fedgc.training.tasks import Task


class Tied(nn.Module):
    """Two names for one weight, a frozen one, and buffers of two kinds."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.two.weight = self.one.weight
        self.two.bias.requires_grad_(False)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.two(self.one(x)))


TASK = Task(model=Tied, chunks={"a": 1}, load=lambda _: None, loss=max)
CONFIG = RunConfig(device="cpu", seed=7, work="coded")


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_exported_model_computes_same_outputs(tmp_path, suffix):
    common = CommonModel(TASK, CONFIG)
    vector = common.first() + np.linspace(0, 1, common.size, dtype=np.float32)
    path = tmp_path / f"model{suffix}"
    write_model(path, state_of(TASK, CONFIG, vector), {"round": 3, "run": "r", "metrics": {"a": 0.5}})
    state = load_file(path) if suffix != ".pt" else torch.load(path, weights_only=True)["state_dict"]
    read = Tied()
    read.load_state_dict(state)
    rows = torch.randn(5, 3)
    with torch.no_grad():
        assert torch.equal(read.eval()(rows), common.module(vector)(rows))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_exported_model_of_script_loads_strictly(tmp_path, suffix):
    """The counter of batches is not exchanged, and torch does not miss it in a plain dict."""
    flat, path, read = FlatModel(Convolution()), tmp_path / f"model{suffix}", Convolution()
    write_model(path, flat.layout.split(flat.read()), {"run": "r"})
    state = load_file(path) if suffix != ".pt" else torch.load(path, weights_only=True)["state_dict"]
    assert read.state_dict().keys() - state.keys() == {"norm.num_batches_tracked"}
    read.norm.num_batches_tracked += 5
    read.load_state_dict(state)
    assert read.norm.num_batches_tracked == 5
    assert torch.equal(read.conv.weight, flat.module.conv.weight)


def test_existing_or_unsupported_output_is_refused(tmp_path):
    check_path(tmp_path / "a.pt")
    (tmp_path / "b.pt").write_text("")
    for name, sentence in [
        ("a.h5", "saw .h5"),
        ("a", "saw no suffix"),
        ("b.pt", "saw a file"),
        ("c/a.pt", "no folder"),
    ]:
        with pytest.raises(Unusable, match=sentence):
            check_path(tmp_path / name)


@pytest.mark.parametrize(
    "kind", [torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.int64, torch.bool]
)
def test_arrays_hold_values_of_every_type(kind: torch.dtype):
    tensor = torch.tensor([0.0, 1.0, 1.5, 3.5]).to(kind)
    arrays, left_out = arrays_of({"part": tensor})
    assert left_out == ()
    assert arrays["part"].tolist() == tensor.to(torch.float64).tolist()


def test_non_array_state_is_left_out_and_named():
    state = {"words": "none", "sparse": torch.eye(2).to_sparse(), "whole": torch.ones(1)}
    arrays, left_out = arrays_of(state)
    assert (set(arrays), left_out) == ({"whole"}, ("words", "sparse"))
