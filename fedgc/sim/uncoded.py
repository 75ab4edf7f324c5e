"""Rivals without a code: every piece of the data is some client's own.

Helped where the real thing would pay: a work queue hands out the next piece without latency, and a client
that dies does so before it uploads or not at all. Those that leave something out scale what came to the
whole, so that the sum is not too small.

- work queue: equal pieces, whoever is idle takes the next one; what a dead client had done goes back
- drop slowest: the round ends with the arrival before the k slowest
- over-selection: 1.3 times the clients that are needed start, the first that are needed count (Bonawitz 2019)
- FedBuff: nobody waits; a step is taken whenever `buffer` updates came (Nguyen et al. 2022), its time the
  mean over as many updates as there are clients. Its sum is of models of different age, never exact
"""

import heapq
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedgc.errors import BadSetting
from fedgc.sim.clock import NEVER, Conditions, Line, Scenario, arrivals_s
from fedgc.sim.policy import Result, done_s, known_paces, last


@dataclass(frozen=True, slots=True)
class Uncoded:
    """Wait for all: equal shares, or shares in proportion to the speeds known so far."""

    proportional: bool = False
    blocks: int = 1
    exact: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Return its name in tables."""
        return "uncoded, by speed" if self.proportional else "uncoded"

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Wait for the slowest, every round."""
        results = []
        for conditions, pace_w in known_paces(scenario):
            clients = conditions.clients
            units_w = clients / pace_w / (1.0 / pace_w).sum() if self.proportional else np.ones(clients)
            ready_w = done_s(conditions, units_w)
            came_w = arrivals_s(ready_w, 1.0, conditions.up_s_w, line)
            results.append(Result(last(came_w), last(ready_w), clients, clients, clients))
        return tuple(results)


@dataclass(frozen=True, slots=True)
class WorkQueue:
    """Shared storage: whoever is idle takes a piece, and sends one sum; `wire`: bytes over float32's."""

    pieces: int = 10  # for each client
    wire: float = 1.0
    blocks: int = 1
    exact: ClassVar[bool] = True  # up to the rounding of its wire

    def __post_init__(self) -> None:
        if self.pieces < 1 or not 0 < self.wire <= 1:
            raise BadSetting(f"{self!r}: needed at least one piece and a wire above 0, at most 1")

    @property
    def name(self) -> str:
        """Return its name in tables."""
        bits = round(32 * self.wire)
        return f"work queue of {self.pieces}" + ("" if bits == 32 else f", {bits} bits")

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Run the queue empty, every round."""
        return tuple(self._round(conditions, line) for conditions in scenario)

    def _round(self, conditions: Conditions, line: Line) -> Result:
        queue = _Queue(conditions, self.pieces)
        queue.run()
        sends = np.asarray(queue.counts) > 0
        ready_w = np.where(sends, queue.ended, NEVER)
        came_w = arrivals_s(ready_w, self.wire, conditions.up_s_w, line)
        over_s = last(came_w[sends]) if queue.empty else NEVER
        sent = self.wire * int(sends.sum())
        units = queue.computed / self.pieces
        counted = min(units, conditions.clients)
        working_s = min(over_s, last(ready_w[sends]))
        return Result(over_s, working_s, sent, units, counted, size=self.wire)


class _Queue:
    """Pieces that are all alike, so that their number says all there is to know of them."""

    def __init__(self, conditions: Conditions, pieces: int) -> None:
        clients = conditions.clients
        self._conditions = conditions
        self._piece = 1.0 / pieces
        self._left = clients * pieces
        self._lasts: list[list[float]] = []  # seconds of each client's k-th piece
        self._heap: list[tuple[float, int, str]] = []
        self._alive = [True] * clients
        self._idle: set[int] = set()
        self.counts = [0] * clients  # pieces in a client's sum
        self.ended = [0.0] * clients
        self.computed = 0
        self._taken = [0] * clients
        self._open = clients * pieces

    @property
    def empty(self) -> bool:
        """Whether every piece is in somebody's sum."""
        return self._open == 0

    def run(self) -> None:
        """Let everybody take pieces until all are done, or nobody is left."""
        conditions = self._conditions
        begun_w = conditions.down_s_w + conditions.control_s_w
        whens = {"starts": begun_w, "dies": conditions.dies_s_w, "starts again": conditions.returns_s_w}
        self._heap = [
            (float(w_s[w]), w, what)
            for what, w_s in whens.items()
            for w in np.flatnonzero(w_s < NEVER).tolist()
        ]
        heapq.heapify(self._heap)
        while self._heap and self._open:
            now, w, what = heapq.heappop(self._heap)
            if what == "dies":
                self._die(now, w)
            elif what == "ends" and self._alive[w]:
                self.counts[w] += 1
                self.computed += 1
                self._open -= 1
                self.ended[w] = now
                self._next(now, w)
            elif what != "ends":
                self._alive[w] = True
                self._next(now, w)

    def _next(self, now: float, w: int) -> None:
        if not self._left:
            self._idle.add(w)
            return
        self._left -= 1
        self._taken[w] += 1
        heapq.heappush(self._heap, (now + self._lasts_s(w, self._taken[w]), w, "ends"))

    def _die(self, now: float, w: int) -> None:
        """What was done here, and what was begun, goes back to the queue."""
        self._alive[w] = False
        begun = w not in self._idle and self._taken[w] > 0
        self._idle.discard(w)
        self._left += self.counts[w] + begun
        self._open += self.counts[w]
        self.counts[w] = 0
        for other in sorted(self._idle):
            self._idle.discard(other)
            self._next(now, other)

    def _lasts_s(self, w: int, number: int) -> float:
        while len(self._lasts) < number:
            upto = np.full(self._conditions.clients, self._piece * (len(self._lasts) + 1))
            before = upto - self._piece
            lasts_w = self._conditions.after_s(upto) - self._conditions.after_s(before)
            self._lasts.append(lasts_w.tolist())
        return self._lasts[number - 1][w]


