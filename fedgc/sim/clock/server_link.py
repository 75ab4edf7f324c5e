"""The server's link: concurrent transfers share it, each limited by its client's own link.

Flows share the link by max-min fairness, which TCP approximates: a flow slower than its fair share leaves the
rest to the others. With `slots` only that many uploads run at a time; the others queue. Those of earlier
rounds have as many slots of their own. Sizes are in whole updates; `update_s` is the time of one update on
the server's link, 0 for no limit.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
    """Flows by number; `ended` returns those that are complete.

    >>> pipe = Pipe(Line(update_s=1.0))
    >>> pipe.begin(0.0, 7, 1.0, own_s=1.0), pipe.begin(0.0, 8, 0.5, own_s=1.0)
    (None, None)
    >>> pipe.next_end, pipe.ended(1.0), pipe.next_end
    (1.0, [8], 1.5)
    """

    def __init__(self, line: Line, admitted: Callable[[int, float], object] = lambda *_: None) -> None:
        """`admitted` is told when a flow begins: once it has a slot."""
        self._line, self._admitted = line, admitted
        self._waiting: deque[tuple[int, float, float]] = deque()
        self._late_waiting: deque[tuple[int, float, float]] = deque()
        self._late: set[int] = set()  # flows of earlier rounds
        self._ends: list[tuple[float, int]] = []  # of flows whose rate never changes
        self._free: dict[int, float] = {}  # end times; a restarted flow ends at another time
        self._left: dict[int, float] = {}
        self._rate: dict[int, float] = {}
        self._own: dict[int, float] = {}
        self._now = 0.0
        self.next_end = NEVER

    def begin(self, now: float, flow: int, size: float, own_s: float) -> None:
        """Start a vector of `size` updates, at `own_s` seconds per update on the client's own link."""
        (self._late_waiting if flow in self._late else self._waiting).append((flow, size, own_s))
        self._refill(now)

    def set_late(self, now: float, flows: Iterable[int]) -> None:
        """Give flows of earlier rounds slots of their own."""
        self._late.update(flows)
        self._late_waiting.extend(each for each in self._waiting if each[0] in self._late)
        self._waiting = deque(each for each in self._waiting if each[0] not in self._late)
        self._refill(now)

    def drop(self, now: float, flow: int) -> None:
        """Remove a flow whose client is gone."""
        self._waiting = deque(each for each in self._waiting if each[0] != flow)
        self._late_waiting = deque(each for each in self._late_waiting if each[0] != flow)
        self._late.discard(flow)
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
                self._late.discard(flow)
            else:
                gone = [flow for flow in self._left if self._end_of(flow) <= at]
                over += gone
                self._pass(at)
                for flow in gone:
                    del self._left[flow], self._own[flow]
                    self._late.discard(flow)
                self._share()
            self._refill(at)
        return over

    def _refill(self, now: float) -> None:
        while self._waiting and self._runs(late=False):
            self._admit(now, *self._waiting.popleft())
        while self._late_waiting and self._runs(late=True):
            self._admit(now, *self._late_waiting.popleft())
        self._look_ahead()

    def _runs(self, *, late: bool) -> bool:
        """Whether a slot is free for another flow."""
        if self._line.slots is None:
            return True
        counted = len(self._late & (self._free.keys() | self._left.keys())) if self._late else 0
        return (counted if late else len(self._free) + len(self._left) - counted) < self._line.slots

    def _admit(self, now: float, flow: int, size: float, own_s: float) -> None:
        self._admitted(flow, now)
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
        """Divide the link, from the slowest flow to the fastest."""
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
    """Return when each client's vector arrives if it starts to send at `ready_s_w` (never: inf).

    >>> arrivals_s(np.array([0.0, 1.0]), 0.5, np.array([2.0, 2.0]), Line(slots=1)).tolist()
    [1.0, 2.0]
    """
    if line.update_s == 0.0 and line.slots is None:
        return ready_s_w + size * own_s_w
    pipe, came_w = Pipe(line), np.full(ready_s_w.shape, NEVER)
    to_send = deque(np.argsort(ready_s_w, kind="stable")[: int((ready_s_w < NEVER).sum())].tolist())
    while to_send or pipe.next_end < NEVER:
        if to_send and ready_s_w[to_send[0]] < pipe.next_end:
            w = to_send.popleft()
            pipe.begin(float(ready_s_w[w]), w, size, float(own_s_w[w]))
        else:
            now = pipe.next_end
            came_w[pipe.ended(now)] = now
    return came_w
