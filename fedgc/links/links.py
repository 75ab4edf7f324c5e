"""The links of a run: what the driver needs of a link, and all of a run's links behind that one face.

A client is on one link at a time: the one over which it joined last. When it changes, the round hears that
it was lost and that it joined; what the other link says of it from then on is left out, save the codewords
that lie there already. So neither the run nor the driver knows which link a client uses.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import INFO, Logger
from typing import Final, Protocol

from fedgc.errors import EdgeFailed
from fedgc.links.byte_counts import Amounts
from fedgc.links.log import for_people
from fedgc.links.pieces import Numbers, Vector
from fedgc.messages import LONGEST_REASON, Codeword, Event, Failed, Joined, Lost, ToClient

Emit = Callable[[Event], None]


class Link(Protocol):
    """What the driver needs of a link."""

    def publish(self, version: int, vector: Vector) -> None:
        """Make a model known to later work."""

    def send(self, command: ToClient) -> None:
        """Tell a client something; one that is not here is told nothing."""

    def take(self, client: str, round_: int, attempt: int) -> Numbers:
        """Return a codeword that was announced by a Codeword event, once."""

    def forget(self, client: str, round_: int, attempt: int) -> None:
        """Nothing more will be done with a codeword that was announced: another may come in its place."""

    def settle(self, client: str) -> Amounts:
        """Return what this client sent and was sent since the last call."""

    def name(self, client: str) -> str:
        """Return what a client calls itself."""

    def link(self, client: str) -> str:
        """Return the name of the link that a client uses."""

    def clients(self) -> tuple[str, ...]:
        """Return the clients that are here now."""


class Links:
    """Several links as one. Make it, give each link `heard(name)` to emit to, then `add` them."""

    def __init__(self, emit: Emit, log: Logger) -> None:
        self._emit = emit
        self._log = log
        self._links: dict[str, Link] = {}
        self._owners: dict[str, str] = {}
        self._present: set[str] = set()
        self._lying: dict[tuple[str, int, int], str] = {}
        self._lock = threading.Lock()  # links speak from threads of their own

    def heard(self, link: str) -> Emit:
        """Return what the link of this name says its events to."""
        return lambda event: self._hear(link, event)

    def add(self, links: Mapping[str, Link]) -> None:
        """Use these links, by name."""
        self._links.update(links)

    def _hear(self, link: str, event: Event) -> None:
        client: Final = getattr(event, "client", "")
        with self._lock:
            if isinstance(event, Joined):
                if client in self._present and self._owners[client] != link:
                    self._emit(Lost(event.now, client))
                self._owners[client] = link
                self._present.add(client)
                self._log.log(INFO, "client %s joins over the %s link", self._called(client, link), link)
            elif self._owners.get(client) != link:  # it has moved to another link
                if isinstance(event, Codeword):
                    self._links[link].forget(client, event.round, event.attempt)
                return
            elif isinstance(event, Lost):
                self._present.discard(client)
            elif isinstance(event, Failed):  # it is logged, kept and shown
                event = replace(event, reason=for_people(event.reason, LONGEST_REASON))
            elif isinstance(event, Codeword):
                self._lying[client, event.round, event.attempt] = link
            self._emit(event)

    def _called(self, client: str, link: str) -> str:
        name = self._links[link].name(client)
        return f"{name} ({client})" if name else client

    # ---- as one link

    def publish(self, version: int, vector: Vector) -> None:
        """Make a model known on every link."""
        for link in self._links.values():
            link.publish(version, vector)

    def send(self, command: ToClient) -> None:
        """Tell a client something over the link that it uses."""
        if (owner := self._owner(command.client)) is not None:
            owner.send(command)

    def take(self, client: str, round_: int, attempt: int) -> Numbers:
        """Return a codeword from the link that has it, once."""
        with self._lock:
            link = self._lying.get((client, round_, attempt))
        if link is None:
            raise EdgeFailed(f"codeword of {client}, round {round_}, attempt {attempt}: it is not here")
        return self._links[link].take(client, round_, attempt)

    def forget(self, client: str, round_: int, attempt: int) -> None:
        """Nothing more will be done with a codeword that was announced: another may come in its place."""
        with self._lock:
            link = self._lying.pop((client, round_, attempt), None)
        if link is not None:
            self._links[link].forget(client, round_, attempt)

    def settle(self, client: str) -> Amounts:
        """Return what this client sent and was sent over any link since the last call."""
        total = Amounts()
        for link in self._links.values():
            total = total + link.settle(client)
        return total

    def name(self, client: str) -> str:
        """Return what a client calls itself."""
        owner = self._owner(client)
        return owner.name(client) if owner else ""

    def link(self, client: str) -> str:
        """Return the name of the link over which a client joined last."""
        with self._lock:
            return self._owners.get(client, "")

    def clients(self) -> tuple[str, ...]:
        """Return the clients that are here now, over whichever link."""
        with self._lock:
            return tuple(self._present)

    def _owner(self, client: str) -> Link | None:
        with self._lock:
            owner = self._owners.get(client)
        return self._links[owner] if owner is not None else None
