"""LoRA adapters of different ranks in one federation: all exchange vectors of the largest rank.

A client of a lower rank trains the first components of the common adapter, which are the most important ones.
The others stay as they are in the common model (`aggregators/lora_mixed_ranks.py`). The scale, `lora_alpha /
r`, must be the same on all clients, so that products can be added.
"""

import json
import math
from dataclasses import replace
from typing import Any, Final

from fedgc.aggregators.lora_mixed_ranks import FACTOR, LoraMixedRanks
from fedgc.config import RunConfig
from fedgc.errors import BadTask
from fedgc.messages import Layout, TensorSpec

UNLIKE: Final = (
    "rank_pattern",
    "alpha_pattern",
    "use_dora",
)  # settings of adapters that are no plain products


def common_rank(config: RunConfig) -> int:
    """Return the rank of the vectors that are exchanged; 0 if all adapters have the same."""
    rule = config.new_rule()
    return rule.rank if isinstance(rule, LoraMixedRanks) else 0


def padded(layout: Layout, rank: int) -> Layout:
    """Return the layout of the same adapter with this rank.

    Raises:
        BadTask: The model has no adapter of LoRA, one of a larger rank, or one that is no plain product.
    """
    config = dict(layout.adapter.settings()) if layout.adapter is not None else {}
    if layout.adapter is None or config.get("peft_type") != "LORA":
        raise BadTask("fedgc.join: saw a model without an adapter of LoRA, needed one for lora-mixed-ranks")
    for name in UNLIKE:
        if config.get(name):
            raise BadTask(f"fedgc.join: saw {name} of the adapter set, needed none for lora-mixed-ranks")
    own = config["r"]
    if own > rank:
        raise BadTask(
            f"fedgc.join: saw an adapter of rank {own}, needed at most {rank}, as aggregation.options say"
        )
    tensors = tuple(_padded(each, own, rank) for each in layout.tensors)
    settings = {**config, "r": rank, "lora_alpha": _alpha(config, rank)}
    return replace(layout, tensors=tensors, adapter=replace(layout.adapter, config=json.dumps(settings)))


def _alpha(config: dict[str, Any], rank: int) -> float:
    """Return the `lora_alpha` of the same scale at this rank."""
    grown = rank / config["r"]
    return round(float(config["lora_alpha"]) * (math.sqrt(grown) if config.get("use_rslora") else grown), 6)


def _padded(tensor: TensorSpec, own: int, rank: int) -> TensorSpec:
    found = FACTOR.search(tensor.name)
    if found is None:
        return tensor
    axis = "AB".index(found.group(2))
    if len(tensor.shape) != 2 or tensor.shape[axis] != own:
        raise BadTask(f"fedgc.join: saw {tensor}, needed a matrix of rank {own} for lora-mixed-ranks")
    shape = (rank, tensor.shape[1]) if axis == 0 else (tensor.shape[0], rank)
    return replace(tensor, shape=shape)
