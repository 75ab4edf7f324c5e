"""The mean update of a round: an aggregation rule over updates, or the decoded sum of codewords."""

from collections.abc import Mapping

import numpy as np

from fedgc.aggregators import AggregationRule, Shapes
from fedgc.codes import RunningSum
from fedgc.config import RunConfig
from fedgc.messages import Add
from fedgc.training.flat import Vector


class RoundSum:
    """Aggregates the vectors of a round: by the run's rule for local work, else as exact sum."""

    def __init__(self, config: RunConfig, size: int) -> None:
        """Updates have `size` numbers."""
        self._size = size
        self._rule: AggregationRule | None = config.new_rule() if config.work == "local" else None
        self._sum: RunningSum | None = None  # of codewords, once there is one

    def begin(self, model: Vector, shapes: Shapes) -> None:
        """Note the common model that the next vectors start from, and its tensors."""
        if self._rule is not None:
            self._rule.begin(model, shapes)

    def add(self, add: Add, vector: Vector) -> None:
        """Add the vector of a client."""
        if self._rule is not None:
            self._rule.add(add.client, add.weights[0], vector)
            return
        if self._sum is None:
            self._sum = RunningSum(self._size, len(add.weights), np.float32)
        self._sum.add(add.weights, vector)

    def mean(self, weight: float) -> Vector | None:
        """Return the mean update (None without vectors) and reset; `weight` divides the sum of codewords.

        Raises:
            Refused: The aggregation rule cannot make a mean of these updates.
        """
        if self._rule is not None:
            return self._rule.result()
        total, self._sum = self._sum, None
        if total is None:
            return None
        mean: Vector = total.total()
        mean /= np.float32(weight)
        return mean

    @property
    def outliers(self) -> Mapping[str, float]:
        """The clients of the last mean whose updates are far from the others', with the part that counts."""
        return {} if self._rule is None else self._rule.outliers

    def clear(self) -> None:
        """Discard the vectors of a round that was not exchanged."""
        self._sum = None
        if self._rule is not None:
            self._rule.clear()
