"""The interface of a link, and `Links`, which combines all links of a run behind the same interface.

A client uses one link at a time: the one over which it joined last. When it changes, the round receives
`Lost` and `Joined`; later events of the other link are dropped, except codewords that it holds already. So
neither the run nor the driver depends on which link a client uses.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import INFO, Logger
from typing import Final, Protocol

from fedgc.codecs.model_change import ModelChange
from fedgc.errors import EdgeFailed, printable
from fedgc.links.byte_counts import Amounts
from fedgc.links.frames import Invitation
from fedgc.links.pieces import Numbers, Vector
from fedgc.messages import (
    LONGEST_REASON,
    Announced,
    Codeword,
    Failed,
    Joined,
    LinkEvent,
    Lost,
    Scored,
    ToClient,
)

Emit = Callable[[LinkEvent], None]


class Link(Protocol):
    """The interface of a link, as the driver uses it."""

    def expect(self, numbers: int, buffers: int = 0) -> None:
        """Take vectors of this length from now on; the last numbers are those of buffers."""

    def publish(self, version: int, vector: Vector, change: ModelChange | None = None) -> None:
        """Make a model available to later work; clients that have the one before can be sent the change."""

    def send(self, command: ToClient) -> None:
        """Send a command to a client; does nothing if the client is not connected."""

    def take(self, client: str, round_: int, attempt: int) -> Numbers:
        """Return an announced codeword, once."""

    def forget(self, client: str, round_: int, attempt: int) -> None:
        """Free an announced codeword: another may come in its place."""

    def settle(self, client: str) -> Amounts:
        """Return this client's byte amounts since the last call."""

    def name(self, client: str) -> str:
        """Return the display name of a client."""

    def link(self, client: str) -> str:
        """Return the name of the link that a client uses."""

    def clients(self) -> tuple[str, ...]:
        """Return the clients that are connected now."""

    def exclude(self, client: str, reason: str) -> None:
        """Lose a client; it is admitted again after a pause."""


class SessionLink(Link, Protocol):
    """A link whose clients are invited, each to a session of its own."""

    def start(self) -> str:
        """Bind and serve; return an address that clients connect to."""

    def close(self, reason: str, *, complete: bool = False) -> None:
        """Say goodbye to every client and stop."""

    def dismiss(self, reason: str) -> None:
        """Say goodbye to every client without waiting: the process may end at any moment."""

    def invite(self) -> Invitation:
        """Return a new invitation for one client, or raise NotNow: ask again."""

    def serves(self, invitation: Invitation) -> bool:
        """Whether what made this invitation still answers: then a client that cannot connect never will."""

    def opened(self, invitation: Invitation) -> bool:
        """Whether a session began with this invitation."""

    def cancel(self, invitation: Invitation, reason: str) -> bool:
        """Void an invitation, and end its session for a reason; return whether it had opened one."""


class Links:
    """All links of a run as one. Make it, give each link `heard(name)` as its `emit`, then `add` them."""

    def __init__(self, emit: Emit, log: Logger) -> None:
        self._emit = emit
        self._log = log
        self._links: dict[str, Link] = {}
        self._owners: dict[str, str] = {}
        self._present: set[str] = set()
        self._lying: dict[tuple[str, int, int], str] = {}
        self._lock = threading.Lock()  # links emit from their own threads

    def heard(self, link: str) -> Emit:
        """Return the event callback of the link with this name."""
        return lambda event: self._hear(link, event)

    def add(self, links: Mapping[str, Link]) -> None:
        """Use these links, by name."""
        self._links.update(links)

    def _hear(self, link: str, event: LinkEvent) -> None:
        client: Final = getattr(event, "client", "")
        with self._lock:
            match event:
                case Announced() | Joined():
                    self._came(link, event)
                case _ if self._owners.get(client) != link:  # the client has moved to another link
                    if isinstance(event, Codeword):
                        self._links[link].forget(client, event.round, event.attempt)
                    return
                case Codeword():
                    self._lying[client, event.round, event.attempt] = link
                case Lost():
                    self._present.discard(client)
                case Failed():  # logged, kept and shown
                    event = replace(event, reason=printable(event.reason, LONGEST_REASON))
                case Scored():
                    event = replace(event, problem=printable(event.problem, LONGEST_REASON))
            self._emit(event)

    def _came(self, link: str, event: Announced | Joined) -> None:
        """Note the link that a client uses from now on."""
        client = event.client
        if client in self._present and self._owners[client] != link:
            self._present.discard(client)
            self._emit(Lost(event.now, client))
        self._owners[client] = link
        if isinstance(event, Joined):
            self._present.add(client)
            self._log.log(INFO, "client %s joins over the %s link", self._called(client, link), link)

    def _called(self, client: str, link: str) -> str:
        name = self._links[link].name(client)
        return f"{name} ({client})" if name else client

    # ---- the interface of a link

    def expect(self, numbers: int, buffers: int = 0) -> None:
        """Take vectors of this length from now on, on every link."""
        for link in self._links.values():
            link.expect(numbers, buffers)

    def publish(self, version: int, vector: Vector, change: ModelChange | None = None) -> None:
        """Make a model available on every link."""
        for link in self._links.values():
            link.publish(version, vector, change)

    def send(self, command: ToClient) -> None:
        """Send a command over the link that its client uses."""
        if (owner := self._owner(command.client)) is not None:
            owner.send(command)

    def take(self, client: str, round_: int, attempt: int) -> Numbers:
        """Return a codeword from the link that holds it, once."""
        with self._lock:
            link = self._lying.get((client, round_, attempt))
        if link is None:
            raise EdgeFailed(f"codeword of {client}, round {round_}, attempt {attempt}: it is not here")
        return self._links[link].take(client, round_, attempt)

    def forget(self, client: str, round_: int, attempt: int) -> None:
        """Free an announced codeword: another may come in its place."""
        with self._lock:
            link = self._lying.pop((client, round_, attempt), None)
        if link is not None:
            self._links[link].forget(client, round_, attempt)

    def settle(self, client: str) -> Amounts:
        """Return this client's byte amounts since the last call, over all links."""
        total = Amounts()
        for link in self._links.values():
            total = total + link.settle(client)
        return total

    def name(self, client: str) -> str:
        """Return the display name of a client."""
        owner = self._owner(client)
        return owner.name(client) if owner else ""

    def link(self, client: str) -> str:
        """Return the name of the link over which a client joined last."""
        with self._lock:
            return self._owners.get(client, "")

    def clients(self) -> tuple[str, ...]:
        """Return the clients that are connected now, over any link."""
        with self._lock:
            return tuple(self._present)

    def exclude(self, client: str, reason: str) -> None:
        """Lose a client on the link that it uses; no link admits it before a pause is over."""
        if (owner := self._owner(client)) is not None:
            owner.exclude(client, reason)

    def _owner(self, client: str) -> Link | None:
        with self._lock:
            owner = self._owners.get(client)
        return self._links[owner] if owner is not None else None
