"""A whole run over real TLS in this process; one of its clients corrupts the frames that it sends.

The frames go through the real wire format, so the listener and the round behind it are tested."""

import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks import counting
from fedgc.flower.client_loop import ClientLoop
from fedgc.flower.driver import Driver
from fedgc.flower.job import Job
from fedgc.flower.sink import Sink
from fedgc.history import RoundRow, Speeds
from fedgc.links import frames as wire
from fedgc.links.frames import Parts, Ping, StreamId
from fedgc.links.identity import Identity
from fedgc.links.pieces import Numbers
from fedgc.links.quotas import Quotas
from fedgc.links.session.client import Session, Terms
from fedgc.links.session.server import Listener
from fedgc.links.session.sessions import Surroundings
from fedgc.training import CommonModel, new_engine
from fedgc.training.pace import Pace
from fedgc.training.tasks import named
from tests.config_of import config_of
from tests.turns import step_by_turns

Mangle = Callable[[Iterator[bytes]], Iterator[bytes]]
Tamper = Callable[[Numbers], Numbers]
ROUNDS = 4
END = b""
SETTINGS = counting.SETTINGS | {
    "task": "benchmarks.counting:small",
    "rounds": ROUNDS,
    "replicas": 2,
    "min_clients": 3,
    "threads": 1,
    "grace_s": 60.0,
    "piece_kb": 1,
}


def straight(frames: Iterator[bytes]) -> Iterator[bytes]:
    yield from frames


def pieces_twice(frames: Iterator[bytes]) -> Iterator[bytes]:
    """Every piece of a codeword comes twice."""
    for frame in frames:
        yield frame
        if frame.startswith(b"P"):
            yield frame


def pieces_out_of_order(frames: Iterator[bytes]) -> Iterator[bytes]:
    """The first piece of every codeword comes after the second."""
    late = b""
    for frame in frames:
        if frame.startswith(b"P") and not late:
            late = frame
            continue
        yield frame
        if frame.startswith(b"P"):
            yield late
            late = b""


def lines_twice(frames: Iterator[bytes]) -> Iterator[bytes]:
    """Every line comes twice: each report, each offer, each acknowledgement."""
    for number, frame in enumerate(frames):
        yield frame
        if number and frame.startswith(b"L"):
            yield frame


def flood_of_pings(frames: Iterator[bytes]) -> Iterator[bytes]:
    """Once it trains, the client sends pings as fast as it can, for as long as it is heard."""
    trains = False
    for frame in frames:
        yield frame
        trains = trains or b'"Progress"' in frame
        if trains:
            yield from [wire.encode(Ping())] * 5000


class Crooked(Session):
    """A session that corrupts its outgoing frames, or its codewords before they are framed."""

    mangle: Mangle = staticmethod(straight)
    tamper: Tamper = staticmethod(lambda vector: vector)
    _of: object = None  # the stream whose frames are mangled
    _mangled: Iterator[bytes] = iter(())
    _has_none = False  # whether there is nothing to send now

    def offer_packed(self, stream: StreamId, vector: Numbers) -> None:
        super().offer_packed(stream, self.tamper(vector))

    def next_message(self, stream: object) -> Parts | None:
        """Return a message of the frames that `mangle` makes of those of the next message."""
        if self._of is not stream:
            self._of, self._mangled = stream, self.mangle(self._own(stream))
        ready: list[bytes] = []
        for frame in self._mangled:
            if frame != END:
                ready.append(frame)
            if ready and (frame == END or len(ready) == wire.BATCH_FRAMES):
                return wire.join([(each,) for each in ready])
            if frame == END and self._has_none:
                return None
        return None

    def _own(self, stream: object) -> Iterator[bytes]:
        """Yield the frames of each message, then END, which every `mangle` passes on."""
        while True:
            message = super().next_message(stream)
            self._has_none = message is None
            yield from map(bytes, wire.split(b"".join(message))) if message else ()
            yield END


class Rows(Sink):
    """Keeps the rows."""

    def __init__(self) -> None:
        self.rows: list[RoundRow] = []
        self.audits: list[tuple[str, str, str]] = []

    def audited(self, kind: str, who: str, what: str) -> None:
        self.audits.append((kind, who, what))

    def append(self, row: RoundRow) -> None:
        self.rows.append(row)


def run(
    folder: Path,
    mangle: Mangle,
    sink: Rows | None = None,
    tamper: Tamper = lambda vector: vector,
    **settings: object,
) -> tuple[Driver, list[RoundRow], Listener]:
    """Run to the end with two honest clients and one that corrupts its frames."""
    torch.set_num_threads(1)
    config, sink, log = config_of(SETTINGS | settings), sink or Rows(), logging.getLogger("test")
    driver = Driver(
        Job(CommonModel(named(config.task, config), config), config, sink, Speeds()), time.monotonic, log
    )
    quotas = Quotas(config.lines_per_s, config.bytes_per_s)
    around = Surroundings(time.monotonic, os.urandom, time.time, log, sink.audited, quotas)
    listener = Listener(config, "run-1", driver.common.size, driver.events.put, around)
    listener.start()

    def serve(number: int) -> None:
        faults = {"mangle": staticmethod(mangle), "tamper": staticmethod(tamper)} if number == 0 else {}
        crooked = type("Faulty", (Crooked,), faults)
        loop = ClientLoop(
            lambda rest: step_by_turns(
                new_engine(driver._job.model.task, config, Pace(time.monotonic, rest), folder / str(number))
            )
        )
        terms = Terms(config.grace_s, 1024, loop.engine.size, time.monotonic, random.random, str(number))
        who = Identity(secrets.token_bytes(32))
        with crooked(listener.invite(), who, terms) as session:
            loop.serve(session, who.client)
        loop.engine.close()

    clients = [threading.Thread(target=serve, args=(number,)) for number in range(config.min_clients)]
    for client in clients:
        client.start()
    try:
        driver.drive(listener)
    finally:
        listener.close("the run is over")
        for client in clients:
            client.join(60.0)
    return driver, sink.rows, listener
