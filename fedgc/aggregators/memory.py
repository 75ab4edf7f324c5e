"""What a rule remembers of past rounds, as a checkpoint keeps it, checked."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedgc.aggregators.rule import AggregationRule
from fedgc.errors import ExtensionFailed
from fedgc.guards import guarded
from fedgc.plugins import returned

KEPT: Final = "?bBhHiIlLqQefdgFDGSU"  # characters of the dtypes whose bytes are all that they mean
NEEDED: Final = "needed names with arrays of numbers, bool or text"


def memory_of(rule: AggregationRule, name: str) -> Mapping[str, NDArray[Any]]:
    """Return what the rule of this name remembers.

    Raises:
        ExtensionFailed: The rule raised, or returned anything other than a mapping from names to such arrays.
    """
    where = f"aggregation.rule {name}: memory"
    with guarded(where, error=ExtensionFailed):
        memory = rule.memory()
    if not isinstance(memory, Mapping):
        raise ExtensionFailed(f"{where} returned {returned(memory)}, {NEEDED}")
    for key, values in memory.items():
        if not isinstance(key, str):
            raise ExtensionFailed(f"{where} returned {key!r} as a name, {NEEDED}")
        if not isinstance(values, np.ndarray | np.generic) or values.dtype.char not in KEPT:
            raise ExtensionFailed(f"{where} returned {returned(values)} as {key!r}, {NEEDED}")
    return memory


def give_back(rule: AggregationRule, name: str, memory: Mapping[str, NDArray[Any]]) -> None:
    """Let the rule of this name continue with its memory; raise ExtensionFailed if it raises."""
    with guarded(f"aggregation.rule {name}: recall", error=ExtensionFailed):
        rule.recall(memory)
