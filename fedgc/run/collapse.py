"""Notices a model that has lost most of what the run had gained, and names the model to go back to."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from fedgc.errors import Unusable
from fedgc.run.figure_names import direction_of, is_lowest

LOST: Final = 0.5  # share of the gain
LEAST_MODELS: Final = 5  # before them, the figures of a run rise and fall by more
MOST_RETURNS: Final = 3  # to one model: after them the run goes on


class CollapseWatch:
    """Follows one figure of the models: that of `validate.best`, else an error, else an accuracy or the like.

    Without `validate.best`, a model has collapsed only if no other figure denies it: none is better than in
    the model to go back to, and each has lost most of its own gain, if it had any. A figure whose name does
    not say which values are better has no part in it: the run would go back because of a count or a time.

    >>> watch = CollapseWatch()
    >>> accuracies = (0.1, 0.5, 0.7, 0.8, 0.9, 0.85, 0.2)
    >>> [watch.enter(version, {"accuracy": each}) for version, each in enumerate(accuracies)]
    [None, None, None, None, None, None, 4]
    """

    def __init__(self, figure: str = "", best_is: str = "auto") -> None:
        self.figure = figure
        self._best_is = best_is
        self._asks_others = not figure
        self.best: int | None = None  # version
        self.value = self.best_value = math.nan  # of the last model and of the best one
        self._courses: dict[str, _Course] = {}  # by figure
        self._models = self._returns = 0

    def text(self) -> str:
        """Return what a checkpoint keeps: the first value of each figure, and how many models have figures.

        >>> watch = CollapseWatch()
        >>> watch.enter(1, {"accuracy": 0.1})
        >>> watch.text()
        '[1, {"accuracy": 0.1}]'
        """
        first = {name: self._upwards(name, each.first) for name, each in self._courses.items()}
        return json.dumps([self._models, {name: each for name, each in first.items() if math.isfinite(each)}])

    def restored(self, text: str) -> Self:
        """Return the watch of a run that goes on: it knows the first figures, and no model to go back to.

        >>> watch = CollapseWatch().restored('[5, {"accuracy": 0.1}]')
        >>> [watch.enter(version, {"accuracy": each}) for version, each in enumerate((0.9, 0.8, 0.3))]
        [None, None, 0]
        """
        if not text:
            return self
        try:
            models, first = json.loads(text)
            self._models = int(models)
            self._courses = {
                str(name): _Course(self._upwards(name, float(each))) for name, each in first.items()
            }
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise Unusable(f"checkpoint: saw {text[:40]!r} of figures, needed a count and numbers") from error
        return self

    def enter(self, version: int, figures: Mapping[str, float]) -> int | None:
        """Enter a model's figures; return the version to go back to if it has collapsed."""
        known = sorted(filter(direction_of, figures), key=lambda name: (direction_of(name) != "lowest", name))
        self.figure = self.figure or next(iter(known), "")
        if self.figure not in figures:
            return None
        self.value = figures[self.figure]
        self._models += 1
        for name in {self.figure, *known} if self._asks_others else {self.figure}:
            self._courses.setdefault(name, _Course()).enter(self._upwards(name, figures[name]))
        course = self._courses[self.figure]
        if self.best is None or course.value > course.at_best:
            if math.isfinite(self.value):
                self.best, self.best_value, self._returns = version, self.value, 0
                for name, each in self._courses.items():
                    each.at_best = each.value if name in figures else math.nan
            return None
        if not self._has_collapsed(figures) or self._returns >= MOST_RETURNS:
            return None
        self._returns += 1
        return self.best

    def _has_collapsed(self, figures: Mapping[str, float]) -> bool:
        if not math.isfinite(self.value):
            return True
        others = [each for name, each in self._courses.items() if name != self.figure and name in figures]
        return (
            self._models >= LEAST_MODELS
            and self._courses[self.figure].is_lost
            and not any(each.denies for each in others)
        )

    def _upwards(self, name: str, value: float) -> float:
        """Return a figure such that higher values are better."""
        lowest = is_lowest(name, self._best_is if name == self.figure else "auto")
        return -value if lowest else value


@dataclass(slots=True)
class _Course:
    """The values of one figure, of which higher ones are better."""

    first: float = math.nan
    best: float = math.nan
    at_best: float = math.nan  # of the model to go back to
    value: float = math.nan  # of the last model

    def enter(self, value: float) -> None:
        self.value = value
        if math.isfinite(value):
            self.first = value if math.isnan(self.first) else self.first
            self.best = value if math.isnan(self.best) else max(self.best, value)

    @property
    def is_lost(self) -> bool:
        """Whether the last model has lost most of what the best one has gained."""
        lost = self.best - self.value
        return not math.isfinite(self.value) or 0 < LOST * (self.best - self.first) < lost

    @property
    def denies(self) -> bool:
        """Whether the last model is better than the one to go back to, or has not lost most of a gain."""
        return self.value > self.at_best or (self.best > self.first and not self.is_lost)
