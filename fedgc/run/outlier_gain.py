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

    A loss shows the influence of a single update; an accuracy is often the same with and without it. Of
    several errors, `loss` counts, else that with the shortest name, as names of parts are longer. An error
    that only one model has as a finite number is the better one. None if no figure of both has a name that
    says which values are better.

    >>> gain_of({"accuracy": 0.8, "loss": 0.5}, {"accuracy": 0.9, "loss": 0.75})
    0.25
    >>> gain_of({"loss": math.nan}, {"loss": 0.5}), gain_of({"loss": 0.5}, {"loss": math.inf})
    (-1.5, 1.5)
    >>> gain_of({"seconds": 1.0}, {"seconds": 2.0}) is None
    True
    """
    for name in sorted(figures.keys() & others.keys(), key=_order):
        direction = direction_of(name)
        if direction is None:
            continue
        one, other = (
            (figures[name], others[name]) if direction == "highest" else (others[name], figures[name])
        )
        if math.isfinite(one) and math.isfinite(other):
            return one - other
        if math.isfinite(one) or math.isfinite(other):
            worse = 1 + abs(other if math.isfinite(other) else one)
            return worse if math.isfinite(figures[name]) else -worse
    return None


def _order(name: str) -> tuple[bool, bool, int, str]:
    return direction_of(name) != "lowest", name.lower() != "loss", len(name), name
