"""Test what a script's model exchanges after something has changed the module."""

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from fedgc.errors import BadTask
from fedgc.training.loop.model_state import ModelState
from fedgc.training.loop.ranks import Ranks


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def filled(state: ModelState, number: float) -> np.ndarray:
    return np.full(state.layout.size, number, np.float32)


def moved(module: nn.Module) -> nn.Module:
    """Replace every tensor, as a move to some devices does."""
    for part in module.modules():
        for name, each in list(part.named_parameters(recurse=False)):
            setattr(part, name, nn.Parameter(each.detach().clone()))
        for name, each in list(part.named_buffers(recurse=False)):
            part.register_buffer(name, each.clone())
    return module


@pytest.mark.parametrize("move", [nn.Module.double, nn.Module.bfloat16, moved])
def test_replaced_tensors_are_read_and_written(move):
    module = model()
    state = ModelState(module, private=["0.bias"])
    move(module)
    state.write(filled(state, 3.0), Ranks())
    state.write_private({"0.bias": torch.full((2,), 5.0)}, Ranks())
    assert module[0].weight.unique().tolist() == module[1].running_mean.unique().tolist() == [3.0]
    assert module[0].bias.tolist() == state.read_private()["0.bias"].tolist() == [5.0, 5.0]
    into = filled(state, 0.0)
    state.read(into)
    np.testing.assert_array_equal(into, filled(state, 3.0))


def test_tensor_that_is_gone_is_named():
    module = model()
    state = ModelState(module)
    module[0] = nn.Sequential(module[0])
    with pytest.raises(BadTask, match=r"saw a model without 0\.weight, which it had at fedgc\.join"):
        state.read(filled(state, 0.0))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(1, 3), r"saw 0\.weight of shape \[1, 3\], which was \[2, 3\] at fedgc\.join"),
        (torch.ones(2, 3, device="meta"), r"saw 0\.weight on the meta device, needed a model that is loaded"),
    ],
)
def test_tensor_of_other_shape_or_without_data_is_refused(weight, message):
    module = model()
    state = ModelState(module)
    module[0].weight = nn.Parameter(weight)
    with pytest.raises(BadTask, match=message):
        state.read(filled(state, 0.0))
    with pytest.raises(BadTask, match=message):
        state.write(filled(state, 0.0), Ranks())


@pytest.mark.filterwarnings("ignore:FSDP is switching")  # to NO_SHARD, as there is one rank
def test_model_sharded_by_fsdp1_is_refused():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        sharded = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=True)
        for each in (sharded, nn.Sequential(sharded)):
            with pytest.raises(BadTask, match=r"saw FullyShardedDataParallel .*, needed .* fully_shard"):
                ModelState(each)
    finally:
        distributed.destroy_process_group()


def test_compiled_part_keeps_names_of_plain_module():
    plain, compiled = ModelState(parts()), ModelState(parts())
    model = compiled.module
    model[0] = torch.compile(model[0], backend="eager")
    again = ModelState(model, private=["2.*"])
    assert compiled.layout == plain.layout
    assert (list(again.private), len(again.layout.tensors)) == (["2.weight", "2.bias"], 6)
    compiled.bind()
    plain.bind()
    assert compiled.layout == plain.layout, "also the digest of what is frozen"
    vector = np.arange(compiled.layout.size, dtype=np.float32)
    compiled.write(vector, Ranks())
    read = np.zeros_like(vector)
    compiled.read(read)
    np.testing.assert_array_equal(read, vector)


def parts() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Linear(2, 2), nn.Linear(2, 1))
    model[0][0].requires_grad_(requires_grad=False)
    return model
