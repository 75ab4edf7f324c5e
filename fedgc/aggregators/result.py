"""The result of a round's aggregation rule, checked."""

import numpy as np

from fedgc.aggregators.rule import AggregationRule, Vector
from fedgc.errors import ExtensionFailed
from fedgc.guards import guarded


def result_of(rule: AggregationRule, name: str, round_: int, size: int) -> Vector | None:
    """Return the mean update of a round by the rule of this name; None if there was no update.

    Raises:
        Refused: The rule cannot make a mean of these updates.
        ExtensionFailed: The rule raised anything else, or returned another type, dtype or shape.
    """
    where = f"aggregation.rule {name}, round {round_}"
    with guarded(where, error=ExtensionFailed):
        mean = rule.result()
    if mean is None:
        return None
    if isinstance(mean, np.ndarray) and mean.dtype == np.float32 and mean.shape == (size,):
        return np.require(mean, requirements=("C", "W"))  # the server's optimizer writes to it
    seen = f"{mean.dtype} of shape {mean.shape}" if isinstance(mean, np.ndarray) else type(mean).__name__
    raise ExtensionFailed(f"{where}: saw {seen} as its mean update, needed float32 of shape ({size},)")
