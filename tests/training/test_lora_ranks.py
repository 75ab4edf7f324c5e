"""Test adapters of different ranks, of PEFT itself, in one vector."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, BadTask
from fedgc.training.loop.model_state import ModelState
from fedgc.training.loop.ranks import Ranks
from fedgc.training.lora_ranks import common_rank

pytestmark = pytest.mark.filterwarnings("ignore")
MIXED = {"script": "train.py", "aggregator": "lora-mixed-ranks", "aggregator_options": "rank=4"}


def state_of(r: int, rank: int = 4, alpha: float | None = None, **words: object) -> ModelState:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    targets = {"r": r, "lora_alpha": 2 * r if alpha is None else alpha, "target_modules": ["0"]}
    state = ModelState(get_peft_model(base, LoraConfig(**targets, modules_to_save=["2"], **words)))
    state.bind(rank)
    return state


@pytest.mark.parametrize("words", [{}, {"use_rslora": True}], ids=["lora", "rslora"])
def test_adapters_of_different_ranks_have_one_layout(words: dict):
    alphas = (8.0, 4 * 2**0.5) if words else (8, 4)
    high, low = (state_of(r, alpha=alpha, **words) for r, alpha in zip((4, 2), alphas, strict=True))
    assert high.layout.difference(low.layout) == ""
    assert high.layout.adapter.settings()["r"] == low.layout.adapter.settings()["r"] == 4


def test_client_of_lower_rank_trains_first_components():
    high, low = state_of(4), state_of(2)
    common = np.arange(high.layout.size, dtype=np.float32)
    for state in (high, low):
        state.write(common, Ranks())
    read = [np.empty_like(common) for _ in range(2)]
    high.read(read[0])
    low.read(read[1])
    assert read[0].tolist() == read[1].tolist() == common.tolist()
    factors = {name: each for name, each in low.module.named_parameters() if "lora_" in name}
    parts = low.layout.split(common)
    for name, each in factors.items():
        assert each.shape[0 if "lora_A" in name else 1] == 2
        first = parts[name][:2] if "lora_A" in name else parts[name][:, :2]
        assert each.tolist() == first.tolist()
        each.data += 1
    low.read(read[1])
    assert (read[1] - common).sum() == sum(each.numel() for each in factors.values())


def test_first_vector_has_zeros_beyond_own_rank():
    low = state_of(2)
    vector = np.full(low.layout.size, 9, np.float32)
    low.read(vector)
    parts = low.layout.split(vector)
    name = next(each for each in parts if "lora_A" in each)
    assert not parts[name][2:].any()
    assert parts[name][:2].tolist() == dict(low.module.named_parameters())[name].tolist()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"r": 5}, "saw an adapter of rank 5, needed at most 4"),
        ({"r": 2, "use_dora": True}, "saw use_dora of the adapter set"),
        ({"r": 2, "rank_pattern": {"0": 3}}, "saw rank_pattern of the adapter set"),
    ],
    ids=["rank", "dora", "pattern"],
)
def test_adapter_that_cannot_be_mixed_is_refused(words: dict, sentence: str):
    with pytest.raises(BadTask, match=re.escape(sentence)):
        state_of(**words)


def test_model_without_adapter_is_refused():
    with pytest.raises(BadTask, match="saw a model without an adapter of LoRA"):
        ModelState(nn.Linear(2, 2)).bind(4)


def test_other_scale_is_told_apart():
    high, low = state_of(4), state_of(2, alpha=8)
    assert high.layout.difference(low.layout) == "adapter: saw lora_alpha = 16.0, needed 8.0"


def test_ranks_that_differ_without_rule_are_told_apart():
    difference = state_of(4, rank=0).layout.difference(state_of(2, rank=0).layout)
    assert re.fullmatch(r"tensor 1: saw .*lora_A.* float32\[2, 5\], needed .*\[4, 5\]", difference)


def test_rule_says_common_rank():
    assert common_rank(RunConfig(**MIXED)) == 4
    assert common_rank(RunConfig(script="train.py")) == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"script": ""}, "setting script: saw none"),
        ({"codec": "int8"}, "setting links.codec: saw int8, needed float32"),
        ({"download_codec": "int8"}, "setting links.download-codec: saw int8, needed float32"),
        ({"server_optimizer": "adam"}, "setting optimizer.server: saw adam, needed sgd"),
        ({"server_learning_rate": 0.5}, "setting optimizer.server-learning-rate: saw 0.5, needed 1"),
        ({"server_momentum": 0.5}, "setting optimizer.server-momentum: saw 0.5, needed 0"),
        (
            {"secrecy": "masked", "federation": "all.fed"},
            "needed weighted-mean or auto with secrecy",
        ),
    ],
)
def test_settings_that_products_do_not_follow_are_refused(changes: dict, sentence: str):
    with pytest.raises(BadSetting, match=re.escape(sentence)):
        RunConfig(**{**MIXED, **changes})
