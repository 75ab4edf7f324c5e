"""The local socket between a client and its training script: one JSON object per line.

    script -> client   hello, announce, ready, reached, handed, left, scored
    client -> script   memory, refused, train, validate, hand-in, rest, end

The script finds the socket and a secret in its environment (`environment`). The descriptor of the shared
memory travels with the line `memory`.
"""

import array
import json
import os
import select
import socket
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fedgc.errors import BadMessage, EdgeFailed, text_of

LARGEST_UNSENT: Final = 1 << 20  # bytes of lines that the other side has not read
LARGEST_LINE: Final = 16 * 1024 * 1024  # bytes; a layout of a hundred thousand tensors fits
_READ_BYTES: Final = 1 << 16


class LineSocket:
    """A connected Unix socket that carries lines and file descriptors."""

    def __init__(self, connection: socket.socket, *, takes_descriptors: bool = False) -> None:
        """Without `takes_descriptors`, those that come are closed."""
        self._connection = connection
        self._takes_descriptors = takes_descriptors
        self._unsent = bytearray()
        self._buffer = bytearray()
        self._lines: deque[bytes] = deque()
        self._descriptors: deque[int] = deque()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def fileno(self) -> int:
        """Return the descriptor of the socket, for `select`."""
        return self._connection.fileno()

    def send(self, kind: str, **fields: Any) -> None:  # noqa: ANN401  JSON
        """Send one line; raise EdgeFailed if the other side is gone."""
        try:
            self._connection.sendall(_line(kind, fields))
        except OSError as error:
            raise EdgeFailed(f"local socket: {text_of(error)}") from error

    def give(self, kind: str, descriptor: int) -> None:
        """Send one line and a descriptor with it, without waiting for a reader.

        Raises:
            EdgeFailed: The other side is gone.
            BadMessage: There is no room, as it has not read what came before.
        """
        self.flush()
        line, sent = _line(kind, {}), 0
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
        try:
            if not self._unsent:  # `socket.send_fds` passes no flags on
                sent = self._connection.sendmsg([line], [rights], socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise EdgeFailed(f"local socket: {text_of(error)}") from error
        if not sent:
            raise BadMessage("local socket: saw lines unread, needed a reader of the shared memory")
        self._unsent += line[sent:]

    def post(self, kind: str, **fields: Any) -> None:  # noqa: ANN401  JSON
        """Send one line without waiting for a reader; `flush` sends what is left of it.

        Raises:
            EdgeFailed: The other side is gone.
            BadMessage: It has left too much unread.
        """
        self._unsent += _line(kind, fields)
        self.flush()

    def flush(self) -> None:
        """Send what was posted, as far as there is room; raise as `post` does."""
        try:
            while self._unsent:
                sent = self._connection.send(self._unsent, socket.MSG_DONTWAIT)
                del self._unsent[:sent]
        except BlockingIOError:
            if len(self._unsent) > LARGEST_UNSENT:
                raise BadMessage(
                    f"local socket: saw {LARGEST_UNSENT} bytes unread, needed a reader"
                ) from None
        except OSError as error:
            raise EdgeFailed(f"local socket: {text_of(error)}") from error

    def ready(self, wait_s: float = 0.0) -> bool:
        """Whether there is something to receive, or the other side is gone; wait for it up to `wait_s`."""
        return bool(self._lines) or bool(self._poll.poll(1000 * wait_s))

    def receive(self, wait_s: float | None = None) -> Mapping[str, Any] | None:
        """Return the next line, or None if none comes in time.

        Raises:
            EdgeFailed: The other side is gone.
            BadMessage: The line is not a JSON object with a kind, or too long.
        """
        self._connection.settimeout(wait_s)
        try:
            while not self._lines:
                self._read()
        except (TimeoutError, BlockingIOError):
            return None
        except OSError as error:
            raise EdgeFailed(f"local socket: {text_of(error)}") from error
        finally:
            self._connection.settimeout(None)
        return _parsed(self._lines.popleft())

    def descriptor(self) -> int:
        """Return the descriptor that came with the lines so far; raise BadMessage if none came."""
        if not self._descriptors:
            raise BadMessage("local socket: saw no descriptor, needed the shared memory's")
        return self._descriptors.popleft()

    def close(self) -> None:
        """Close the socket."""
        self._connection.close()

    def _read(self) -> None:
        room = socket.CMSG_LEN(array.array("i").itemsize)
        data, ancillary, _, _ = self._connection.recvmsg(_READ_BYTES, room)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._take(array.array("i", content[: len(content) - len(content) % 4]))
        if not data:
            raise EdgeFailed("local socket: the other side closed it")
        self._split(data)

    def _take(self, descriptors: Iterable[int]) -> None:
        if self._takes_descriptors:
            self._descriptors.extend(descriptors)
            return
        for each in descriptors:
            os.close(each)

    def _split(self, data: bytes) -> None:
        first, *others = data.split(b"\n")  # of what is new: a long line comes in many reads
        self._buffer += first
        if others:
            self._lines.extend((bytes(self._buffer), *others[:-1]))
            self._buffer = bytearray(others[-1])
        if len(self._buffer) > LARGEST_LINE:
            raise BadMessage(f"local socket: saw a line over {LARGEST_LINE} bytes")


def _line(kind: str, fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode() + b"\n"


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"local socket: saw {line[:40]!r}, needed JSON") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise BadMessage(f"local socket: saw {line[:40]!r}, needed an object with a kind")
    return message
