"""All policies that the benchmarks compare: those of `fedgc sim`, and more baselines.

- uncoded, by speed: the round ends when all clients are done; shares in proportion to the known speeds
- FedBuff: asynchronous; a step after every `buffer` updates (Nguyen et al. 2022). Its time is the mean over
  as many updates as clients. Its sum mixes models of different age and is never exact
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from benchmarks.bound import FluidBound
from benchmarks.coded_policies import BlockCoordinate, FractionalRepetition, FullWorkers
from fedgc.sim.baselines import DropSlowest, OverSelection, PartialStragglers, Uncoded, WorkQueue
from fedgc.sim.catalogue import FINE, PIECES
from fedgc.sim.clock import NEVER, Conditions, Line, Scenario, arrivals_s
from fedgc.sim.clock.conditions import Float
from fedgc.sim.ours import CHOSEN, Fedgc
from fedgc.sim.policy import Policy, Result, done_s, last
from fedgc.tuner import Tuner

INT8_WIRE: Final = 0.25  # bytes relative to float32
INT4_WIRE: Final = 0.125
RECENT_ROUNDS: Final = 5  # the window of the run's own history


def original_codes(replicas: int) -> tuple[Policy, ...]:
    """Return the codes that use complete clients only, at every load up to `replicas`; load 1 is no code."""
    loads = [load for load in (1, 2, 3, 4, 5, 6, 8, 10) if load <= replicas]
    cyclic: list[Policy] = [FullWorkers(load, earliest=how) for load in loads for how in (True, False)]
    return (*cyclic, *(FractionalRepetition(load) for load in loads))


def baselines(replicas: int) -> tuple[Policy, ...]:
    """Return all policies that fedgc is compared with, with at most `replicas` replicas of the data."""
    shorter = [FullWorkers(replicas, blocks, earliest=False) for blocks in (2, 4) if blocks < replicas]
    return (
        Uncoded(),
        UncodedBySpeed(),
        *(WorkQueue(pieces, wire) for pieces in (PIECES, FINE) for wire in (1.0, INT8_WIRE, INT4_WIRE)),
        DropSlowest(),
        OverSelection(),
        FedBuff(),
        *original_codes(replicas),
        *shorter,
        BlockCoordinate(replicas),
        *(PartialStragglers(replicas, blocks) for blocks in (1, 2, 4) if blocks <= replicas),
    )


def planned() -> tuple[Policy, ...]:
    """Return fedgc with its defaults: the tuner chooses replicas and blocks, or lets rounds choose blocks."""
    return (Fedgc(1, FINE, CHOSEN, planner=Tuner),)


def bounds() -> tuple[Policy, ...]:
    """Return the fluid bounds."""
    return tuple(FluidBound(blocks) for blocks in (1, 2, 4))


@dataclass(frozen=True, slots=True)
class UncodedBySpeed:
    """Wait for all clients, with shares in proportion to the known speeds."""

    name: ClassVar[str] = "uncoded, by speed"
    blocks: int = 1
    exact: ClassVar[bool] = True

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Wait for the slowest client in every round."""
        results = []
        for conditions, pace_w in known_paces(scenario):
            clients = conditions.clients
            ready_w = done_s(conditions, clients / pace_w / (1.0 / pace_w).sum())
            came_w = arrivals_s(ready_w, 1.0, conditions.up_s_w, line)
            results.append(Result(last(came_w), last(ready_w), clients, clients, clients))
        return tuple(results)


def known_paces(scenario: Scenario) -> Iterator[tuple[Conditions, Float]]:
    """Yield each round's conditions and the median pace of the rounds before it (1 at first).

    >>> from fedgc.sim.clock import working
    >>> [known.tolist() for _, known in known_paces((working([[2.0], [4.0]]),) * 2)]
    [[1.0, 1.0], [2.0, 4.0]]
    """
    seen: list[Float] = []
    for conditions in scenario:
        yield conditions, np.median(seen[-RECENT_ROUNDS:], axis=0) if seen else np.ones(conditions.clients)
        seen.append(conditions.mean_pace_w)


@dataclass(frozen=True, slots=True)
class FedBuff:
    """Asynchronous aggregation (FedBuff): a ready client sends and continues."""

    blocks: int = 1
    exact: ClassVar[bool] = False  # its updates are from models of different age

    @property
    def name(self) -> str:
        """Return the name in tables."""
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
