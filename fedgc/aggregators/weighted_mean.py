"""The weighted mean of updates (FedAvg, McMahan et al. 2017)."""

import numpy as np

from fedgc.aggregators.rule import AggregationRule, Vector

TILE = 1 << 15


class WeightedMean(AggregationRule):
    """Adds each update to a running sum, weighted by its client's samples; keeps one vector in all."""

    summary = "the mean by samples (FedAvg)"

    def __init__(self) -> None:
        self._sum: Vector | None = None
        self._weight = 0.0

    def add(self, client: str, weight: float, update: Vector) -> None:  # noqa: ARG002  all clients alike
        """Add the update to the sum."""
        if self._sum is None:
            self._sum = np.zeros(update.size, np.float32)
        factor, product = np.float32(weight), np.empty(min(TILE, update.size), np.float32)
        for at in range(0, update.size, TILE):
            part = update[at : at + TILE]
            self._sum[at : at + TILE] += np.multiply(factor, part, out=product[: part.size])
        self._weight += weight

    def result(self) -> Vector | None:
        """Return the sum divided by the weights."""
        total, weight = self._sum, self._weight
        self.clear()
        if total is not None:
            total /= np.float32(weight)
        return total

    def clear(self) -> None:
        """Begin a new sum."""
        self._sum, self._weight = None, 0.0
