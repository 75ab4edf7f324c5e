"""The listener's connections: it accepts them, and each carries at most one session's stream.

All of it runs in the listener's loop. A connection shakes hands, asks for the protocol, is challenged, says
hello, and then carries frames until its client leaves, is silent, is lost or comes back on another one.
"""

import asyncio
import errno
import resource
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from fedgc.errors import BadSetting, FedgcError, NotAdmitted, text_of
from fedgc.guards import guarded
from fedgc.links import frames as wire
from fedgc.links.frames import Challenge, Denied
from fedgc.links.session.connection import NOT_FOUND, UPGRADED, Connection, is_request
from fedgc.links.session.options import QUIET, ping_s
from fedgc.links.session.peer import Peer, idle, nothing
from fedgc.links.session.sessions import SessionTable, Surroundings
from fedgc.messages import WIRE_VERSION

NONCE_BYTES: Final = 32
MOST_UNAUTHENTICATED: Final = 1024  # connections without a hello; one more ends the oldest of them
SHARE: Final = 4  # of the files that the process may open: those connections have no more than one in so many
WAITING: Final = 1024  # connections that the system accepts before the listener does
ACCEPTED: Final = 64  # connections at once: those that are open have their turn in between
PAUSE_S: Final = 1.0  # where the process may open no more files
TURN_BYTES: Final = 2**20  # that are written to one connection before others have their turn
CONNECTION: Final = guarded("a session's connection")
NO_HELLO: Final = "no hello in time"
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def allowed_files() -> int:
    """Let this process open as many files as the system allows it; return how many these are."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems have a lower limit of their own
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


class Streams:
    """All connections of a listener."""

    def __init__(
        self, sessions: SessionTable, around: Surroundings, grace_s: float, context: ssl.SSLContext
    ) -> None:
        self.sessions: Final = sessions
        self.around: Final = around
        self.grace_s: Final = grace_s
        self._context = context
        self._socket: socket.socket | None = None
        self._open: set[_Stream] = set()
        self._unauthenticated: dict[_Stream, None] = {}  # oldest first
        self._left: dict[str, _Stream] = {}  # the one that each client has left last, while it is open
        self._most_unauthenticated = min(MOST_UNAUTHENTICATED, allowed_files() // SHARE)

    def listen(self, bind: str) -> int:
        """Accept connections at this address from now on; return the port."""
        host, _, port = bind.rpartition(":")
        try:
            kind, _, _, _, address = socket.getaddrinfo(
                host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            both = kind == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
            self._socket = socket.create_server(
                address[:2], family=kind, backlog=WAITING, dualstack_ipv6=both
            )
        except OSError as error:
            raise BadSetting(f"setting links.bind: cannot listen at {bind!r} ({text_of(error)})") from error
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._accept)
        return int(self._socket.getsockname()[1])

    def refuse_new(self) -> None:
        """Accept no more connections."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """Close all connections."""
        self.refuse_new()
        for stream in tuple(self._open):
            stream.end()

    def admitted(self, stream: "_Stream") -> None:
        """Note that a connection has said a valid hello."""
        self._unauthenticated.pop(stream, None)

    def left(self, stream: "_Stream", client: str) -> None:
        """Close the connection that a client had left before this one: it may come back at any rate."""
        before, self._left[client] = self._left.get(client), stream
        if before is not None:
            before.end()

    def ended(self, stream: "_Stream", client: str) -> None:
        """Note that a connection is closed."""
        self._open.discard(stream)
        self._unauthenticated.pop(stream, None)
        if self._left.get(client) is stream:
            del self._left[client]

    def _accept(self) -> None:
        for _ in range(ACCEPTED):
            if self._socket is None:
                return
            try:
                plain, _ = self._socket.accept()
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._pause(self._socket)
                    return
                if isinstance(error, BlockingIOError):
                    return
                continue  # it was gone before it was accepted
            try:
                self._enter(_Stream(Connection(plain, self._context, wire.HELLO_LIMIT), self))
            except OSError:  # it is gone already
                plain.close()

    def _pause(self, listening: socket.socket) -> None:
        """Accept nothing for a moment."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(PAUSE_S, lambda: self._socket and loop.add_reader(listening, self._accept))

    def _enter(self, stream: "_Stream") -> None:
        if len(self._unauthenticated) >= self._most_unauthenticated:
            next(iter(self._unauthenticated)).late()
        self._open.add(stream)
        self._unauthenticated[stream] = None


