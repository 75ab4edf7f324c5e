"""Whether a model is better with an outlier's updates or without them, by evaluations of the server.

By its update alone a hostile client cannot be told from an honest one whose data no other client has. So the
server also evaluates the model that a round would have led to if one outlier had not counted, as Zeno does
for each update (Xie et al., arXiv 1805.10032).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedgc.large_vectors import in_tiles, squared_length

Vector = NDArray[np.float32]

MOST_BYTES: Final = 64 * 2**20  # of an update: a check holds three vectors of this size
KEPT: Final = 0.9  # of what earlier checks of a client have shown
FEWEST: Final = 2  # checks of a client in a row that show a difference, before they decide


@dataclass(frozen=True, slots=True, eq=False)
class OutlierCheck:
    """An outlier of a round, and the mean update in which it would have counted otherwise."""

    client: str
    counts: bool  # in the mean update; then it does not in the other
    difference: Vector  # of the parameters of the other mean update from those of the mean update
    length: float  # of the parameters of the mean update

    def alternative(self, before: Vector, after: Vector) -> Vector:
        """Return the model of the other mean update: the server's step made from `before` to `after`.

        The step may be of any optimizer. Its length is that of the mean update times a rate, and the
        difference is taken with the same rate. Buffers, which follow the parameters, stay as they are.

        >>> check = OutlierCheck("a", True, np.float32([2, 0]), 1.0)
        >>> check.alternative(np.float32([5, 5]), np.float32([5, 4.5])).tolist()
        [4.0, 4.5]
        """

        def step(part: slice, room: Vector) -> Vector:
            return np.subtract(after[part], before[part], out=room)

        size = self.difference.size
        rate = math.sqrt(squared_length(step, size)) / self.length if self.length else 0.0
        other, factor = after.copy(), np.float32(rate)

        def turn(tile: slice) -> None:
            other[tile] -= factor * self.difference[tile]

        in_tiles(size, turn)
        return other


class Benefits:
    """How much better models are by the updates of each outlier: a sum of which older parts fade.

    >>> benefits = Benefits()
    >>> for gain in (0.2, 0.1):
    ...     benefits.enter("helpful", gain)
    ...     benefits.enter("harmful", -gain)
    >>> benefits.helps("helpful"), benefits.harms("harmful"), benefits.harms("helpful")
    (True, True, False)
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._checks: dict[str, int] = {}
        self._shown: dict[str, int] = {}  # of these checks, the latest that show a difference

    def enter(self, client: str, gain: float) -> None:
        """Take in the result of a check: above 0, the model is better with the client's update.

        A check without any difference ends what earlier ones have shown. An accuracy over few samples is
        often the same with and without an update; the first results would decide for the rest of a run.

        >>> benefits = Benefits()
        >>> for gain in (-0.1, -0.1, 0.0):
        ...     benefits.enter("a", gain)
        >>> benefits.harms("a")
        False
        """
        self._checks[client] = self.checks(client) + 1
        if gain:
            self._sums[client] = KEPT * self._sums.get(client, 0.0) + gain
            self._shown[client] = self._shown.get(client, 0) + 1
        else:
            self._sums[client], self._shown[client] = 0.0, 0

    def checks(self, client: str) -> int:
        """Return how often a client was checked."""
        return self._checks.get(client, 0)

    def helps(self, client: str) -> bool:
        """Whether models are better with the client's updates."""
        return self._known(client) > 0

    def harms(self, client: str) -> bool:
        """Whether models are better without the client's updates."""
        return self._known(client) < 0

    def _known(self, client: str) -> float:
        return self._sums[client] if self._shown.get(client, 0) >= FEWEST else 0.0

    def forget(self, clients: Iterable[str]) -> None:
        """Forget what checks of these clients have shown."""
        for client in clients:
            self._sums[client], self._shown[client] = 0.0, 0

    def clear(self) -> None:
        """Forget all checks."""
        self._sums, self._checks, self._shown = {}, {}, {}

    def memory(self) -> Mapping[str, NDArray[Any]]:
        """Return what is known, for `recall`."""
        clients = list(self._sums)
        if not clients:
            return {}
        return {
            "checked": np.array(clients, dtype=np.str_),
            "benefits": np.array([self._sums[each] for each in clients]),
            "checks": np.array([self._checks[each] for each in clients], np.int64),
            "shown": np.array([self._shown[each] for each in clients], np.int64),
        }

    def recall(self, memory: Mapping[str, NDArray[Any]]) -> None:
        """Continue with what `memory` has returned."""
        if "checked" not in memory:
            self.clear()
            return
        clients = memory["checked"].tolist()
        self._sums = dict(zip(clients, memory["benefits"].tolist(), strict=True))
        self._checks = dict(zip(clients, memory["checks"].tolist(), strict=True))
        self._shown = dict(zip(clients, memory["shown"].tolist(), strict=True))
