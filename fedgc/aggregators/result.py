"""The result of a round's aggregation rule, checked."""

import numpy as np

from fedgc.aggregators.rule import AggregationRule, Vector
from fedgc.errors import ExtensionFailed
from fedgc.guards import guarded
from fedgc.plugins import returned


def result_of(rule: AggregationRule, name: str, round_: int, size: int, updates: int) -> Vector | None:
    """Return the mean of so many updates of a round by the rule of this name; None if there was none.

    Raises:
        Refused: The rule cannot make a mean of these updates.
        ExtensionFailed: The rule raised anything else, or returned another type, dtype or shape.
    """
    where = f"aggregation.rule {name}, round {round_}"
    with guarded(where, error=ExtensionFailed):
        mean = rule.result()
    if mean is None and not updates:
        return None
    if isinstance(mean, np.ndarray) and mean.dtype == np.float32 and mean.shape == (size,):
        return np.require(mean, requirements=("C", "W"))  # the server's optimizer writes to it
    raise ExtensionFailed(
        f"{where}: saw {returned(mean)} as its mean update, needed float32 of shape ({size},)"
    )
