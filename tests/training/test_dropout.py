import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fedgc.training import dropout
from fedgc.training.dropout import LEVELS, _draws, mask, portable_dropout
from fedgc.training.randomness import draws, key

CPU = torch.device("cpu")


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 50))
def test_device_integers_equal_generator_integers(start, count):
    assert [word % 2**64 for word in _draws(start, count, CPU).tolist()] == draws(
        start % 2**64, 0, count
    ).tolist()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_mask_drops_given_share_and_keeps_mean(p):
    torch.manual_seed(0)
    count = 200_000
    factors = mask((count,), p, CPU)
    spread = (p * (1 - p) / count) ** 0.5
    assert abs((factors == 0).float().mean().item() - p) < 5 * spread + 1 / LEVELS
    assert factors.unique().numel() <= 2
    assert abs(factors.mean().item() - 1) < 5 * spread / (1 - p) + 1e-4


def test_whole_channels_are_dropped_for_channel_layers():
    torch.manual_seed(0)
    with portable_dropout():
        dropped = functional.dropout2d(torch.ones(4, 8, 3, 3))
    per_channel = dropped.flatten(2)
    assert torch.equal(per_channel.amin(dim=2), per_channel.amax(dim=2))
    assert set(per_channel[..., 0].flatten().tolist()) == {0.0, 2.0}


def test_trivial_dropout_and_evaluation_are_left_to_torch():
    ones = torch.ones(100)
    with portable_dropout():
        assert functional.dropout(ones, 0.0).equal(ones)
        assert functional.dropout(ones, 1.0).equal(ones * 0)
        assert functional.dropout(ones, 0.5, training=False).equal(ones)
        assert nn.Dropout(0.5).eval()(ones).equal(ones)
        with pytest.raises(ValueError, match="between 0 and 1"):
            functional.dropout(ones, 1.5)


def test_in_place_dropout_is_in_place_and_draws_same_mask():
    found = []
    for inplace in (False, True):
        torch.manual_seed(4)
        value = torch.ones(50)
        with portable_dropout():
            found.append(functional.dropout(value, 0.5, inplace=inplace))
        assert (found[-1] is value) == inplace
    assert found[0].equal(found[1])


def test_masks_differ_from_call_to_call_and_repeat_under_seed():
    found = []
    for seed in (key("a"), key("a"), key("b")):
        torch.manual_seed(seed)
        with portable_dropout():
            found.append([functional.dropout(torch.ones(64), 0.5) for _ in range(2)])
    assert not found[0][0].equal(found[0][1])
    assert all(map(torch.equal, found[0], found[1]))
    assert not any(map(torch.equal, found[0], found[2]))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputed_forward_pass_drops_same_values(use_reentrant):
    layers = nn.Sequential(nn.Linear(20, 20), nn.Dropout(0.5), nn.Linear(20, 20), nn.Dropout(0.5))
    inputs = torch.randn(5, 20, requires_grad=True)
    gradients = []
    for forward in (layers, lambda value: checkpoint(layers, value, use_reentrant=use_reentrant)):
        layers.zero_grad()
        torch.manual_seed(9)
        with portable_dropout():
            forward(inputs).square().sum().backward()
        gradients.append(layers[0].weight.grad)
    assert torch.equal(*gradients)


def test_unfused_attention_uses_own_masks(monkeypatch):
    exchange = []
    monkeypatch.setattr(dropout, "mask", lambda *asked: exchange.append(asked) or mask(*asked))
    attention = nn.MultiheadAttention(8, 2, dropout=0.5)
    with portable_dropout():
        attention(*[torch.randn(3, 1, 8)] * 3, need_weights=True)
    assert [shape for shape, *_ in exchange] == [(2, 3, 3)]


def test_torch_functions_are_restored_after_any_error():
    before = functional.dropout, functional.dropout2d
    with pytest.raises(ValueError, match="between 0 and 1"), portable_dropout():
        functional.dropout(torch.ones(1), 1.5)
    assert before == (functional.dropout, functional.dropout2d)
