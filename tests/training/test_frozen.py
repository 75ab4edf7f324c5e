"""Test the digest of frozen parameters: what it depends on, and that it is announced with the layout."""

import pytest
import torch
from torch import nn

from fedgc.errors import BadTask
from fedgc.training.frozen import PIECE_BYTES, frozen_digest
from fedgc.training.loop.model_state import ModelState


def adapted(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """A frozen base and a trained head."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].to(dtype).requires_grad_(requires_grad=False)
    return model


def changed(model: nn.Module, name: str) -> nn.Module:
    with torch.no_grad():
        model.get_parameter(name).view(-1)[-1] += 1e-6
    return model


def test_digest_covers_every_frozen_byte_and_no_other():
    same = frozen_digest(adapted())
    assert same == frozen_digest(adapted()) == frozen_digest(changed(adapted(), "1.weight"))
    assert same != frozen_digest(changed(adapted(), "0.weight"))
    assert same != frozen_digest(changed(adapted(), "0.bias"))


def test_digest_differs_by_name_type_and_shape():
    digests = [frozen_digest(adapted()), frozen_digest(adapted(dtype=torch.bfloat16))]
    for shape in ((2, 6), (3, 4)):
        for name in ("one", "two"):
            module = nn.Module()
            module.register_parameter(name, nn.Parameter(torch.zeros(shape), requires_grad=False))
            digests.append(frozen_digest(module))
    assert len(set(digests)) == len(digests)


def test_digest_of_any_type_and_order_in_memory_is_read():
    kinds = (torch.float16, torch.uint8, torch.bool, torch.float64)
    frozen = [nn.Parameter(torch.ones(2, 3).to(kind), requires_grad=False) for kind in kinds]
    scalar = nn.Parameter(torch.tensor(1.0), requires_grad=False)
    assert frozen_digest(nn.ParameterList([*frozen, scalar]))
    turned = nn.Parameter(torch.arange(6.0).view(2, 3).t(), requires_grad=False)
    straight = nn.Parameter(turned.detach().contiguous(), requires_grad=False)
    assert frozen_digest(nn.ParameterList([turned])) == frozen_digest(nn.ParameterList([straight]))


def test_pieces_give_digest_of_whole(monkeypatch: pytest.MonkeyPatch):
    whole = frozen_digest(adapted())
    assert PIECE_BYTES > 7
    monkeypatch.setattr("fedgc.training.frozen.PIECE_BYTES", 7)
    assert frozen_digest(adapted()) == whole


def test_private_part_of_base_may_differ():
    assert frozen_digest(adapted(0), ["0.*"]) == frozen_digest(adapted(1), ["0.*"]) == ""
    assert ModelState(adapted(), private=["0.*"]).private == ()


def test_frozen_parameter_without_data_is_refused():
    with torch.device("meta"):
        model = nn.Linear(2, 2).requires_grad_(requires_grad=False)
    with pytest.raises(BadTask, match="weight has no data yet, needed a model that is loaded"):
        frozen_digest(model)


def test_bound_layout_has_digest_of_unwrapped_module():
    state = ModelState(nn.DataParallel(adapted()))
    assert state.layout.frozen == ""
    state.bind()
    assert state.layout.frozen == frozen_digest(adapted())