class _Stream:
    """One connection: `_step` reads what is to come next."""

    def __init__(self, connection: Connection, streams: Streams) -> None:
        self._streams, self._sessions = streams, streams.sessions
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._step: Callable[[], None] = self._ask
        self._nonce = b""
        self._peer: Peer | None = None
        self._carries: object = None  # its peer's stream, until that is another one
        self._heard, self._quiet = 0, 0  # bytes at the last look, and looks in a row without more
        self._wakes = self._is_writing = self._is_finishing = self._has_ended = False
        self._timer = self._loop.call_later(streams.grace_s, self.late)
        self._loop.add_reader(self._connection, self._readable)

    # ---- its beginning

    def _ask(self) -> None:
        """Read the request to change the protocol, and answer it with a challenge."""
        head = self._connection.receive_head()
        if head is None:
            return
        if not is_request(head):
            self._connection.send_head(NOT_FOUND)
            self._finish()
            return
        self._nonce = self._streams.around.entropy(NONCE_BYTES)
        self._connection.send_head(UPGRADED)
        self._connection.send(wire.encode(Challenge(WIRE_VERSION, self._nonce)))
        self._step = self._read
        self._read()

    def _admit(self, hello: wire.Data) -> None:
        with guarded("a session's hello"):
            peer, welcome = self._sessions.admit(wire.decode_hello(hello), self._nonce)
        self._peer, self._carries = peer, peer.stream
        self._streams.admitted(self)
        self._connection.longest = wire.FRAME_LIMIT
        self._connection.send(wire.encode(welcome))
        peer.wake, peer.arriving = self._wake, self._arriving
        with guarded("a session", peer.client):
            self._sessions.uploads.resume(peer)
        self._timer.cancel()
        self._watch()

    def late(self) -> None:
        """End a connection that has said no hello in time; on a busy machine its client tries again."""
        if self._nonce:
            self._sessions.refusals.count(TimeoutError(NO_HELLO))
        self.end()

    # ---- what comes

    def _readable(self) -> None:
        try:
            with CONNECTION:
                self._take()
        except FedgcError as error:
            self._refuse(error)
        if self._peer is None or self._is_left or self._is_finishing:
            self._wake()  # `arrived` does it for a client that is in

    def _take(self) -> None:
        try:
            if self._is_left:
                self._connection.discard()
            else:
                self._step()
        except (OSError, EOFError):
            if self._nonce and self._peer is None and not self._is_finishing:
                self._sessions.refusals.count(NotAdmitted("the stream ended before its hello"))
            self.end()

    def _read(self) -> None:
        for message in self._connection.receive():
            if self._peer is None:
                self._admit(message)
            else:
                self._sessions.arrived(self._peer, message)
            if self._is_left:
                return

    @property
    def _is_left(self) -> bool:
        """Whether its client was lost or has come back on another connection."""
        return self._peer is not None and self._peer.stream is not self._carries

    def _refuse(self, error: FedgcError) -> None:
        """Deny a peer that is not admitted, or whose lines are out of step: no new stream helps."""
        if self._peer is None:
            self._sessions.refusals.count(error)
        else:
            self._sessions.refusals.count(error, self._peer.client)
            if not self._is_left:
                self._sessions.lose(self._peer)
        self._connection.send(wire.encode(Denied(str(error))))
        self._finish()

    def _watch(self) -> None:
        """Ping, and end the connection after too long a silence."""
        peer = self._peer
        if peer is None or self._is_left:
            return
        self._quiet = self._quiet + 1 if self._connection.received == self._heard else 0
        if self._quiet >= QUIET:
            self.end()
            return
        self._heard = self._connection.received
        peer.flow.ping()
        self._wake()
        self._timer = self._loop.call_later(ping_s(self._streams.grace_s), self._watch)

    def _arriving(self) -> int:
        return self._connection.arriving

    # ---- what goes

    def _wake(self) -> None:
        """Send what there is to send, once the loop has done what it is doing."""
        if not (self._wakes or self._has_ended):
            self._wakes = True
            self._loop.call_soon(self._writable)

    def _writable(self) -> None:
        self._wakes = False
        if self._has_ended:
            return
        try:
            with CONNECTION:
                self._write()
        except FedgcError as error:  # what it should send cannot be read: its client tries again
            self._sessions.refusals.count(error)
            self.end()

    def _write(self) -> None:
        try:
            self._fill()
        except OSError:
            self.end()
            return
        if self._connection.blocked != self._is_writing:
            self._is_writing = self._connection.blocked
            if self._is_writing:
                self._loop.add_writer(self._connection, self._writable)
            else:
                self._loop.remove_writer(self._connection)

    def _fill(self) -> None:
        """Send what the socket takes, and no more at once than is fair."""
        if self._is_left and not self._is_finishing:
            if self._peer is not None and self._peer.over:
                self._connection.send(wire.encode(Denied(self._peer.over)))
            self._finish()
        sent = 0
        while self._connection.flush():
            if self._is_finishing:
                self._connection.finish()
                return
            if sent >= TURN_BYTES:
                self._wake()
                return
            message = None if self._peer is None else self._peer.flow.next_message()
            if message is None:
                return
            self._connection.send(*message)
            sent += wire.size_of(message)

    # ---- its end

    def _finish(self) -> None:
        """End the connection once what is queued has been sent and its client has read it."""
        self._is_finishing = True
        self._step = self._connection.discard
        self._timer.cancel()
        self._timer = self._loop.call_later(self._streams.grace_s, self.end)
        if self._peer is not None:
            self._streams.left(self, self._peer.client)

    def end(self) -> None:
        """Close the connection now."""
        if self._has_ended:
            return
        self._has_ended = True
        self._timer.cancel()
        self._loop.remove_reader(self._connection)
        self._loop.remove_writer(self._connection)
        self._connection.close()
        self._streams.ended(self, "" if self._peer is None else self._peer.client)
        if self._peer is not None:
            if self._peer.wake == self._wake:
                self._peer.wake, self._peer.arriving = idle, nothing
            self._sessions.left(self._peer, self._carries, self._loop.call_later)
