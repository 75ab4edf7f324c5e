"""The weighted mean of updates whose norm is bounded (Sun et al., arXiv 1911.07963)."""

import math
from collections.abc import Sequence
from statistics import median_low

from fedgc.aggregators.collecting import CollectingRule, Update, mean_of, squared_norm
from fedgc.aggregators.rule import Vector
from fedgc.errors import BadSetting


class NormBoundedMean(CollectingRule):
    """Scales updates down that are longer than `factor` times the median of the round, and takes their mean.

    Unlike median and Krum it respects the sizes of the clients' data. A client with a share s of the weight
    moves the mean by at most s * factor * median, whatever it sends.
    """

    summary = "the mean by samples, each update at most factor times as long as the median one"

    def __init__(self, *, factor: float = 2.0) -> None:
        super().__init__()
        if not (math.isfinite(factor) and factor > 0):
            raise BadSetting(f"setting aggregation.options: saw factor={factor}, needed more than 0")
        self._factor = factor

    def combine(self, updates: Sequence[Update]) -> Vector:
        """Return the weighted mean of the bounded updates."""
        norms = [math.sqrt(squared_norm(each.vector)) for each in updates]
        bound = self._factor * median_low(norms)
        weight = sum(each.weight for each in updates)
        return mean_of(
            updates,
            [
                each.weight / weight * (min(1.0, bound / norm) if norm else 1.0)
                for each, norm in zip(updates, norms, strict=True)
            ],
        )
