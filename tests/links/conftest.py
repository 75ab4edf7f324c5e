"""A listener and sessions over real loopback TLS, without Flower."""

import contextlib
import logging
import math
import os
import queue
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from fedgc.config import RunConfig
from fedgc.links import pieces
from fedgc.links.identity import Identity
from fedgc.links.session.client import Session, Terms
from fedgc.links.session.server import Listener
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Event, Held, Joined, Loaded, Offered
from tests.config_of import config_of

NUMBERS = 1000
WAIT_S = 60.0  # a loopback step that takes longer hangs, however busy the machine is
GRACE_S = 60.0  # for tests without lost clients: a busy machine may not answer for seconds
SHORT_GRACE_S = 2.0  # for those that wait for its end: TLS must be shaken hands on within it


class Link:
    """One listener, its events, and as many clients as a test wants."""

    def __init__(self, config: RunConfig, numbers: int = NUMBERS) -> None:
        self.config = config
        self.numbers = numbers
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        around = Surroundings(time.monotonic, os.urandom, time.time, logging.getLogger("test"))
        self.passing: queue.SimpleQueue[Event] = queue.SimpleQueue()  # these come when they come
        self.listener = Listener(config, "run-1", numbers, self._heard, around)
        self.listener.start()
        self.opened: list[Session] = []
        self._stack = ExitStack()

    def _heard(self, event: Event) -> None:
        (self.passing if isinstance(event, Loaded | Offered) else self.events).put(event)

    def session(self, who: Identity | None = None, *, says_joined: bool = True, **changes: object) -> Session:
        """Open a session and send Joined, as a client does."""
        invitation = self.listener.invite()
        for name, value in changes.items():
            object.__setattr__(invitation, name, value)
        session = self.open(Session(invitation, who or self.identity(), self.terms()))
        if says_joined:
            session.send(Joined(0.0, "me", True, (Held("chunk-0", 8),)))
        return session

    def open(self, session: Session) -> Session:
        """Enter a session, to be left at the end."""
        self.opened.append(session)
        return self._stack.enter_context(session)

    def terms(self) -> Terms:
        return Terms(
            grace_s=self.config.grace_s,
            piece_bytes=self.config.piece_kb * 1024,
            numbers=self.numbers,
            clock=time.monotonic,
            chance=random.random,
            connect_s=WAIT_S,
        )

    def event(self, kind: type[Event] | None = None) -> Event:
        """Return the next event, of this kind if one is named; fail if it does not come."""
        event = self.events.get(timeout=WAIT_S)
        if kind is not None:
            assert isinstance(event, kind), event
        return event

    @staticmethod
    def identity() -> Identity:
        return Identity(secrets.token_bytes(32))

    @staticmethod
    def eventually(condition: Callable[[], object]) -> None:
        """Wait until the condition holds."""
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.005)

    @staticmethod
    def command(session: Session) -> object:
        """Return the session's next command; fail if it does not come."""
        command = session.receive(WAIT_S)
        assert command is not None, session.ended
        return command

    def vector(self, numbers: int = 0, seed: int = 0) -> np.ndarray:
        """Return random numbers, by default as many as the model has."""
        return np.random.default_rng(seed).standard_normal(numbers or self.numbers).astype(np.float32)

    def close(self) -> None:
        self._stack.close()
        self.listener.close("test over")


@pytest.fixture
def make_link() -> Iterator[Callable[..., Link]]:
    links: list[Link] = []

    def make(numbers: int = NUMBERS, **settings: object) -> Link:
        config = config_of({"work": "coded", "grace_s": GRACE_S, "piece_kb": 1, **settings})
        links.append(Link(config, numbers))
        return links[-1]

    yield make
    for link in links:
        link.close()


@pytest.fixture
def link(make_link: Callable[..., Link]) -> Link:
    return make_link()


class Relay:
    """A TCP relay between clients and a listener that cuts, stalls and restores connections."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._flows = threading.Event()
        self._flows.set()
        self._open, self._closed = True, False
        self.connections = 0
        self.cut_after = 0  # bytes from the client (0: never): then the connection is cut, once
        self.stays_away = False  # after that cut it accepts no connection
        self.cut_after_down = 0  # the same for bytes to the client
        self.hold_after = (
            0  # bytes from the client (0: never): then its connection stands and carries nothing
        )
        self.forgets_s = math.inf  # like a NAT, drop connections that are silent for longer
        self._moved: dict[frozenset[socket.socket], float] = {}
        self._held: set[frozenset[socket.socket]] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection that there is."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def refuse(self) -> None:
        """Break every connection and accept no new one."""
        self._open = False
        self.cut()

    @property
    def is_open(self) -> bool:
        return self._open

    def accept(self) -> None:
        """Accept connections again."""
        self._open = True

    def stall(self) -> None:
        """Forward nothing but keep the connections open, as for a silently gone peer."""
        self._flows.clear()

    def close(self) -> None:
        self._closed = True
        self._flows.set()
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            if not self._open:
                near.close()
                continue
            try:
                far = socket.create_connection(self._target)
            except OSError:  # the listener is closed already
                near.close()
                continue
            self.connections += 1
            self._pairs.append((near, far))
            if self._closed:  # this one was accepted meanwhile
                self.cut()
            threading.Thread(target=self._pump, args=(near, far, "cut_after"), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, "cut_after_down"), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, limit: str) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(16_384):
                self._flows.wait()
                passed += len(data)
                pair, now = frozenset((source, sink)), time.monotonic()
                if now - self._moved.get(pair, now) > self.forgets_s:
                    self._held.add(pair)
                self._moved[pair] = now
                if limit == "cut_after" and 0 < self.hold_after <= passed:
                    self.hold_after = 0
                    self._held.add(pair)
                if pair in self._held:
                    continue
                if 0 < getattr(self, limit) <= passed:
                    setattr(self, limit, 0)
                    self._open = self._open and not self.stays_away
                    self.cut()
                    return
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def make_relay() -> Iterator[Callable[[Link], Relay]]:
    relays: list[Relay] = []

    def make(link: Link) -> Relay:
        relays.append(Relay(link.listener.invite().address))
        return relays[-1]

    yield make
    for relay in relays:
        relay.close()


@pytest.fixture
def slots_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the short codewords of tests wait for a slot as long ones do."""
    monkeypatch.setattr(pieces, "SHORT_BYTES", -pieces.CHECKSUM_BYTES)
