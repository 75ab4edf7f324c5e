"""The sessions of a run in one or several processes, and sessions of clients over real loopback TLS."""

import logging
import os
import queue
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import numpy as np
import pytest

from fedgc.codecs.model_change import ChangeForm
from fedgc.errors import NotNow
from fedgc.links.frames import Invitation
from fedgc.links.identity import Identity
from fedgc.links.links import Links
from fedgc.links.quotas import Quotas
from fedgc.links.receivers.receivers import session_link
from fedgc.links.session.client import Session, Terms
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Codeword, Held, Joined, LinkEvent, Loaded, Offered, Reveal
from tests.config_of import config_of
from tests.links.conftest import GRACE_S, WAIT_S, Link

NUMBERS = 70_000  # several pieces
LOG = logging.getLogger("test")


class Served:
    """The sessions of a run, its events, and the sessions of its clients."""

    def __init__(self, stack: ExitStack, receivers: int, **settings: object) -> None:
        settings = {"work": "local", "grace_s": GRACE_S, "piece_kb": 64, "receivers": receivers, **settings}
        self.config = config_of(settings)
        self.events: queue.SimpleQueue[LinkEvent] = queue.SimpleQueue()
        self.loaded: queue.SimpleQueue[Loaded] = queue.SimpleQueue()
        self.audit: list[tuple[str, str, str]] = []
        self.quotas = Quotas()
        around = Surroundings(
            time.monotonic, os.urandom, time.time, LOG, lambda *what: self.audit.append(what), self.quotas
        )
        self._stack = stack
        self.link = Links(self._heard, LOG)
        self.sessions = session_link(self.config, "run-1", self.link.heard("session"), around)
        self.link.add({"session": self.sessions})
        self.link.expect(NUMBERS)
        stack.callback(self.sessions.close, "test over")
        self.sessions.start()

    def _heard(self, event: LinkEvent) -> None:
        if isinstance(event, Loaded):
            self.loaded.put(event)
        elif not isinstance(event, Offered):
            self.events.put(event)

    def session(self, who: Identity | None = None, invitation: Invitation | None = None) -> Session:
        """Open a session of a client, which joins."""
        times, changes = (time.monotonic, random.random), ChangeForm(self.config.fragments)
        terms = Terms(self.config.grace_s, 64 * 1024, NUMBERS, *times, connect_s=WAIT_S, changes=changes)
        who = who or Identity(secrets.token_bytes(32))
        session = self._stack.enter_context(Session(invitation or self.invitation(), who, terms))
        session.send(Joined(0.0, "me", True, (Held("chunk-0", 8),)))
        return session

    def invitation(self) -> Invitation:
        """Return an invitation, once a receiver serves."""
        made: list[Invitation] = []

        def is_made() -> bool:
            with suppress(NotNow):
                made.append(self.sessions.invite())
            return bool(made)

        Link.eventually(is_made)
        return made[0]

    def event(self, kind: type[LinkEvent]) -> LinkEvent:
        event = self.events.get(timeout=WAIT_S)
        assert isinstance(event, kind), event
        return event

    def upload(
        self, session: Session, client: str, vector: np.ndarray, wire: str = "float32", round_: int = 1
    ) -> np.ndarray:
        """Ask a client for a vector, and return it once it is whole."""
        self.link.send(Reveal(client, round_, 0, "local", None, wire))
        assert isinstance(session.receive(WAIT_S), Reveal)
        session.offer(round_, 0, vector, wire)
        assert self.event(Codeword).client == client
        return self.link.take(client, round_, 0)


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    with ExitStack() as stack:
        yield lambda receivers, **settings: Served(stack, receivers, **settings)
