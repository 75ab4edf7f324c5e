"""The coordinate-wise trimmed mean and median of updates (Yin et al., arXiv 1803.01498)."""

import math
from collections.abc import Sequence

import numpy as np

from fedgc.aggregators.collecting import CollectingRule, Columns, Update, by_coordinate, need
from fedgc.aggregators.rule import Vector
from fedgc.errors import BadSetting


class TrimmedMean(CollectingRule):
    """Leaves out the largest and the smallest values of each coordinate, and takes the mean of the others.

    Every client counts the same, whatever its samples. The share `trim` is left out at each end, rounded up.
    """

    summary = "of each coordinate the mean without the share trim at each end; clients count alike"

    def __init__(self, *, trim: float = 0.2) -> None:
        super().__init__()
        if not 0 < trim < 0.5:
            raise BadSetting(f"setting aggregation.options: saw trim={trim}, needed above 0 and below 0.5")
        self._trim = trim

    def combine(self, updates: Sequence[Update]) -> Vector:
        """Return the trimmed mean; at least one value of each coordinate must be left."""
        cut = max(1, math.ceil(self._trim * len(updates) - 1e-9))
        need("trimmed-mean", updates, 2 * cut + 1)

        def trimmed(columns: Columns) -> Columns:
            columns.sort(axis=0)
            return np.asarray(columns[cut:-cut].mean(axis=0, dtype=np.float64))

        return by_coordinate(updates, trimmed)


class Median(CollectingRule):
    """Takes the median of each coordinate. Every client counts the same, whatever its samples."""

    summary = "of each coordinate the median; clients count alike"

    def combine(self, updates: Sequence[Update]) -> Vector:
        """Return the median."""
        need("median", updates, 3)
        return by_coordinate(updates, lambda columns: np.median(columns, axis=0, overwrite_input=True))
