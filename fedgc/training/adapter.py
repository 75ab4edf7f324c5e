"""What a client announces of its model beside the layout: the digest of its base, and its adapter of PEFT.

An adapter is found by itself: a model made by PEFT's `get_peft_model`, or one of transformers after
`add_adapter`. The server has no code of the model, so it gets the configuration and the names under which
PEFT saves the tensors, once, with the layout. PEFT itself is imported only where such a model is there.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torch import nn

from fedgc.messages import Adapter, Layout
from fedgc.training.flat import plain_name
from fedgc.training.frozen import frozen_digest

PREFIX: Final = "base_model.model."  # of the names in a file of PEFT
NOT_FOUND: Final = "fedgc: the adapter cannot be exported in PEFT's format: {}: {}\n"


def announced_layout(layout: Layout, module: nn.Module, private: Sequence[str]) -> Layout:
    """Return a layout with the digest of the frozen parameters, and the adapter. All ranks call it."""
    names = [each.name for each in layout.tensors]
    return replace(layout, frozen=frozen_digest(module, private), adapter=adapter_of(module, names))


def adapter_of(module: nn.Module, names: Sequence[str]) -> Adapter | None:
    """Return the adapter of a module, whose exchanged tensors have these names; None without one.

    >>> adapter_of(nn.Linear(2, 1), ["weight", "bias"])
    """
    configs = getattr(module, "peft_config", None)
    if "peft" not in sys.modules or not isinstance(configs, Mapping) or len(configs) != 1:
        return None
    ((adapter, config),) = configs.items()
    try:
        saved = _saved(module, adapter)
        text = json.dumps(_plain(config.to_dict()), default=_listed)
    except Exception as error:  # of PEFT, in whatever version: the training can do without
        sys.stderr.write(NOT_FOUND.format(type(error).__name__, error))
        return None
    known = {name: each for each, name in saved.items() if name in set(names)}
    lacks = next((each for each, name in saved.items() if known.get(name) != each), "")
    return Adapter(text, tuple(known.get(name, "") for name in names), lacks)


def _saved(module: nn.Module, adapter: str) -> dict[str, str]:
    """Return the names of tensors in the module, by those under which PEFT saves them.

    PEFT saves some tied tensors twice, and reads them only so.
    """
    from peft import PeftModel, get_peft_model_state_dict

    state = module.state_dict(keep_vars=True)
    # It looks for resized embeddings on the network otherwise.
    kept = get_peft_model_state_dict(module, state, adapter, save_embedding_layers=False)
    names = {id(each): name for name, each in reversed(state.items())}  # of tied ones the first
    prefix = "" if isinstance(module, PeftModel) else PREFIX
    return {prefix + plain_name(name): plain_name(names[id(each)]) for name, each in kept.items()}


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration for use elsewhere: without places of this machine and names of code."""
    base = config.get("base_model_name_or_path")
    place = {"base_model_name_or_path": None if base is None or Path(str(base)).exists() else str(base)}
    return {**config, **place, "auto_mapping": None, "inference_mode": True}


def _listed(value: object) -> Any:  # noqa: ANN401  what JSON can hold
    return sorted(value) if isinstance(value, set | frozenset) else str(value)
