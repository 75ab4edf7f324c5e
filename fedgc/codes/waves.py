"""Waves of work: in each wave, every chunk belongs to one of its holders.

If clients begin with the same chunks, other chunks are begun late: a round with one chunk a client takes
twice as long even if nobody straggles. So the first two replicas of all chunks are made in waves. In a wave
each chunk belongs to one client, in the second wave to another one, and a client has as many chunks as its
share of all speeds. The published protocol consists of such waves, perfect matchings (arXiv 2405.19509).
After its own chunks a client continues with those that their first client reaches last.

A chunk goes to the holder that would reach it first. Chunks left over are matched by augmenting paths
(Ford and Fulkerson 1956): a holder with room takes the chunk, or gives one of its own to another holder.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from fedgc.codes.place import fill, whole_loads
from fedgc.codes.placement import Placement

WAVES: Final = 2  # more of them slow down rounds of four blocks
Orders = tuple[tuple[int, ...], ...]


def in_waves(placement: Placement, orders: Orders, speeds: Sequence[float]) -> Orders:
    """Return the orders in waves; each begins with a client's own chunks, in their present order.

    >>> both = Placement(2, ((0, 1), (0, 1)), (0, 1), (0.25, 0.75))
    >>> in_waves(both, ((0, 1), (0, 1)), (1.0, 1.0))
    ((0, 1), (1, 0))
    """
    if placement.columns == 1:  # no chunk has a second holder
        return orders
    loads_w = np.asarray(placement.loads, np.float64)
    share_w = fill(float(placement.chunks), np.asarray(speeds, np.float64), loads_w)
    room_w = whole_loads(share_w).tolist()
    begin, rest = _dealt(placement.chunks, orders, room_w)
    late_c = np.full(placement.chunks, np.inf)  # a chunk without a first client is due at once
    for own in begin:
        late_c[own] = (np.arange(len(own)) + 0.5) / max(1, len(own))
    urgent_first = [sorted(order, key=lambda chunk: -late_c[chunk]) for order in rest]
    for _ in range(WAVES - 1):
        following, urgent_first = _dealt(placement.chunks, urgent_first, room_w)
        begin = [own + more for own, more in zip(begin, following, strict=True)]
    return tuple((*own, *order) for own, order in zip(begin, urgent_first, strict=True))


def _dealt(
    chunks: int, orders: Sequence[Sequence[int]], room_w: Sequence[int]
) -> tuple[list[list[int]], list[list[int]]]:
    """Return each client's own chunks of a wave, and the others."""
    owns = _Wave(chunks, orders, room_w).own
    own = [[chunk for chunk in order if chunk in mine] for order, mine in zip(orders, owns, strict=True)]
    rest = [[chunk for chunk in order if chunk not in mine] for order, mine in zip(orders, owns, strict=True)]
    return own, rest


class _Wave:
    """Gives each chunk to one of the clients that have it in their order."""

    def __init__(self, chunks: int, orders: Sequence[Sequence[int]], room_w: Sequence[int]) -> None:
        self.own: list[set[int]] = [set() for _ in orders]
        self._owner = [-1] * chunks
        self._room = list(room_w)
        self._holders: list[list[int]] = [[] for _ in range(chunks)]
        places = []
        for w, order in enumerate(orders):
            for place, chunk in enumerate(order):
                self._holders[chunk].append(w)
                if place < room_w[w]:
                    places.append(((place + 0.5) / room_w[w], w, chunk))
        for _, w, chunk in sorted(places):
            if self._owner[chunk] < 0 and self._room[w] > 0:
                self._give(chunk, w)
        for chunk in range(chunks):
            if self._owner[chunk] < 0:
                self._augment(chunk)

    def _give(self, chunk: int, w: int) -> None:
        self._owner[chunk] = w
        self.own[w].add(chunk)
        self._room[w] -= 1

    def _augment(self, chunk: int) -> None:
        """Find a holder with room, along chunks that change their holder; without one, leave the chunk."""
        before: dict[int, tuple[int, int] | None] = {chunk: None}
        queue = deque([chunk])
        while queue:
            at = queue.popleft()
            for w in self._holders[at]:
                if self._room[w] > 0:
                    self._move(at, w, before)
                    return
                for other in self.own[w]:
                    if other not in before:
                        before[other] = (at, w)
                        queue.append(other)

    def _move(self, chunk: int, w: int, before: dict[int, tuple[int, int] | None]) -> None:
        step: tuple[int, int] | None = (chunk, w)
        while step is not None:
            chunk, w = step
            old = self._owner[chunk]
            if old >= 0:
                self.own[old].remove(chunk)
                self._room[old] += 1
            self._give(chunk, w)
            step = before[chunk]