@dataclass(frozen=True, slots=True)
class DropSlowest:
    """Leave out the `share` of the clients that come last."""

    share: float = 0.1
    blocks: int = 1
    exact: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Return its name in tables."""
        return f"drop slowest {self.share:.0%}"

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Wait for all but the slowest."""
        return tuple(_first(each, each.clients - round(self.share * each.clients), line) for each in scenario)


@dataclass(frozen=True, slots=True)
class OverSelection:
    """Of `times` as many clients as are needed, each with its share, the first ones count."""

    times: float = 1.3
    blocks: int = 1
    exact: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Return its name in tables."""
        return f"over-selection {self.times:g}x"

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Wait for as many as are needed."""
        return tuple(_first(each, round(each.clients / self.times), line) for each in scenario)


def _first(conditions: Conditions, wanted: int, line: Line) -> Result:
    """Return the round that ends when `wanted` clients have done their unit and sent it."""
    clients = conditions.clients
    ready_w = done_s(conditions, np.ones(clients))
    came_w = np.sort(arrivals_s(ready_w, 1.0, conditions.up_s_w, line))
    over_s = float(came_w[wanted - 1])
    done = float((ready_w <= over_s).sum())
    sent = float((came_w <= over_s).sum())
    return Result(
        over_s, min(over_s, float(np.sort(ready_w)[wanted - 1])), sent, done, wanted, 1 - wanted / clients
    )


@dataclass(frozen=True, slots=True)
class FedBuff:
    """Asynchronous: whoever is ready sends and goes on."""

    blocks: int = 1
    exact: ClassVar[bool] = False  # its updates are of models of different age

    @property
    def name(self) -> str:
        """Return its name in tables."""
        return "FedBuff"

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Return the mean time between as many updates as there are clients."""
        return tuple(_round_of_steps(conditions, line) for conditions in scenario)


def _round_of_steps(conditions: Conditions, line: Line) -> Result:
    cycle_w = conditions.mean_pace_w + conditions.up_s_w + conditions.down_s_w
    own = float((1.0 / cycle_w[conditions.dies_s_w == NEVER]).sum())
    rate = min(own, 1.0 / line.update_s) if line.update_s else own
    if line.slots is not None and conditions.up_s_w.any():
        rate = min(rate, line.slots / float(conditions.up_s_w.mean()))
    clients = float(conditions.clients)
    over_s = clients / rate if rate > 0 else NEVER
    return Result(over_s, over_s, clients, clients, clients)
