"""Coded baselines: the original codes, which use complete clients only.

Data is cut into as many chunks as there are clients, and each client holds `load` of them.

- fractional repetition, cyclic (Tandon et al. 2017): "any" waits for m - s clients; "earliest" stops when
  complete clients cover every chunk, which no fixed code can guarantee and which favors it
- communication-efficient (Ye and Abbe 2018): the cyclic code with shorter codewords, s = load - blocks
- block-coordinate (Wang et al. 2022): early coordinates tolerate few stragglers and cost little, late ones
  many; block sizes from the mean order statistics of earlier rounds. It assumes that part of a gradient takes
  that part of the time, which back-propagation does not allow. A block is sent when it is done
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import numpy as np

from benchmarks.bound import units_by
from fedgc.sim.baselines import check_load, cut_name
from fedgc.sim.clock import NEVER, Conditions, Line, Pipe, Scenario, arrivals_s
from fedgc.sim.clock.conditions import Float
from fedgc.sim.policy import Result, done_s, last


@dataclass(frozen=True, slots=True)
class FullWorkers:
    """The cyclic codes; with `earliest`, any set of complete clients that covers all chunks is used."""

    load: int
    blocks: int = 1
    earliest: bool = True
    exact: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Return the name in tables."""
        kind = "cyclic" if self.blocks == 1 else "communication-efficient"
        when = "earliest" if self.earliest else "any m-s"
        return f"{kind}, {when}, load {self.load}" + cut_name(self.blocks)

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Wait until the code can be decoded."""
        return tuple(self._round(conditions, line) for conditions in scenario)

    def _round(self, conditions: Conditions, line: Line) -> Result:
        clients = conditions.clients
        check_load(self.load, self.blocks, clients)
        ready_w, came_w = _sent(conditions, self.load, 1 / self.blocks, line)
        if self.earliest:
            held_nl = (np.arange(clients)[:, None] - np.arange(self.load)) % clients
            over_s = float(np.sort(came_w[held_nl], axis=1)[:, self.blocks - 1].max())
        else:
            over_s = float(np.sort(came_w)[clients - (self.load - self.blocks) - 1])
        return _ended(conditions, over_s, (ready_w, came_w), self.load, self.blocks)


@dataclass(frozen=True, slots=True)
class FractionalRepetition:
    """Groups of `load` clients with the same chunks: the first of each group counts."""

    load: int
    blocks: int = 1
    exact: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Return the name in tables."""
        return f"fractional repetition, load {self.load}"

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Wait for the first client of every group; clients left over enlarge the last group."""
        return tuple(self._round(conditions, line) for conditions in scenario)

    def _round(self, conditions: Conditions, line: Line) -> Result:
        clients = conditions.clients
        check_load(self.load, 1, clients)
        groups = clients // self.load
        group_w = np.minimum(np.arange(clients) // self.load, groups - 1)
        ready_w, came_w = _sent(conditions, clients / groups, 1.0, line)
        over_s = max(float(came_w[group_w == group].min()) for group in range(groups))
        return _ended(conditions, over_s, (ready_w, came_w), clients / groups, 1)


def _sent(conditions: Conditions, units: float, size: float, line: Line) -> tuple[Float, Float]:
    ready_w = done_s(conditions, np.full(conditions.clients, units))
    return ready_w, arrivals_s(ready_w, size, conditions.up_s_w, line)


def _ended(
    conditions: Conditions, over_s: float, times: tuple[Float, Float], units: float, blocks: int
) -> Result:
    """Return the round that ends at `over_s`; complete clients count, each unit `blocks` times."""
    ready_w, came_w = times
    sent = float((came_w <= over_s).sum()) / blocks
    full = ready_w <= over_s
    computed = np.minimum(units, _done_by(conditions, over_s)).sum() if over_s < NEVER else units * full.sum()
    working_s = last(ready_w[full & np.isfinite(ready_w)])
    counted = min(float(conditions.clients * blocks), float(computed))
    return Result(over_s, min(over_s, working_s), sent, float(computed), counted, size=1.0 / blocks)


def _done_by(conditions: Conditions, when_s: float) -> Float:
    begun_s = float((conditions.down_s_w + conditions.control_s_w).mean())
    return units_by(conditions, when_s - begun_s)


@dataclass(frozen=True, slots=True)
class BlockCoordinate:
    """One cyclic code for each block of coordinates, tolerating 0, 1, ... load - 1 stragglers."""

    load: int
    blocks: int = 1
    exact: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Return the name in tables."""
        return f"block-coordinate, load {self.load}"

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Size the blocks from earlier rounds, then wait for the slowest block."""
        results: list[Result] = []
        seen: list[Float] = []
        for conditions in scenario:
            clients = conditions.clients
            check_load(self.load, 1, clients)
            sizes_s = block_sizes(np.mean(seen, axis=0) if seen else np.ones(clients), self.load)
            units_s = np.cumsum(np.arange(1, self.load + 1) * sizes_s)  # done once block s is done
            ready_ws = np.stack([done_s(conditions, np.full(clients, units)) for units in units_s], axis=1)
            came_ws = all_arrivals_s(ready_ws, sizes_s.tolist(), conditions.up_s_w, line)
            over_s, units = _enough_s(came_ws), float(units_s[-1])
            computed = np.minimum(units, _done_by(conditions, over_s)).sum() if over_s < NEVER else 0.0
            working_s = _enough_s(ready_ws)
            counted = min(float(clients), float(computed))
            results.append(Result(over_s, min(over_s, working_s), clients, float(computed), counted))
            seen.append(np.sort(conditions.mean_pace_w))
        return tuple(results)


def block_sizes(sorted_pace_w: Float, load: int) -> Float:
    """Return the share of the coordinates that tolerates 0, 1, ... load - 1 stragglers.

    Block s is complete when the (s+1)-th slowest client has done it; the sizes make all blocks complete at
    the same time.

    >>> block_sizes(np.array([1.0, 1.0, 2.0]), 2).tolist()
    [0.6666666666666666, 0.3333333333333333]
    """
    slowest_s = np.sort(sorted_pace_w)[::-1][:load]
    steps_s = np.diff(1.0 / slowest_s, prepend=0.0) / np.arange(1, load + 1)
    sizes_s: Float = steps_s / steps_s.sum()
    return sizes_s


def _enough_s(came_ws: Float) -> float:
    """Return when, for every block s, all but s clients have finished it."""
    sorted_ws = np.sort(came_ws, axis=0)
    return float(max(sorted_ws[len(sorted_ws) - 1 - s, s] for s in range(sorted_ws.shape[1])))


def all_arrivals_s(ready_s_wv: Float, sizes_v: Sequence[float], own_s_w: Float, line: Line) -> Float:
    """Return when each client's vectors arrive, sent one after the other in this order.

    >>> from fedgc.sim.clock import UNCONTENDED
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
