"""A TLS connection that carries messages without blocking; each end waits for it in a loop of its own.

The client asks over HTTP/1.1 to change to this protocol, as a WebSocket does, so that one port of a proxy can
serve sessions beside other paths. From then on each message follows its length. Nothing is read ahead: a
message that is arriving takes the memory of what has come of it, and an idle connection takes none.
"""

import socket
import ssl
import struct
from collections import deque
from collections.abc import Iterator
from typing import Final

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
_RECORD_BYTES: Final = 2**14  # of the longest TLS record: more than that is never read or written at once
_TURN_BYTES: Final = 2**18  # that are read before other connections have their turn


def request(address: str) -> bytes:
    """Return the request to change to the protocol of sessions.

    >>> is_request(request("fl.example.org:443")[:-4]), is_request(b"GET / HTTP/1.1")
    (True, False)
    """
    return (
        f"GET {PATH} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n"
    ).encode()


def is_request(head: bytes) -> bool:
    """Whether the head of an HTTP request asks to change to the protocol of sessions."""
    first, *headers = head.split(b"\r\n")
    asked = f"upgrade: {PROTOCOL}".encode()
    return first == f"GET {PATH} HTTP/1.1".encode() and any(each.lower() == asked for each in headers)


def is_agreed(head: bytes) -> bool:
    """Whether the head of an HTTP answer agrees to change the protocol.

    >>> is_agreed(UPGRADED[:-4]), is_agreed(NOT_FOUND[:-4])
    (True, False)
    """
    return head.startswith(b"HTTP/1.1 101 ")


class Connection:
    """One end of a connection; where that is broken it raises OSError, where it was closed EOFError."""

    def __init__(self, line: ssl.SSLSocket, longest: int) -> None:
        """`longest` is how many bytes a message from the other end may have; it can be changed."""
        self.longest = longest
        self.blocked = False  # whether it waits until the socket can be written to
        self._line = line
        self._is_secure = self._is_finished = False
        self._head = b""  # of HTTP, as far as it has come
        self._length = b""  # of the next message, as far as it has come
        self._missing = 0  # bytes of the message that is arriving
        self._parts: list[bytes] = []  # of it
        self._early = b""  # what came with the head
        self._out: deque[bytes | memoryview] = deque()

    def fileno(self) -> int:
        """Return the socket's number, to wait for it."""
        return self._line.fileno()

    def _shake(self) -> bool:
        """Go on with the TLS handshake; return whether it is complete."""
        if self._is_secure:
            return True
        try:
            self._line.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLWantWriteError:
            self.blocked = True
            return False
        self._is_secure = True
        return True

    # ---- out

    def send_head(self, head: bytes) -> None:
        """Queue a request or answer of HTTP."""
        self._out.append(head)

    def send(self, message: bytes) -> None:
        """Queue a message."""
        first = _RECORD_BYTES - _LENGTH.size
        self._out.append(_LENGTH.pack(len(message)) + message[:first])
        if len(message) > first:
            self._out.append(memoryview(message)[first:])

    def flush(self) -> bool:
        """Send what is queued, as far as the socket takes it; return whether nothing is left."""
        self.blocked = False
        if not self._shake():
            return False
        while self._out:
            try:
                sent = self._line.send(self._out[0])
            except ssl.SSLWantWriteError:
                self.blocked = True
                return False
            except ssl.SSLWantReadError:  # the other end changes its keys
                return False
            rest = memoryview(self._out.popleft())[sent:]
            if rest:
                self._out.appendleft(rest)
        return True

    # ---- in

    def receive_head(self) -> bytes | None:
        """Return the head of HTTP without its empty line, once all of it has come."""
        if not self._shake():
            return None
        while _HEAD_END not in self._head:
            if len(self._head) > HEAD_LIMIT:
                raise BadMessage(
                    f"the head of HTTP: saw {len(self._head)} bytes, needed at most {HEAD_LIMIT}"
                )
            data = self._received()
            if data is None:
                return None
            self._head += data
        head, _, self._early = self._head.partition(_HEAD_END)
        self._head = b""
        return head

    def receive(self) -> Iterator[bytes]:
        """Yield the messages that have come; the loop calls again when there is more.

        Raises:
            BadMessage: A message is longer than it may be.
        """
        early, self._early = self._early, b""
        yield from self._messages(early)
        taken = 0
        while taken < _TURN_BYTES and (data := self._received()) is not None:
            taken += len(data)
            yield from self._messages(data)

    def _received(self) -> bytes | None:
        try:
            data = self._line.recv(_RECORD_BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            return None
        if not data:
            raise EOFError("the connection has ended")
        return data

    def _messages(self, data: bytes) -> Iterator[bytes]:
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
            self._missing -= len(part)
            self._parts.append(part)
            if not self._missing:
                message, self._parts = b"".join(self._parts), []
                yield message

    # ---- the end

    def finish(self) -> None:
        """Tell the other end that nothing more comes; then `discard` until it has ended too, and close.

        Closed at once, with something of the other end unread, the connection would be reset, and what was
        sent last might be lost.
        """
        if not self._is_finished:
            self._is_finished = True
            self._line.shutdown(socket.SHUT_WR)

    def discard(self) -> None:
        """Discard what has come."""
        taken = 0
        while taken < _TURN_BYTES and (data := self._received()) is not None:
            taken += len(data)

    def close(self) -> None:
        """Close the socket."""
        self._line.close()
