"""Test that what a run remembers is bounded: `python -m benchmarks soak` found memory that grew by round."""

import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import fields
from logging import getLogger

import pytest

from fedgc.config import RunConfig
from fedgc.flower.rollback import Rollback
from fedgc.flower.sink import Sink
from fedgc.history import ClientRow, PastRound, RoundRow
from fedgc.tuner.planner import Tuner

ROUNDS = 5000
BYTES_A_ROUND = 4


def row(number: int) -> RoundRow:
    zero = {each.name: 0 for each in fields(RoundRow)}
    clients = tuple(ClientRow(name, counted=1) for name in ("north", "south"))
    return RoundRow(**{**zero, "round": number, "version": number, "outcome": "synced", "clients": clients})


def by_rollback() -> Callable[[int], None]:
    rollback = Rollback(RunConfig(), Sink(), getLogger("test"))
    return lambda number: rollback.counted(row(number))


def by_tuner() -> Callable[[int], None]:
    tuner = Tuner(RunConfig(work="coded"))
    return lambda number: tuner.learn(PastRound("run", row(number)))


@pytest.mark.parametrize("made", [by_rollback, by_tuner])
def test_memory_of_rounds_does_not_grow(made: Callable[[], Callable[[int], None]]) -> None:
    learn = made()
    tracemalloc.start()
    try:
        sizes = []
        for first in (0, ROUNDS):
            for number in range(first, first + ROUNDS):
                learn(number)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < ROUNDS * BYTES_A_ROUND
