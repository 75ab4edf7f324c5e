"""How soon a busy device hears that its round is over: a listener here, a real engine in another process.

The device computes without a pause, in micro-batches of some milliseconds, on one thread. What is timed is
the way from the server's decision (its call of the listener) to the device's engine having been told, which
it can be between two micro-batches only. Both clocks are the machine's monotonic one.

May import: flower, train and below.
"""

import os
import queue
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from logging import getLogger
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgc.config import RunConfig
from fedgc.flower.desk import Surroundings
from fedgc.flower.identity import Identity
from fedgc.flower.listener import Listener
from fedgc.flower.session import Session, Terms
from fedgc.flower.wire import Invitation
from fedgc.flower.work import Worker
from fedgc.messages import Close, Event, Joined, Work
from fedgc.task import named
from fedgc.train import CommonModel, Engine
from fedgc.train.engine import Order

WAIT_S: Final = 60.0
STEPS: Final = 1_000_000  # more than it can do: it is busy until it is told
CONFIG: Final = RunConfig.read({"task": "bench_models:busy", "chunks": 1, "threads": 1})


class _Listening(Engine):
    """An engine that notes when it was told that a round is over."""

    heard: Any = None

    def handle(self, command: Order) -> None:
        if isinstance(command, Close):
            self.heard.put(time.monotonic())
        super().handle(command)


@dataclass(frozen=True, slots=True)
class _Device:
    invitation: Invitation
    models: str  # the folder of the task's module
    heard: Any


def stops_heard_s(folder: Path, count: int) -> list[float]:
    """Return how long each of `count` stops took to be heard by a device that computes."""
    sys.path.insert(0, str(folder))
    try:
        return _stops_heard_s(folder, count)
    finally:
        sys.path.remove(str(folder))


def _stops_heard_s(folder: Path, count: int) -> list[float]:
    context, events = get_context("spawn"), queue.SimpleQueue[Event]()
    common = CommonModel(named(CONFIG.task, CONFIG), CONFIG)
    around = Surroundings(time.monotonic, os.urandom, time.time, getLogger("fedgc.bench"))
    listener = Listener(CONFIG, "bench", common.size, events.put, around)
    listener.start()
    heard = context.Queue()
    device = context.Process(
        target=_serve, args=(_Device(listener.invite(), str(folder), heard),), daemon=True
    )
    device.start()
    try:
        joined = events.get(timeout=WAIT_S)
        if not isinstance(joined, Joined):
            raise TypeError(f"saw {joined!r}, needed Joined")
        listener.publish(0, common.first())
        return [_stop_heard_s(listener, joined, round_, heard) for round_ in range(1, count + 1)]
    finally:
        listener.close("the bench is over")
        device.kill()
        device.join()


def _stop_heard_s(listener: Listener, joined: Joined, round_: int, heard: Any) -> float:  # noqa: ANN401  a queue
    names = tuple(enumerate(held.name for held in joined.holds))
    listener.send(Work(joined.device, round_, 0, STEPS, (0,), names, 0, WAIT_S))
    time.sleep(random.uniform(0.1, 0.3))  # noqa: S311  anywhere in a micro-batch
    decided = time.monotonic()
    listener.send(Close(joined.device, round_, "synced", frees=True))
    return float(heard.get(timeout=WAIT_S)) - decided


def _serve(device: _Device) -> None:
    sys.path.insert(0, device.models)
    _Listening.heard = device.heard
    task, who = named(CONFIG.task, CONFIG), Identity(Ed25519PrivateKey.generate())
    with tempfile.TemporaryDirectory(prefix="fedgc-bench-") as folder:
        worker = Worker(
            lambda rest: _Listening(task, CONFIG, clock=time.monotonic, rest=rest, spill_dir=Path(folder))
        )
        terms = Terms(
            CONFIG.grace_s, CONFIG.piece_kb * 1024, worker.engine.size, time.monotonic, random.random
        )
        with Session(device.invitation, who, terms) as session:
            worker.serve(session, who.device)
