"""How much better a model is than another, by the figures of both."""

import math
from collections.abc import Mapping

from fedgc.run.figure_names import direction_of


def shows_gains(figures: Mapping[str, float]) -> bool:
    """Whether the name of one of these figures says which values are better.

    >>> shows_gains({"loss": 0.5, "seconds": 1.0}), shows_gains({"seconds": 1.0})
    (True, False)
    """
    return any(map(direction_of, figures))


def gain_of(figures: Mapping[str, float], others: Mapping[str, float]) -> float | None:
    """Return how much better the first figures are: by an error if there is one, else by another figure.

    A loss shows the influence of a single update; an accuracy is often the same with and without it. None if
    no figure is finite in both, with a name that says which values are better.

    >>> gain_of({"accuracy": 0.8, "loss": 0.5}, {"accuracy": 0.9, "loss": 0.75})
    0.25
    >>> gain_of({"seconds": 1.0}, {"seconds": 2.0}) is None
    True
    """
    for name in sorted(figures, key=lambda name: (direction_of(name) != "lowest", name)):
        direction, gain = direction_of(name), figures[name] - others.get(name, math.nan)
        if direction is not None and math.isfinite(gain):
            return -gain if direction == "lowest" else gain
    return None
