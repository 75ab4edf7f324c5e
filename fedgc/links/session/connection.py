"""A TLS connection that carries messages without blocking; each end waits for it in a loop of its own.

The client asks over HTTP/1.1 to change to this protocol, as a WebSocket does, so that one port of a proxy can
serve sessions beside other paths. From then on each message follows its length.

TLS works between two buffers, not on the socket: one call decrypts no more than what one read has brought. On
the socket it would go on for as long as the other end sends records without content, such as key updates.

A long message is not put together: TLS reads it from where it is, and decrypts it to where it will be.
"""

import math
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import numpy as np

from fedgc.errors import BadMessage

PATH: Final = "/fedgc/session"
PROTOCOL: Final = "fedgc-session"
UPGRADED: Final = (
    f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n".encode()
)
NOT_FOUND: Final = b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
HEAD_LIMIT: Final = 8192  # bytes of a request or answer over HTTP: a proxy adds headers of its own

_LENGTH: Final = struct.Struct("<I")  # of the message that follows
_HEAD_END: Final = b"\r\n\r\n"
_NOTHING: Final = memoryview(b"")
_RECORD_BYTES: Final = 2**14  # of the longest TLS record
_READ_BYTES: Final = 2**16  # of one read
_TURN_BYTES: Final = 2**17  # that are read before other connections have their turn
_WRITE_BYTES: Final = 2**17  # that are encrypted before they are written
_LIMITED_S: Final = 0.1  # between two writes, where the rate is limited
_ANSWER_BYTES: Final = 2**12  # that TLS may answer to one read by itself, as to key updates


def request(address: str) -> bytes:
    """Return the request to change to the protocol of sessions.

    >>> is_request(request("fl.example.org:443")[:-4]), is_request(b"GET / HTTP/1.1")
    (True, False)
    """
    return (
        f"GET {PATH} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n"
    ).encode()


def is_request(head: bytes) -> bool:
    r"""Whether the head of an HTTP request asks to change to the protocol of sessions.

    >>> is_request(b"GET /fedgc/session HTTP/1.1\r\nupgrade:Fedgc-Session, h2c")
    True
    """
    first, *headers = head.split(b"\r\n")
    if first != f"GET {PATH} HTTP/1.1".encode():
        return False
    fields = (header.lower().partition(b":") for header in headers)
    protocols = [
        each.strip() for name, _, value in fields if name == b"upgrade" for each in value.split(b",")
    ]
    return PROTOCOL.encode() in protocols


def is_agreed(head: bytes) -> bool:
    """Whether the head of an HTTP answer agrees to change the protocol.

    >>> is_agreed(UPGRADED[:-4]), is_agreed(NOT_FOUND[:-4])
    (True, False)
    """
    return head.startswith(b"HTTP/1.1 101 ")


