"""Rivals with a code: the original ones, which count full clients only, and the published partial protocol.

Data is cut in as many chunks as there are clients, and each client holds `load` of them.

- fractional repetition, cyclic (Tandon et al. 2017): "any" waits for m - s clients, whoever they are;
  "earliest" stops as soon as every chunk lies with a client that came, as if coefficients were made to
  measure, which no fixed code can promise: it helps them
- communication-efficient (Ye and Abbe 2018): the cyclic code with shorter codewords, s = load - blocks
- block-coordinate (Wang et al. 2022): early coordinates tolerate few stragglers and cost little, late ones
  many; block sizes from the mean order statistics of the rounds before. It is granted that part of a
  gradient costs that part of the time, which no back-propagation gives. A block is sent when it is done
- partial stragglers (arXiv 2405.19509): Gaussian code, matching order, everybody works until every chunk has
  `blocks` copies, nobody is told to skip anything
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from fedgc.errors import BadPlacement
from fedgc.sim.clock import NEVER, Conditions, Line, Scenario, all_arrivals_s, arrivals_s
from fedgc.sim.clock.conditions import Float, Int
from fedgc.sim.policy import Result, done_s, last


def _cut(blocks: int) -> str:
    return f", blocks {blocks}" if blocks > 1 else ""


def _check_load(load: int, blocks: int, clients: int) -> None:
    if not 1 <= blocks <= load <= clients:
        raise BadPlacement(
            f"{blocks} blocks, {load} replicas, {clients} clients: each at most the next, from 1"
        )


@dataclass(frozen=True, slots=True)
class FullWorkers:
    """The cyclic codes; with `earliest`, whoever comes is used."""

    load: int
    blocks: int = 1
    earliest: bool = True
    exact: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Return its name in tables."""
        kind = "cyclic" if self.blocks == 1 else "communication-efficient"
        when = "earliest" if self.earliest else "any m-s"
        return f"{kind}, {when}, load {self.load}" + _cut(self.blocks)

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Wait until the code can be decoded."""
        return tuple(self._round(conditions, line) for conditions in scenario)

    def _round(self, conditions: Conditions, line: Line) -> Result:
        clients = conditions.clients
        _check_load(self.load, self.blocks, clients)
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
        """Return its name in tables."""
        return f"fractional repetition, load {self.load}"

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Wait for the first of every group; the clients that fill no group make the last one larger."""
        return tuple(self._round(conditions, line) for conditions in scenario)

    def _round(self, conditions: Conditions, line: Line) -> Result:
        clients = conditions.clients
        _check_load(self.load, 1, clients)
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
    """Return the round that ends then: who is full counts, what is in the sum is in it `blocks` times."""
    ready_w, came_w = times
    sent = float((came_w <= over_s).sum()) / blocks
    full = ready_w <= over_s
    computed = np.minimum(units, _done_by(conditions, over_s)).sum() if over_s < NEVER else units * full.sum()
    working_s = last(ready_w[full & np.isfinite(ready_w)])
    counted = min(float(conditions.clients * blocks), float(computed))
    return Result(over_s, min(over_s, working_s), sent, float(computed), counted, size=1.0 / blocks)


def _done_by(conditions: Conditions, when_s: float) -> Float:
    begun_s = float((conditions.down_s_w + conditions.control_s_w).mean())
    return conditions.units_by(when_s - begun_s)


@dataclass(frozen=True, slots=True)
class BlockCoordinate:
    """One cyclic code for each block of coordinates, tolerating 0, 1, ... load - 1 stragglers."""

    load: int
    blocks: int = 1
    exact: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Return its name in tables."""
        return f"block-coordinate, load {self.load}"

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Size the blocks by what was seen, then wait for the slowest block."""
        results: list[Result] = []
        seen: list[Float] = []
        for conditions in scenario:
            clients = conditions.clients
            _check_load(self.load, 1, clients)
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

    Block s is there when the (s+1)-th slowest client has done it; all blocks are there at the same time.

    >>> block_sizes(np.array([1.0, 1.0, 2.0]), 2).tolist()
    [0.6666666666666666, 0.3333333333333333]
    """
    slowest_s = np.sort(sorted_pace_w)[::-1][:load]
    steps_s = np.diff(1.0 / slowest_s, prepend=0.0) / np.arange(1, load + 1)
    sizes_s: Float = steps_s / steps_s.sum()
    return sizes_s


def _enough_s(came_ws: Float) -> float:
    """Return when of every block s all but s clients have it."""
    sorted_ws = np.sort(came_ws, axis=0)
    return float(max(sorted_ws[len(sorted_ws) - 1 - s, s] for s in range(sorted_ws.shape[1])))


@dataclass(frozen=True, slots=True)
class PartialStragglers:
    """The published protocol, static: the yardstick of everything here."""

    load: int
    blocks: int = 1
    exact: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Return its name in tables."""
        return f"published partial, load {self.load}" + _cut(self.blocks)

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Wait for `blocks` copies of every chunk, then for one codeword of everybody who finished any."""
        return tuple(self._round(conditions, line) for conditions in scenario)

    def _round(self, conditions: Conditions, line: Line) -> Result:
        clients = conditions.clients
        _check_load(self.load, self.blocks, clients)
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
    """Return each client's chunks: load perfect matchings by chance, the p-th of them in place p.

    >>> np.sort(matching_orders(5, 2), axis=0)[:, 0].tolist()
    [0, 1, 2, 3, 4]
    """
    shifts = np.random.default_rng(0).choice(clients, load, replace=False)
    orders: Int = (np.arange(clients)[:, None] + shifts) % clients
    return orders
