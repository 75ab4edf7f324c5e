"""Wakes a thread that waits for sockets."""

import contextlib
import socket
from typing import Final

_MANY: Final = 4096  # wakes that are taken back at once


class Waker:
    """Two connected sockets: a thread waits for one of them, and another thread writes to the other."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        for each in (self._ours, self._theirs):
            each.setblocking(False)

    def fileno(self) -> int:
        """Return the number of the socket to wait for."""
        return self._ours.fileno()

    def wake(self) -> None:
        """Wake the thread, now or when it waits next; from any thread."""
        with contextlib.suppress(OSError):  # closed, or full of earlier wakes
            self._theirs.send(b"\0")

    def clear(self) -> None:
        """Take back all wakes."""
        with contextlib.suppress(BlockingIOError):
            self._ours.recv(_MANY)

    def close(self) -> None:
        """Close both sockets."""
        self._ours.close()
        self._theirs.close()
