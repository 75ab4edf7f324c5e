"""The client's stream: one connection to the listener, from its start to its end. It runs in one thread."""

import errno
import math
import os
import socket
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector, DefaultSelector
from typing import Any, Final, Protocol

from fedgc.errors import BadMessage, Refused, text_of
from fedgc.guards import guarded
from fedgc.links import frames as wire
from fedgc.links.frames import Data, Invitation, Parts
from fedgc.links.session.certificate import SERVER_NAME, client_context
from fedgc.links.session.connection import Connection, is_agreed, request
from fedgc.links.session.options import OPENING_QUIET, QUIET, SILENCE, ping_s
from fedgc.links.session.waker import Waker

CONNECTING: Final = frozenset({errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY})
GOODBYE_S: Final = 2.0  # minimum for a goodbye to arrive; the listener answers by closing the stream


class StreamOwner(Protocol):
    """What a stream needs of its session."""

    @property
    def ended(self) -> str:
        """Why the session is over; empty while it is open."""

    def end(self, reason: str) -> None:
        """End the session."""

    def ping(self) -> None:
        """Send a ping."""

    def next_message(self, stream: "ClientStream") -> Parts | None:
        """Return what is to be sent next on this stream, None if there is nothing."""

    def arrived(self, stream: "ClientStream", frame: Data) -> None:
        """Take in a frame; raise Refused if the server breaks the protocol."""


@dataclass(frozen=True, slots=True)
class Connector:
    """What connections are made with, and what wakes the thread that serves them."""

    invitation: Invitation
    grace_s: float
    uplink_bytes_s: float  # at most
    waker: Waker

    def connect(self, owner: StreamOwner) -> Connection:
        """Connect to the listener, or to the proxy before it, and ask for the protocol."""
        proxied, address = self.invitation.authority, self.invitation.address
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        plain = self._connected(host, int(port), owner)
        try:
            context = client_context(proxied or self.invitation.certificate)
            name = host if proxied else SERVER_NAME
            connection = Connection(plain, context, wire.FRAME_LIMIT, name, self.uplink_bytes_s)
        except BaseException:
            plain.close()
            raise
        connection.send_head(request(address))
        return connection

    def _connected(self, host: str, port: int, owner: StreamOwner) -> socket.socket:
        """Connect to the first address that answers, until the session ends."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for at, (family, kind, protocol, _, address) in enumerate(found, start=1):
            plain = socket.socket(family, kind, protocol)
            try:
                plain.setblocking(False)
                self._connect(plain, address, owner, OPENING_QUIET * ping_s(self.grace_s) / len(found))
            except OSError:
                plain.close()
                if at == len(found):
                    raise
            else:
                return plain
        raise ConnectionError(f"{host}: saw no address")

    def _connect(self, plain: socket.socket, address: Any, owner: StreamOwner, limit_s: float) -> None:  # noqa: ANN401
        error = plain.connect_ex(address)
        end = time.monotonic() + limit_s
        with DefaultSelector() as selector:
            selector.register(plain, EVENT_WRITE)
            selector.register(self.waker, EVENT_READ)
            while error in CONNECTING and not owner.ended and (rest_s := end - time.monotonic()) > 0:
                ready = [key.fileobj for key, _ in selector.select(rest_s)]
                self.waker.clear()
                if plain in ready:
                    error = plain.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise ConnectionError(error, "no answer" if error in CONNECTING else os.strerror(error))


class ClientStream:
    """One connection: first the frames that open a stream on it, then those of the flow."""

    def __init__(self) -> None:
        self.heard = 0  # bytes
        self.answered = self.challenged = False
        self.broken = ""  # why it ended, if it did not end as it should
        self.opening: deque[bytes] = deque()
        self.open = self.was_open = False
        self._is_agreed = False  # whether the listener has changed to the protocol of sessions

    def carry(self, connector: Connector, owner: StreamOwner) -> bool:
        """Carry messages both ways until the stream breaks; return whether it broke by a silence.

        A stream that is not open yet has longer: a busy listener opens one after the other.
        """
        try:
            with closing(connector.connect(owner)) as connection, DefaultSelector() as selector:
                selector.register(connection, EVENT_READ)
                selector.register(connector.waker, EVENT_READ)
                is_silent = self._serve(connector, owner, connection, selector)
                if owner.ended and self.open:
                    self._say_goodbye(connector, owner, connection, selector)
                return is_silent
        except (OSError, EOFError) as error:
            self.broken = text_of(error)
            return False

    def _serve(
        self, connector: Connector, owner: StreamOwner, connection: Connection, selector: BaseSelector
    ) -> bool:
        """Serve until the session has ended, or there was too long a silence: then return True."""
        quiet, heard, due = -1, self.heard, -math.inf
        while not owner.ended:
            if time.monotonic() >= due:
                quiet = quiet + 1 if self.heard == heard else 0
                if quiet >= (QUIET if self.open else OPENING_QUIET):
                    return True
                heard, due = self.heard, time.monotonic() + ping_s(connector.grace_s)
                owner.ping()
            self._send(owner, connection)
            self._wait(connector, connection, selector, due)
            self._receive(owner, connection)
            self.heard = connection.received
        return False

    def _wait(self, connector: Connector, connection: Connection, selector: BaseSelector, end: float) -> None:
        """Wait until there is something to read, to send or to look at."""
        now = time.monotonic()
        end = connection.rests_until if now < connection.rests_until < end else end
        selector.modify(connection, EVENT_READ | (EVENT_WRITE if connection.blocked else 0))
        selector.select(max(0.0, end - now))
        connector.waker.clear()

    def _send(self, owner: StreamOwner, connection: Connection) -> bool:
        """Send what the socket takes of what there is to send; return whether nothing is left."""
        while connection.flush() and self._is_agreed:
            message = (self.opening.popleft(),) if self.opening else owner.next_message(self)
            if message is None:
                return True
            connection.send(*message)
        return False

    def _receive(self, owner: StreamOwner, connection: Connection) -> None:
        if not self._is_agreed:
            try:
                head = connection.receive_head()
            except BadMessage as error:  # of a proxy
                raise ConnectionError(str(error)) from error
            if head is None:
                return
            if not is_agreed(head):
                raise ConnectionError(f"saw {head[:80].decode(errors='replace')!r}, needed a session")
            self._is_agreed = True
        try:
            for message in connection.receive():
                with guarded("a frame of the server"):
                    for frame in wire.split(message):
                        owner.arrived(self, frame)
        except Refused as error:  # a server that breaks the protocol: no new stream helps
            owner.end(str(error))

    def _say_goodbye(
        self, connector: Connector, owner: StreamOwner, connection: Connection, selector: BaseSelector
    ) -> None:
        """Send what is left, a goodbye for one, and wait until the listener closes the stream."""
        end = time.monotonic() + max(GOODBYE_S, SILENCE * connector.grace_s)
        while time.monotonic() < end:
            if self._send(owner, connection):
                connection.finish()
            self._wait(connector, connection, selector, end)
            connection.discard()
