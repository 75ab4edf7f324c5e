"""The best model of a run by one figure, and early stopping (patience, as in Prechelt 1998)."""

import math
from typing import Final

from fedgc.errors import numbered
from fedgc.history import BestModel, KnownBest
from fedgc.run.figure_names import is_lowest


class BestModelSearch:
    """Follows one figure over the models of a run.

    >>> search = BestModelSearch("accuracy", patience=2)
    >>> [search.enter(version, version, value) for version, value in enumerate((0.5, 0.9, 0.8, 0.9))]
    [True, True, False, False]
    >>> search.why_stop
    'accuracy has not improved for 2 evaluations; best is version 1, round 1, 0.9'
    """

    def __init__(
        self, figure: str, best_is: str = "auto", patience: int = 0, known: KnownBest | None = None
    ) -> None:
        """`known` is the best model before a resume; a patience of 0 never stops."""
        self.figure: Final = figure
        known = known if known is not None and known.figure == figure else None
        self.best: BestModel | None = known
        self._lowest = bool(figure) and is_lowest(figure, best_is)
        self._patience = patience
        self._without = known.since if known is not None else 0  # evaluations in a row without a better model

    def enter(self, version: int, round_: int, value: float) -> bool:
        """Enter the figure of a model; return whether it is the best so far."""
        if math.isfinite(value) and (self.best is None or self._is_better(value, self.best.value)):
            self.best = BestModel(self.figure, version, round_, value)
            self._without = 0
            return True
        if self.best is None or version != self.best.version:  # a resume scores the best model again
            self._without += 1
        return False

    @property
    def why_stop(self) -> str:
        """Why no better model is expected; empty while one is."""
        if not self._patience or self._without < self._patience or self.best is None:
            return ""
        best, without = self.best, numbered(self._without, "evaluation")
        return (
            f"{self.figure} has not improved for {without}; "
            f"best is version {best.version}, round {best.round}, {best.value:.4g}"
        )

    def _is_better(self, value: float, before: float) -> bool:
        return value < before if self._lowest else value > before
