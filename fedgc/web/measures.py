"""Which measures of a model are shown: clients choose their names, so that there may be any number."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

MOST_MEASURES: Final = 32
FAVOURITES: Final = ("accuracy", "auc", "f1", "error")  # the measure drawn first, if one of these exists


def shown(measured: Iterable[Mapping[str, float]]) -> list[str]:
    """Return the names of the measures that are shown: those known by name, then the most frequent ones.

    >>> shown([{"epsilon": 1.0}, {"epsilon": 2.0, "bias": 0.1, "auc": 0.7}])
    ['auc', 'bias', 'epsilon']
    """
    counts = Counter(name for each in measured for name in each)
    first = sorted(counts, key=lambda name: (name not in FAVOURITES, -counts[name], name))
    return sorted(first[:MOST_MEASURES])


def main(names: Iterable[str]) -> str | None:
    """Return the main measure of these: a known one, else the first by name.

    >>> main(["error", "auc", "bias"]), main(["loss", "bias"]), main(["loss"])
    ('auc', 'bias', None)
    """
    others = set(names) - {"loss"}
    known = [name for name in FAVOURITES if name in others]
    return next(iter([*known, *sorted(others)]), None)