class Connection:
    """One end of a connection; where that is broken it raises OSError, where it was closed EOFError."""

    def __init__(
        self,
        plain: socket.socket,
        context: ssl.SSLContext,
        longest: int,
        name: str = "",
        bytes_s: float = math.inf,
    ) -> None:
        """Take over a connected socket.

        Args:
            plain: The socket.
            context: The settings of TLS.
            longest: How many bytes a message from the other end may have; it can be changed.
            name: On a client, the name of the server; empty on the server.
            bytes_s: How many bytes a second it sends at most.
        """
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.blocked = False  # whether it waits until the socket can be written to
        self.rests_until = -math.inf  # on the clock of time.monotonic, where it sends so many bytes a second
        self.received = 0  # bytes, of everything that came
        self.longest = longest
        self._socket = plain
        self._bytes_s = bytes_s
        self._allowed = 0  # bytes that may be written at `rests_until`, where the rate is limited
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=not name, server_hostname=name or None
        )
        self._is_secure = self._is_finished = False
        self._head = b""  # of HTTP, as far as it has come
        self._length = b""  # of the next message, as far as it has come
        self._missing = 0  # bytes of the message that is arriving
        self._message = bytearray()  # what has come of it
        self._long = _NOTHING  # a long message that is arriving
        self._room = _NOTHING  # for what is to come of it
        self._early = b""  # what came with the head
        self._out: deque[memoryview] = deque()  # what is to be encrypted
        self._borrows = False  # whether some of it was not copied
        self._stuck = 0  # bytes of it that waited at the last call of `flush`
        self._encrypted = _NOTHING  # what is to be written

    def fileno(self) -> int:
        """Return the socket's number, to wait for it."""
        return self._socket.fileno()

    # ---- out

    def send_head(self, head: bytes) -> None:
        """Queue a request or answer of HTTP."""
        self._out.append(memoryview(head))

    def send(self, *message: bytes | memoryview) -> None:
        """Queue a message of these parts; the last one, if it is long, is not copied."""
        start = _LENGTH.pack(sum(map(len, message))), *message[:-1]
        first = max(0, _RECORD_BYTES - sum(map(len, start)))
        last = memoryview(message[-1])
        self._out.append(memoryview(b"".join((*start, last[:first]))))
        if len(last) > first:
            self._out.append(last[first:])
            self._borrows = True

    def flush(self) -> bool:
        """Send what is queued, as far as the socket takes it; return whether nothing is left."""
        if self._is_finished:
            return True
        is_secure = self._shakes()
        while self._written():
            if not is_secure:
                return False
            if not self._out:
                self._borrows, self._stuck = False, 0
                return True
            while self._out and self._outgoing.pending < _WRITE_BYTES:
                rest = self._out.popleft()
                rest = rest[self._tls.write(rest[:_WRITE_BYTES]) :]
                if rest:
                    self._out.appendleft(rest)
        self._let_go()
        return False

    def _let_go(self) -> None:
        """Copy what waits behind a socket that takes nothing: a piece keeps all of its vector in memory."""
        waits = sum(map(len, self._out)) if self._borrows else 0
        if waits and waits == self._stuck:
            self._out = deque(memoryview(bytes(each)) for each in self._out)
            self._borrows = False
        self._stuck = waits

    def _written(self) -> bool:
        """Write what is encrypted; return whether nothing of it is left."""
        self.blocked = False
        while self._encrypted or self._outgoing.pending:
            if not self._encrypted:
                self._encrypted = memoryview(self._outgoing.read())
            part = self._encrypted[: self._now_allowed()]
            if not part:
                return False
            try:
                sent = self._socket.send(part)
            except BlockingIOError:
                self.blocked = True
                return False
            self._encrypted = self._encrypted[sent:] or _NOTHING
            self._allowed -= sent
        return True

    def _now_allowed(self) -> int:
        """Return how many encrypted bytes may be written now.

        Where the rate is limited, those of `_LIMITED_S` after that time: the other end sees that more comes.
        """
        if self._bytes_s == math.inf:
            return len(self._encrypted)
        now = time.monotonic()
        if self._allowed <= 0:
            self._allowed = min(len(self._encrypted), max(1, int(_LIMITED_S * self._bytes_s)))
            self.rests_until = max(now, self.rests_until) + self._allowed / self._bytes_s
        return self._allowed if now >= self.rests_until else 0

    # ---- in

    def receive_head(self) -> bytes | None:
        """Return the head of HTTP without its empty line, once all of it has come."""
        for data in self._decrypted():
            self._head += data
            if _HEAD_END in self._head:
                head, _, self._early = self._head.partition(_HEAD_END)
                return head
            if len(self._head) > HEAD_LIMIT:
                raise BadMessage(
                    f"the head of HTTP: saw {len(self._head)} bytes, needed at most {HEAD_LIMIT}"
                )
        return None

    def receive(self) -> Iterator[bytes | memoryview]:
        """Yield the messages that have come; the loop calls again when there is more.

        Raises:
            BadMessage: A message is longer than it may be.
        """
        early, self._early = self._early, b""
        yield from self._messages(early)
        for data in self._decrypted():
            yield from self._messages(data)

    @property
    def arriving(self) -> int:
        """How many bytes have come of the message that is arriving."""
        return len(self._long) - len(self._room) if self._long else len(self._message)

    def _decrypted(self) -> Iterator[bytes]:
        """Yield what has come, in the order in which it came."""
        end, came = self.received + _TURN_BYTES, _READ_BYTES
        yield from self._read_in()
        while came == _READ_BYTES and self.received < end and (came := self._reads()):
            yield from self._read_in()

    def _read_in(self) -> Iterator[bytes]:
        """Yield what the last read has brought; the rest of a record waits inside TLS for the next one.

        What belongs to a long message goes where its room is.
        """
        while (self._incoming.pending or self._tls.pending()) and self._shakes():
            try:
                if self._room:
                    data, come = b"", int(self._tls.read(len(self._room), self._room))
                    self._room = self._room[come:]
                else:
                    data = self._tls.read(_RECORD_BYTES)
                    come = len(data)
            except ssl.SSLWantReadError:
                return
            if not come:
                raise EOFError("the connection has ended")
            yield data

    def _shakes(self) -> bool:
        """Go on with the handshake of TLS; return whether it is complete."""
        if not self._is_secure:
            with suppress(ssl.SSLWantReadError):
                self._tls.do_handshake()
                self._is_secure = True
        return self._is_secure

    def _reads(self) -> int:
        """Take in what the socket has, and return its bytes: fewer than were asked for are all of it."""
        if self._is_secure and self._outgoing.pending > _ANSWER_BYTES:
            raise ConnectionError(f"saw records that ask for {self._outgoing.pending} bytes of answers")
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            raise EOFError("the connection has ended")
        self.received += len(data)
        self._incoming.write(data)
        return len(data)

    def _messages(self, data: bytes) -> Iterator[bytes | memoryview]:
        if self._long and not self._room:
            whole, self._long, self._room = self._long, _NOTHING, _NOTHING
            yield whole
        at = 0
        while at < len(data):
            if not self._missing:
                taken = _LENGTH.size - len(self._length)
                self._length += data[at : at + taken]
                at += taken
                if len(self._length) < _LENGTH.size:
                    return
                (self._missing,), self._length = _LENGTH.unpack(self._length), b""
                if not 0 < self._missing <= self.longest:
                    raise BadMessage(f"a message of {self._missing} bytes: needed 1 to {self.longest}")
            part = data[at : at + self._missing]
            at += len(part)
            if self._missing > _RECORD_BYTES:
                self._begin_long(part)
                continue
            self._missing -= len(part)
            self._message += part
            if not self._missing:
                message, self._message = bytes(self._message), bytearray()
                yield message

    def _begin_long(self, part: bytes) -> None:
        """Make room for a long message that begins with this part; memory is taken as it is filled."""
        self._long = np.empty(self._missing, np.uint8).data
        self._long[: len(part)] = part
        self._room, self._missing = self._long[len(part) :], 0

    # ---- the end

    def finish(self) -> None:
        """Tell the other end that nothing more comes; then `discard` until it has ended too, and close.

        Closed at once, with something of the other end unread, the connection would be reset, and what was
        sent last might be lost.
        """
        if not self._is_finished:
            self._is_finished = True
            with suppress(ssl.SSLError):
                self._tls.unwrap()
            self._written()
            self._socket.shutdown(socket.SHUT_WR)

    def discard(self) -> None:
        """Discard what has come."""
        for _ in range(_TURN_BYTES // _RECORD_BYTES):
            try:
                data = self._socket.recv(_RECORD_BYTES)
            except BlockingIOError:
                return
            if not data:
                raise EOFError("the connection has ended")

    def close(self) -> None:
        """Close the socket, with the reason of TLS if there is one."""
        with suppress(OSError):
            self._written()
        self._socket.close()
