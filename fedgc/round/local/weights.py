"""The weights of updates: samples as announced, within what a minority of false claims can reach."""

from collections.abc import Container, Mapping
from statistics import median_low
from typing import Final, TypeVar

FEWEST: Final = 3  # clients: of two, neither can be outvoted
MANY: Final = 2  # times the median: such a client is large

_Client = TypeVar("_Client", int, str)  # its index, or its identity


def bounded_weights(
    samples: Mapping[_Client, int], largest: float, pinned: Container[_Client] = ()
) -> dict[_Client, float]:
    """Return each client's weight: its samples, where all large clients count for a limited share.

    Large are those with more than twice the median. Together they count for at most `largest` of all weights,
    but each at least as a client with twice the median. A pinned client, whose samples the operator has
    fixed, is never large.

    >>> bounded_weights({0: 900, 1: 50, 2: 50}, 0.5)
    {0: 100.0, 1: 50.0, 2: 50.0}
    >>> bounded_weights({0: 900, 1: 50, 2: 50}, 0.5, pinned={0})
    {0: 900.0, 1: 50.0, 2: 50.0}
    >>> bounded_weights({0: 900, 1: 50}, 0.5)
    {0: 900.0, 1: 50.0}
    """
    weights = {w: float(each) for w, each in samples.items()}
    if len(weights) < FEWEST or largest >= 1:
        return weights
    least = MANY * float(median_low(weights.values()))
    large = {w for w, each in weights.items() if each > least and w not in pinned}
    announced, others = (sum(weights[w] for w in weights if (w in large) == is_in) for is_in in (True, False))
    part = min(1.0, largest / (1 - largest) * others / announced) if announced else 1.0
    return {w: max(least, part * each) if w in large else each for w, each in weights.items()}
