"""Test what is announced of an adapter of PEFT, with PEFT itself."""

import json
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedgc.errors import BadMessage
from fedgc.messages import Adapter, Layout, TensorSpec
from fedgc.messages.adapter import LONGEST_CONFIG
from fedgc.training.loop.model_state import ModelState

pytestmark = pytest.mark.filterwarnings("ignore")


def base() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def announced(module: nn.Module, private: tuple[str, ...] = ()) -> Adapter | None:
    state = ModelState(module, private)
    state.bind()
    return state.layout.adapter


@pytest.fixture
def adapted() -> Callable[..., nn.Module]:
    from peft import LoraConfig, get_peft_model

    return lambda **words: get_peft_model(base(), LoraConfig(r=2, target_modules=["0"], **words))


def test_adapter_has_names_of_peft_for_each_tensor(adapted):
    from peft import get_peft_model_state_dict

    model = adapted(modules_to_save=["2"], lora_alpha=7)
    found = announced(model)
    assert found is not None
    assert set(found.names) == set(get_peft_model_state_dict(model))
    assert (found.lacks, len(found.names)) == ("", 4)
    settings = found.settings()
    assert settings["lora_alpha"] == 7
    assert (settings["target_modules"], settings["modules_to_save"]) == (["0"], ["2"])
    assert (settings["inference_mode"], settings["auto_mapping"]) == (True, None)


def test_path_of_base_is_not_announced(adapted, tmp_path):
    for place, told in ((str(tmp_path), None), ("house/model", "house/model")):
        model = adapted()
        model.peft_config["default"].base_model_name_or_path = place
        assert announced(model).settings()["base_model_name_or_path"] == told


def test_tensor_outside_adapter_has_empty_name(adapted):
    model = adapted()
    model.base_model.model[2].bias.requires_grad_()
    assert sorted(announced(model).names)[0] == ""


def adapted_gpt2(**words: object) -> nn.Module:
    """Return an adapted model whose first and last weights are tied."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=4, n_embd=4, n_layer=1, n_head=2))
    return get_peft_model(model, LoraConfig(r=2, target_modules=["c_attn"], **words))


def test_tied_tensors_of_adapter_have_their_first_name():
    """As in the layout; PEFT saves trainable tokens once."""
    found = announced(adapted_gpt2(trainable_token_indices=[1]))
    first = "base_model.model.transformer.wte.token_adapter.trainable_tokens_delta"
    assert (found.names[0], found.lacks) == (first, "")


def test_tied_tensor_that_peft_saves_twice_is_named():
    """A file with one of its names could not be read."""
    found = announced(adapted_gpt2(modules_to_save=["wte", "lm_head"], ensure_weight_tying=True))
    assert found.lacks.endswith("wte.weight")


def test_part_of_adapter_that_stays_on_client_is_named(adapted):
    assert announced(adapted(), ("*lora_A*",)).lacks == "base_model.model.0.lora_A.weight"


def test_model_without_adapter_announces_none(adapted):
    assert adapted()
    assert announced(base()) is None


def test_adapter_that_computes_otherwise_is_refused(adapted):
    def layout(alpha: int) -> Layout:
        state = ModelState(adapted(lora_alpha=alpha))
        state.bind()
        return state.layout

    assert layout(8).difference(layout(8)) == ""
    assert layout(8).difference(layout(16)) == "adapter: saw lora_alpha = 16, needed 8"


def test_layout_with_adapter_is_read_back(adapted):
    state = ModelState(adapted())
    state.bind()
    assert Layout.read(state.layout.text()) == state.layout


@pytest.mark.parametrize(
    ("config", "names", "says"),
    [
        ("[" * 100_000, ("a",), "characters, needed at most"),
        ("[" * 60_000, ("a",), "needed JSON"),
        ("[]", ("a",), "needed an object of JSON"),
        ("{}", ("a", "a"), "saw a name twice"),
        ("{}", (), "saw 0 names of an adapter, needed 1"),
        (json.dumps({"a": "b" * LONGEST_CONFIG}), ("a",), "needed at most"),
    ],
)
def test_adapter_of_other_form_is_refused(config: str, names: tuple[str, ...], says: str):
    with pytest.raises(BadMessage, match=says):
        Layout((TensorSpec("w", "float32", (1,)),), 1, "", Adapter(config, names))
