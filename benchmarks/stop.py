"""The delay until a busy client receives the end of its round, with a real engine in another process.

The client computes continuously, in micro-batches of some milliseconds, on one thread. The measured time is
from the server's decision (its call of the listener) until the client's engine receives it, which is possible
only between two micro-batches. Both clocks are the machine's monotonic one.
"""

import os
import queue
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from logging import getLogger
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from fedgc.config import RunConfig
from fedgc.flower.client_loop import ClientLoop
from fedgc.links.frames import Invitation
from fedgc.links.identity import Identity
from fedgc.links.session.client import Session, Terms
from fedgc.links.session.server import Listener
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Announced, Close, Joined, LinkEvent, Work
from fedgc.training import CommonModel
from fedgc.training.cache import ClientCache
from fedgc.training.coded_engine import CodedEngine
from fedgc.training.engine import Order
from fedgc.training.make import MEGABYTE
from fedgc.training.pace import Pace
from fedgc.training.tasks import Task, named
from fedgc.training.trainer import Trainer
from fedgc.training.trajectories import Trajectories

WAIT_S: Final = 60.0
STEPS: Final = 1_000_000  # more than it can do before the stop
CONFIG: Final = RunConfig(task="bench_models:busy", work="coded", chunks=1, threads=1)


class _Listening(CodedEngine):
    """An engine that notes when it receives the end of a round."""

    heard: Any = None

    def handle(self, command: Order) -> None:
        if isinstance(command, Close):
            self.heard.put(time.monotonic())
        super().handle(command)

    @classmethod
    def new(cls, task: Task, rest: Callable[[float], object], folder: Path) -> "_Listening":
        trainer, cache = Trainer(task, CONFIG), ClientCache(MEGABYTE, folder)
        trajectories = Trajectories(cache, None)
        return cls(trainer, trajectories, Pace(time.monotonic, rest))


@dataclass(frozen=True, slots=True)
class _Client:
    invitation: Invitation
    models: str  # the folder of the task's module
    heard: Any


def stops_heard_s(folder: Path, count: int) -> list[float]:
    """Return the seconds until each of `count` stops was received by a computing client."""
    sys.path.insert(0, str(folder))
    try:
        return _stops_heard_s(folder, count)
    finally:
        sys.path.remove(str(folder))


def _stops_heard_s(folder: Path, count: int) -> list[float]:
    context, events = get_context("spawn"), queue.SimpleQueue[LinkEvent]()
    common = CommonModel(named(CONFIG.task, CONFIG), CONFIG)
    around = Surroundings(time.monotonic, os.urandom, time.time, getLogger("benchmarks"))
    listener = Listener(CONFIG, "bench", common.size, events.put, around)
    listener.start()
    heard = context.Queue()
    client = context.Process(
        target=_serve, args=(_Client(listener.invite(), str(folder), heard),), daemon=True
    )
    client.start()
    try:
        joined = events.get(timeout=WAIT_S)
        while isinstance(joined, Announced):  # of the model that it has
            joined = events.get(timeout=WAIT_S)
        if not isinstance(joined, Joined):
            raise TypeError(f"saw {joined!r}, needed Joined")
        listener.publish(0, common.first())
        return [_stop_heard_s(listener, joined, round_, heard) for round_ in range(1, count + 1)]
    finally:
        listener.close("the bench is over")
        client.kill()
        client.join()


def _stop_heard_s(listener: Listener, joined: Joined, round_: int, heard: Any) -> float:  # noqa: ANN401  a queue
    names = tuple(enumerate(held.name for held in joined.holds))
    listener.send(Work(joined.client, round_, 0, STEPS, (0,), names, 0, WAIT_S))
    time.sleep(random.uniform(0.1, 0.3))  # noqa: S311  anywhere in a micro-batch
    decided = time.monotonic()
    listener.send(Close(joined.client, round_, "synced", frees=True))
    return float(heard.get(timeout=WAIT_S)) - decided


def _serve(client: _Client) -> None:
    sys.path.insert(0, client.models)
    _Listening.heard = client.heard
    task, who = named(CONFIG.task, CONFIG), Identity(secrets.token_bytes(32))
    with tempfile.TemporaryDirectory(prefix="fedgc-bench-") as folder:
        loop = ClientLoop(lambda rest: _Listening.new(task, rest, Path(folder)))
        terms = Terms(CONFIG.grace_s, CONFIG.piece_kb * 1024, loop.engine.size, time.monotonic, random.random)
        with Session(client.invitation, who, terms) as session:
            loop.serve(session, who.client)
