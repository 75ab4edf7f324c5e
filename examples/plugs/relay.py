"""A relay before the session port of a server, which can cut off one site.

While a site is cut off, its bytes wait, in both directions: its connections stay open, and new ones get no
answer, as in a network that loses all packets. A connection belongs to the site whose process has opened it:
the kernel knows it, as all processes are on this machine.
"""

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

LOOPBACK = "127.0.0.1"
PIECE = 65_536
LOCAL, INODE = 1, 9  # columns of the kernel's table of connections


class Relay:
    """Passes on all bytes of all sites that are not cut off."""

    def __init__(self, port: int, server: int, pids: Mapping[str, Callable[[], Sequence[int]]]) -> None:
        """Listen on a port, and connect to that of the server.

        Args:
            port: The port to listen on.
            server: The port of the server.
            pids: By the name of a site, a function that returns the ids of its processes.
        """
        self._port, self._server, self._pids = port, server, pids
        self._open = {name: threading.Event() for name in pids}
        for each in self._open.values():
            each.set()
        self._listener = socket.create_server((LOOPBACK, port))

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for name in self._open:
            self.mend(name)

    def cut(self, name: str) -> None:
        """Let no byte of a site pass."""
        self._open[name].clear()

    def mend(self, name: str) -> None:
        """Let the bytes of a site pass again."""
        self._open[name].set()

    def _accept(self) -> None:
        with suppress(OSError):  # the relay is closed
            while True:
                client, (_, port) = self._listener.accept()
                threading.Thread(target=self._connect, args=(client, port), daemon=True).start()

    def _connect(self, client: socket.socket, port: int) -> None:
        name = self._owner(port)
        self._wait(name)
        with client, suppress(OSError), socket.create_connection((LOOPBACK, self._server)) as server:
            answers = threading.Thread(target=self._pass_on, args=(server, client, name), daemon=True)
            answers.start()
            self._pass_on(client, server, name)
            answers.join()

    def _pass_on(self, source: socket.socket, target: socket.socket, name: str) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE):
                self._wait(name)
                target.sendall(piece)
        self._wait(name)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _wait(self, name: str) -> None:
        if name:
            self._open[name].wait()

    def _owner(self, port: int) -> str:
        """Return the site whose process has this local port; empty if it is none's."""
        address = f"0100007F:{port:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        file = next((f"socket:[{row[INODE]}]" for row in rows if row[LOCAL] == address), "")
        return next((name for name, pids in self._pids.items() if any(_has(pid, file) for pid in pids())), "")


def _has(pid: int, file: str) -> bool:
    """Whether a process has an open file of this name."""
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if str(each.readlink()) == file:
                    return True
    return False
