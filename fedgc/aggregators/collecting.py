"""The base of rules that need all updates of a round at once."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedgc.aggregators.rule import AggregationRule, Vector
from fedgc.errors import Refused
from fedgc.large_vectors import Readable

TILE: Final = 1 << 15  # coordinates at a time: the values of all clients stay in the cache
Columns = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """One client's update in a round."""

    client: str
    weight: float
    vector: Vector


class CollectingRule(AggregationRule):
    """Keeps the updates of a round, one vector for each client, and combines them at its end."""

    def __init__(self) -> None:
        self._updates: list[Update] = []

    @abstractmethod
    def combine(self, updates: Sequence[Update]) -> Vector:
        """Return the mean update of at least one update; raise Refused if they are too few for the rule."""

    def add(self, client: str, weight: float, update: Vector) -> None:
        """Keep the update."""
        self._updates.append(Update(client, weight, update))

    def result(self) -> Vector | None:
        """Combine the updates."""
        updates, self._updates = self._updates, []
        return self.combine(updates) if updates else None

    def clear(self) -> None:
        """Discard the updates."""
        self._updates = []


def need(rule: str, updates: Sequence[Update], least: int) -> None:
    """Raise Refused if there are fewer updates than the rule needs."""
    if len(updates) < least:
        raise Refused(f"aggregator {rule}: saw {len(updates)} updates, needed at least {least}")


def by_coordinate(updates: Sequence[Update], combine: Callable[[Columns], Columns]) -> Vector:
    """Apply a coordinate-wise rule, a tile at a time.

    `combine` gets an array of shape (updates, coordinates), which it may change, and returns one number for
    each coordinate.
    """
    size = updates[0].vector.size
    result: Vector = np.empty(size, np.float32)
    for at in range(0, size, TILE):
        tile = slice(at, at + TILE)
        result[tile] = combine(np.stack([each.vector[tile] for each in updates]))
    return result


def mean_of(updates: Sequence[Update], shares: Sequence[float]) -> Vector:
    """Return the sum of the updates, each times its share."""
    result: Vector = np.zeros(updates[0].vector.size, np.float32)
    product = np.empty(min(TILE, result.size), np.float32)
    for each, share in zip(updates, shares, strict=True):
        for at in range(0, result.size, TILE):
            part = each.vector[at : at + TILE]
            result[at : at + TILE] += np.multiply(part, np.float32(share), out=product[: part.size])
    return result


def squared_norm(vector: Readable) -> float:
    """Return the squared length of a vector, summed in double precision."""
    tiles = (vector[at : at + TILE].astype(np.float64) for at in range(0, vector.size, TILE))
    return sum(float(tile @ tile) for tile in tiles)
