"""The server's line: many vectors share it, and each goes no faster than its own client's line.

Flows share the line fairly: whoever's own line is slower than its share leaves the rest to the others
(max-min fairness, what TCP tends to). With `slots` only so many flow at a time, the others queue up.
Sizes are in whole updates; `update_s` is how long the server's line needs for one, 0 for one never full.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

import numpy as np

from fedgc.errors import BadSetting
from fedgc.sim.clock.conditions import NEVER, Float


@dataclass(frozen=True, slots=True)
class Line:
    """The server's side of all transfers."""

    update_s: float = 0.0
    slots: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.update_s) and self.update_s >= 0):
            raise BadSetting(f"line: saw {self.update_s} s an update, needed a finite time of 0 or more")
        if self.slots is not None and self.slots < 1:
            raise BadSetting(f"line: saw {self.slots} slots, needed one at least")


UNCONTENDED: Final = Line()


class Pipe:
    """Flows by number; `ended` gives those whose last byte has come.

    >>> pipe = Pipe(Line(update_s=1.0))
    >>> pipe.begin(0.0, 7, 1.0, own_s=1.0), pipe.begin(0.0, 8, 0.5, own_s=1.0)
    (None, None)
    >>> pipe.next_end, pipe.ended(1.0), pipe.next_end
    (1.0, [8], 1.5)
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._waiting: deque[tuple[int, float, float]] = deque()
        self._ends: list[tuple[float, int]] = []  # of flows whose rate never changes
        self._free: dict[int, float] = {}  # when they end: one that is begun anew ends at another time
        self._left: dict[int, float] = {}
        self._rate: dict[int, float] = {}
        self._own: dict[int, float] = {}
        self._now = 0.0
        self.next_end = NEVER

    def begin(self, now: float, flow: int, size: float, own_s: float) -> None:
        """Let a vector of `size` updates go, `own_s` seconds an update on the client's own line."""
        if self._line.slots is not None and len(self._free) + len(self._left) >= self._line.slots:
            self._waiting.append((flow, size, own_s))
        else:
            self._admit(now, flow, size, own_s)

    def drop(self, now: float, flow: int) -> None:
        """Forget a flow: its client is gone."""
        self._waiting = deque(each for each in self._waiting if each[0] != flow)
        self._free.pop(flow, None)
        if flow in self._left:
            self._pass(now)
            del self._left[flow], self._own[flow]
            self._share()
        self._refill(now)

    def ended(self, now: float) -> list[int]:
        """Return the flows that have ended by now, the earliest first."""
        over = []
        while self.next_end <= now:
            at = self.next_end
            if self._line.update_s == 0.0:
                flow = heapq.heappop(self._ends)[1]
                over.append(flow)
                del self._free[flow]
            else:
                gone = [flow for flow in self._left if self._end_of(flow) <= at]
                over += gone
                self._pass(at)
                for flow in gone:
                    del self._left[flow], self._own[flow]
                self._share()
            self._refill(at)
        return over

    def _refill(self, now: float) -> None:
        while self._waiting and len(self._free) + len(self._left) < (self._line.slots or 0):
            self._admit(now, *self._waiting.popleft())
        self._look_ahead()

    def _admit(self, now: float, flow: int, size: float, own_s: float) -> None:
        if self._line.update_s == 0.0:
            self._free[flow] = end = now + size * own_s
            heapq.heappush(self._ends, (end, flow))
        else:
            self._pass(now)
            self._left[flow] = size
            self._own[flow] = 1.0 / own_s if own_s > 0 else NEVER
            self._share()
        self._look_ahead()

    def _pass(self, now: float) -> None:
        elapsed, self._now = now - self._now, now
        for flow in self._left:
            self._left[flow] = max(0.0, self._left[flow] - elapsed * self._rate.get(flow, 0.0))

    def _share(self) -> None:
        """Fill up from the slowest own line to the fastest."""
        room, sharing = 1.0 / self._line.update_s, len(self._left)
        self._rate.clear()
        for flow in sorted(self._left, key=self._own.__getitem__):
            self._rate[flow] = rate = min(self._own[flow], room / sharing)
            room -= rate
            sharing -= 1

    def _look_ahead(self) -> None:
        while self._ends and self._free.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        self.next_end = self._ends[0][0] if self._ends else NEVER
        if self._left:
            self.next_end = min(self.next_end, min(map(self._end_of, self._left)))

    def _end_of(self, flow: int) -> float:
        return self._now + self._left[flow] / self._rate[flow]


def arrivals_s(ready_s_w: Float, size: float, own_s_w: Float, line: Line) -> Float:
    """Return when each client's vector has come if it begins to send at `ready_s_w` (never: inf).

    >>> arrivals_s(np.array([0.0, 1.0]), 0.5, np.array([2.0, 2.0]), Line(slots=1)).tolist()
    [1.0, 2.0]
    """
    came_w: Float = all_arrivals_s(ready_s_w[:, None], (size,), own_s_w, line)[:, 0]
    return came_w


def all_arrivals_s(ready_s_wv: Float, sizes_v: Sequence[float], own_s_w: Float, line: Line) -> Float:
    """Return when each client's vectors have come, which it sends one after the other, in this order.

    >>> all_arrivals_s(np.array([[1.0, 2.0]]), (2.0, 1.0), np.array([1.0]), UNCONTENDED).tolist()
    [[3.0, 4.0]]
    """
    came_wv = np.full(ready_s_wv.shape, NEVER)
    if line.update_s == 0.0 and line.slots is None:
        free_w = np.zeros(len(own_s_w))
        for vector, size in enumerate(sizes_v):
            came_wv[:, vector] = free_w = np.maximum(free_w, ready_s_wv[:, vector]) + size * own_s_w
        return came_wv
    pipe, order = Pipe(line), count()
    first_w = ready_s_wv[:, 0].tolist()
    to_send = [(ready_s, next(order), w, 0) for w, ready_s in enumerate(first_w) if ready_s < NEVER]
    heapq.heapify(to_send)
    while to_send or pipe.next_end < NEVER:
        if to_send and to_send[0][0] < pipe.next_end:
            now, _, w, vector = heapq.heappop(to_send)
            pipe.begin(now, w * len(sizes_v) + vector, sizes_v[vector], float(own_s_w[w]))
            continue
        now = pipe.next_end
        for w, vector in (divmod(flow, len(sizes_v)) for flow in pipe.ended(now)):
            came_wv[w, vector] = now
            ready_s = float(ready_s_wv[w, vector + 1]) if vector + 1 < len(sizes_v) else NEVER
            if ready_s < NEVER:
                heapq.heappush(to_send, (max(now, ready_s), next(order), w, vector + 1))
    return came_wv
