"""The distance of each client's latest update, for a bound that follows from their median.

Where late updates count (`aggregation.late-updates`), a round has the updates of quick clients and of few
others. So the median is over all clients of the last rounds: quick clients alone do not decide what is far.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ROUNDS: Final = 32  # in which a client counts after its last update
FEWEST: Final = 3  # distances above 0: of two clients neither can be outvoted


class LatestDistances:
    """Keeps one distance of each client.

    >>> latest = LatestDistances()
    >>> for client, distance in (("a", 1.0), ("b", 2.0), ("c", 9.0)):
    ...     latest.enter(client, distance)
    >>> latest.end()
    >>> latest.enter("a", 4.0)
    >>> latest.median
    4.0
    """

    def __init__(self) -> None:
        self.now: dict[str, float] = {}  # of this round
        self._earlier: dict[str, tuple[float, int]] = {}  # with the rounds since
        self._sorted: list[float] = []  # the latest one of each client, if it is above 0

    def enter(self, client: str, distance: float) -> None:
        """Take in a distance of this round."""
        last = self.now.get(client, self._earlier.get(client, (0.0, 0))[0])
        if last > 0:
            del self._sorted[bisect_left(self._sorted, last)]
        if distance > 0:
            insort(self._sorted, distance)
        self.now[client] = distance

    @property
    def median(self) -> float | None:
        """The median of all that are above 0, the lower one of two; None of fewer than `FEWEST`."""
        return self._sorted[(len(self._sorted) - 1) // 2] if len(self._sorted) >= FEWEST else None

    def end(self) -> None:
        """Begin a new round; its clients have a distance until they have another one."""
        earlier = {client: (far, rounds + 1) for client, (far, rounds) in self._earlier.items()}
        earlier |= {client: (distance, 0) for client, distance in self.now.items()}
        self._earlier = {client: of for client, of in earlier.items() if of[1] < ROUNDS}
        self.discard()

    def discard(self) -> None:
        """Forget the distances of this round."""
        self.now = {}
        self._sorted = sorted(distance for distance, _ in self._earlier.values() if distance > 0)

    def forget(self) -> None:
        """Forget all distances of earlier rounds."""
        self._earlier = {}
        self._sorted = sorted(distance for distance in self.now.values() if distance > 0)

    def memory(self, name: str) -> Mapping[str, NDArray[Any]]:
        """Return the distances of earlier rounds, for `recall`."""
        return {
            f"{name} clients": np.array(list(self._earlier), dtype=np.str_),
            f"{name} distances": np.array([distance for distance, _ in self._earlier.values()]),
            f"{name} rounds": np.array([rounds for _, rounds in self._earlier.values()], np.int64),
        }

    def recall(self, memory: Mapping[str, NDArray[Any]], name: str) -> None:
        """Continue with what `memory` has returned."""
        clients, distances, rounds = (
            memory.get(f"{name} {what}", np.array([])).tolist() for what in ("clients", "distances", "rounds")
        )
        self._earlier = dict(zip(clients, zip(distances, rounds, strict=True), strict=True))
        self.discard()
