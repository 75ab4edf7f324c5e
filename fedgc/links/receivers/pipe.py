"""A socket between two processes of one server: it carries values, and files by their descriptors.

Both ends are processes of this run, so values travel pickled.
"""

import os
import pickle  # both ends are our own
import socket
import struct
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from errno import EMFILE
from typing import Any, Final

MOST_FILES: Final = 200  # of a message; the system passes on at most 253

_HEAD: Final = struct.Struct("<Q")  # the length of the value that follows
_TIME: Final = struct.Struct("@ll")  # seconds and microseconds of a time limit


def close_all(descriptors: Iterable[int]) -> None:
    """Close files."""
    for each in descriptors:
        os.close(each)


class Pipe:
    """One end of a pair of connected Unix sockets; any thread may send, one receives."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lock = threading.Lock()

    def limit(self, silent_s: float) -> None:
        """Wait no longer than this for a value, or for the rest of one, from the next that is received on."""
        whole_s = int(silent_s)
        limit = _TIME.pack(whole_s, int(1e6 * (silent_s - whole_s)))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def send(self, value: object, descriptors: Sequence[int] = ()) -> None:
        """Send a value and files; the descriptors of this process stay open."""
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        head = _HEAD.pack(len(data))
        with self._lock:
            if descriptors:
                socket.send_fds(self._socket, [head], list(descriptors))
            else:
                self._socket.sendall(head)
            self._socket.sendall(data)

    def receive(self) -> tuple[Any, list[int]]:
        """Wait for the next value and its files.

        Raises:
            EOFError: The other process has ended.
            TimeoutError: It has said nothing for too long; it may still do so.
            OSError: It is silent in the middle of a value, or this process cannot open that many files.
        """
        try:
            head, descriptors, flags, _ = socket.recv_fds(self._socket, _HEAD.size, MOST_FILES)
        except BlockingIOError as error:
            raise TimeoutError("the other process says nothing") from error
        if flags & socket.MSG_CTRUNC:
            close_all(descriptors)
            raise OSError(EMFILE, "too many open files to take those of a message")
        try:
            (size,) = _HEAD.unpack(head + self._exactly(_HEAD.size - len(head)))
            return pickle.loads(self._exactly(size)), descriptors  # noqa: S301  of our own process
        except BaseException:  # no other code knows of its files, and each keeps the memory of a vector
            close_all(descriptors)
            raise

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            come = self._socket.recv_into(rest)
            if not come:
                raise EOFError("the other process has ended")
            rest = rest[come:]
        return data

    def close(self) -> None:
        """Close this end, and wake a thread that receives."""
        with suppress(OSError):  # the other end was first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
