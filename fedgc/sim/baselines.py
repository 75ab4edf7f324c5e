"""The usual baselines: averaging with all or with fewer clients, a work queue, the published code.

Assumptions that favor them: a work queue assigns the next piece without latency, and a client dies before its
upload or not at all. Policies that leave data out scale the sum up to the whole.

- work queue: equal pieces; an idle client takes the next one; pieces of a failed client return to the queue
- drop slowest: the round ends with the arrival before the k slowest
- over-selection: 1.3 times the needed clients start, the first arrivals count (Bonawitz et al. 2019)
- partial stragglers (arXiv 2405.19509): Gaussian code, matching order; all clients work until every chunk has
  `blocks` replicas, without skip commands
"""

import heapq
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from fedgc.errors import BadPlacement, BadSetting
from fedgc.sim.clock import NEVER, Conditions, Line, Scenario, arrivals_s
from fedgc.sim.clock.conditions import Float, Int
from fedgc.sim.policy import Result, done_s, last


@dataclass(frozen=True, slots=True)
class Uncoded:
    """Wait for all clients, with equal shares."""

    name: ClassVar[str] = "uncoded"
    blocks: int = 1
    exact: ClassVar[bool] = True

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Wait for the slowest client in every round."""
        return tuple(_first(each, each.clients, line) for each in scenario)


@dataclass(frozen=True, slots=True)
class WorkQueue:
    """A work queue on shared storage; each client sends one sum. `wire`: bytes relative to float32."""

    pieces: int = 10  # per client
    wire: float = 1.0
    blocks: int = 1
    exact: ClassVar[bool] = True  # up to the rounding of its wire format

    def __post_init__(self) -> None:
        if self.pieces < 1 or not 0 < self.wire <= 1:
            raise BadSetting(f"{self!r}: needed at least one piece and a wire above 0, at most 1")

    @property
    def name(self) -> str:
        """Return the name in tables."""
        bits = round(32 * self.wire)
        return f"work queue of {self.pieces}" + ("" if bits == 32 else f", {bits} bits")

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Run until the queue is empty, in every round."""
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
    """The state of a work queue; pieces are interchangeable, so only their number is stored."""

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
        """Return whether every piece is in some client's sum."""
        return self._open == 0

    def run(self) -> None:
        """Run until all pieces are done or no client is left."""
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
        """Return the client's finished and started pieces to the queue."""
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
    """Wait for all but the slowest `share` of the clients."""

    share: float = 0.1
    blocks: int = 1
    exact: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Return the name in tables."""
        return f"drop slowest {self.share:.0%}"

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Wait for all but the slowest."""
        return tuple(_first(each, each.clients - round(self.share * each.clients), line) for each in scenario)


@dataclass(frozen=True, slots=True)
class OverSelection:
    """Select `times` the needed clients, and use the first arrivals."""

    times: float = 1.3
    blocks: int = 1
    exact: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Return the name in tables."""
        return f"over-selection {self.times:g}x"

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Wait for the needed number of clients."""
        return tuple(_first(each, round(each.clients / self.times), line) for each in scenario)


def _first(conditions: Conditions, wanted: int, line: Line) -> Result:
    """Return the round that ends when `wanted` clients have done and sent their unit."""
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
class PartialStragglers:
    """The published partial-straggler protocol, static; the main baseline."""

    load: int
    blocks: int = 1
    exact: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Return the name in tables."""
        return f"published partial, load {self.load}" + cut_name(self.blocks)

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Wait for `blocks` replicas of every chunk, then for a codeword of every client with any."""
        return tuple(self._round(conditions, line) for conditions in scenario)

    def _round(self, conditions: Conditions, line: Line) -> Result:
        clients = conditions.clients
        check_load(self.load, self.blocks, clients)
        held_wg = matching_orders(clients, self.load)
        ends_wg = np.stack(
            [done_s(conditions, np.full(clients, place)) for place in range(1, self.load + 1)], axis=1
        )
        by_chunk = np.argsort(held_wg.reshape(-1), kind="stable")
        copies_nl = np.sort(ends_wg.reshape(-1)[by_chunk].reshape(-1, self.load), axis=1)
        covered_s = float(copies_nl[:, self.blocks - 1].max())
        return self._exchanged(conditions, covered_s, ends_wg, line)

    def _exchanged(self, conditions: Conditions, covered_s: float, ends_wg: Float, line: Line) -> Result:
        done_w = (ends_wg <= covered_s).sum(axis=1)
        computed = float(done_w.sum())
        if covered_s == NEVER:
            return Result(NEVER, covered_s, 0.0, computed, 0.0)
        ready_w = np.where(done_w > 0, covered_s + 2 * conditions.control_s_w, NEVER)
        came_w = arrivals_s(ready_w, 1.0 / self.blocks, conditions.up_s_w, line)
        senders = int((done_w > 0).sum())
        over_s = last(came_w[done_w > 0])
        size = 1.0 / self.blocks
        return Result(over_s, covered_s, senders * size, computed, computed, size=size)


@lru_cache(maxsize=16)
def matching_orders(clients: int, load: int) -> Int:
    """Return each client's chunks: `load` random perfect matchings, the p-th at position p.

    >>> np.sort(matching_orders(5, 2), axis=0)[:, 0].tolist()
    [0, 1, 2, 3, 4]
    """
    shifts = np.random.default_rng(0).choice(clients, load, replace=False)
    orders: Int = (np.arange(clients)[:, None] + shifts) % clients
    return orders


def cut_name(blocks: int) -> str:
    """Return the suffix of a name that gives the blocks."""
    return f", blocks {blocks}" if blocks > 1 else ""


def check_load(load: int, blocks: int, clients: int) -> None:
    """Refuse a code that cannot be on so many clients."""
    if not 1 <= blocks <= load <= clients:
        raise BadPlacement(
            f"{blocks} blocks, {load} replicas, {clients} clients: each at most the next, from 1"
        )
