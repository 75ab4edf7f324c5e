"""Notices a model that has lost most of what the run had gained, and names the model to go back to."""

import math
from collections.abc import Mapping
from typing import Final

from fedgc.run.figure_names import direction_of, is_lowest

LOST: Final = 0.5  # share of the gain
LEAST_MODELS: Final = 5  # before them, the figures of a run rise and fall by more
MOST_RETURNS: Final = 3  # to one model: after them the run goes on


class CollapseWatch:
    """Follows one figure of the models: that of `validate.best`, else an error, else an accuracy or the like.

    A figure whose name does not say which values are better is not followed: the run would go back because
    of a count or a time.

    >>> watch = CollapseWatch()
    >>> accuracies = (0.1, 0.5, 0.7, 0.8, 0.9, 0.85, 0.2)
    >>> [watch.enter(version, {"accuracy": each}) for version, each in enumerate(accuracies)]
    [None, None, None, None, None, None, 4]
    """

    def __init__(self, figure: str = "", best_is: str = "auto") -> None:
        self.figure = figure
        self._best_is = best_is
        self.best: int | None = None  # version
        self.value = math.nan  # of the last model
        self.best_value = math.nan
        self._first = math.nan
        self._models = self._returns = 0

    def enter(self, version: int, figures: Mapping[str, float]) -> int | None:
        """Enter a model's figures; return the version to go back to if it has collapsed."""
        known = sorted(filter(direction_of, figures), key=lambda name: (direction_of(name) != "lowest", name))
        self.figure = self.figure or next(iter(known), "")
        value = figures.get(self.figure)
        if value is None:
            return None
        self.value = value
        self._models += 1
        if self.best is None or self._gain(self.best_value, value) > 0:
            if math.isfinite(value):
                self.best, self.best_value, self._returns = version, value, 0
                self._first = value if math.isnan(self._first) else self._first
            return None
        is_lost = not math.isfinite(value) or self._has_lost(value)
        if not is_lost or self._returns >= MOST_RETURNS:
            return None
        self._returns += 1
        return self.best

    def _has_lost(self, value: float) -> bool:
        gained = self._gain(self._first, self.best_value)
        return self._models >= LEAST_MODELS and 0 < LOST * gained < self._gain(value, self.best_value)

    def _gain(self, before: float, after: float) -> float:
        return before - after if is_lowest(self.figure, self._best_is) else after - before
