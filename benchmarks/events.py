"""The cost of an event in the state machine of a round, with minimal steered clients.

The virtual clock and its reference clients also model links, failures, latency and partial steps, and their
time would be included. Here a client works through its queue at its own pace, reports each finished chunk
(with a sketch, the same from every holder), leaves skipped chunks, begins taken chunks next, and answers a
`Reveal` at once.
"""

import gc
import heapq
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from benchmarks.deadline import always, coded_plan
from benchmarks.report import Value
from fedgc.messages import SKETCH_NUMBERS, Codeword, Event, Held, Joined, Progress, Reveal, Skip, Take, Work
from fedgc.round.machine import Assignment, Round
from fedgc.round.plan import Plan
from fedgc.sim.clock import MODELS
from fedgc.sim.ours import PATIENT_S

MILLION: Final = 1_000_000
REPLICAS: Final = 8


class Crowd:
    """Owns the clock and the state of each client in one round."""

    def __init__(self, plan: Plan, pace_w: Sequence[float], sketches: Sequence[tuple[float, ...]]) -> None:
        self.said: list[Event] = []
        self._clients = plan.clients
        self._index = {client: w for w, client in enumerate(plan.clients)}
        self._speeds = pace_w
        self._sketches = sketches
        self._queue: list[dict[int, None]] = [{} for _ in pace_w]  # the next one last
        self._current: list[int | None] = [None for _ in pace_w]
        self._turn = [0 for _ in pace_w]
        self._ends: list[tuple[float, int, int]] = []  # when, which client, at which turn
        self._asked: list[Reveal] = []

    def play(self, machine: Round, present: Sequence[Joined]) -> None:
        """Run one round to its end."""
        number, target, now = machine.assignment.number, machine.assignment.target, 0.0
        self._obey(machine.start(now, present), now)
        while self._ends and not self._asked:
            now, w, turn = heapq.heappop(self._ends)
            chunk = self._current[w]
            if turn != self._turn[w] or chunk is None:
                continue  # it has left this chunk
            self._begin(w, now)
            client, seconds, sketch = self._clients[w], self._speeds[w], self._sketches[chunk]
            said = Progress(now, client, number, chunk, target, seconds, 1, 1.0, 0.5, sketch)
            self.said.append(said)
            self._obey(machine.handle(said), now)
        for asked in self._asked:
            sent = Codeword(now, asked.client, number, asked.attempt)
            self.said.append(sent)
            machine.handle(sent)

    def _obey(self, given: Iterable[object], now: float) -> None:
        for command in given:
            if isinstance(command, Take):
                for chunk in reversed(command.chunks):
                    self._taken(self._index[command.client], chunk, now)
            elif isinstance(command, Skip):
                self._left(self._index[command.client], command.chunk, now)
            elif isinstance(command, Reveal):
                self._asked.append(command)
            elif isinstance(command, Work):
                w = self._index[command.client]
                self._queue[w] = dict.fromkeys(reversed(command.order))
                self._begin(w, now)

    def _taken(self, w: int, chunk: int, now: float) -> None:
        current, queue = self._current[w], self._queue[w]
        if current != chunk:
            queue.pop(chunk, None)
            queue[chunk] = None
        if current is None:
            self._begin(w, now)

    def _left(self, w: int, chunk: int, now: float) -> None:
        if self._current[w] == chunk:
            self._begin(w, now)
        else:
            self._queue[w].pop(chunk, None)

    def _begin(self, w: int, now: float) -> None:
        queue = self._queue[w]
        self._turn[w] = turn = self._turn[w] + 1
        if queue:
            self._current[w] = queue.popitem()[0]
            heapq.heappush(self._ends, (now + self._speeds[w], w, turn))
        else:
            self._current[w] = None


def measure_events(events: int = MILLION, clients: int = 1000) -> Mapping[str, Value]:
    """Measure the time of whole rounds that together handle this many events.

    With as many chunks as clients, eight replicas of each and eight blocks, each round receives eight reports
    for each client, steers, asks the gate, solves for the codewords and processes them. The time includes the
    server's work for each round (start and solution) and making events and commands, but not the plan. As in
    a server, existing objects are excluded from garbage collection.

    `seconds` includes the clients: making events and following commands. `round_seconds` is the time of
    another round that receives the same events without clients.
    """
    replicas = min(REPLICAS, clients)
    plan = coded_plan(clients, clients, replicas=replicas, blocks=replicas, deadline_s=PATIENT_S)
    rng = np.random.default_rng(0)
    sketches = [tuple(each) for each in rng.normal(size=(clients, SKETCH_NUMBERS)).tolist()]
    holds = tuple(Held(chunk.name, chunk.samples, chunk.digest) for chunk in plan.chunks)
    present = [Joined(0.0, client, live=True, holds=holds) for client in plan.clients]
    handled = number = skips = takes = synced = 0
    seconds = alone = 0.0
    gc.collect()
    gc.freeze()
    while handled < events:
        number += 1
        began = time.process_time()
        pace_w = MODELS["shifted-exponential"](clients, 1, rng)[0].mean_pace_w.tolist()
        over, crowd = Round(plan, Assignment(number, number - 1, 1, 0), always), Crowd(plan, pace_w, sketches)
        crowd.play(over, present)
        seconds += time.process_time() - began
        alone += _alone_s(over, present, crowd.said)
        handled, synced = handled + len(crowd.said), synced + (over.outcome == "synced")
        skips, takes = skips + over.statistics.skips, takes + over.statistics.takes
    gc.unfreeze()
    return {
        "events": handled,
        "clients": clients,
        "rounds": number,
        "synced": synced,
        "skips": skips,
        "takes": takes,
        "seconds": seconds,
        "round_seconds": alone,
        "us_for_each_event": seconds / handled * 1e6,
    }


def _alone_s(over: Round, present: Sequence[Joined], said: Iterable[Event]) -> float:
    """Return the time of a round that receives the recorded events."""
    began = time.process_time()
    again = Round(over.plan, over.assignment, always)
    again.start(0.0, present)
    for event in said:
        again.handle(event)
    seconds = time.process_time() - began
    if (again.outcome, again.statistics) != (over.outcome, over.statistics):
        raise AssertionError(f"the same events, another end: saw {again.outcome}, needed {over.outcome}")
    return seconds
