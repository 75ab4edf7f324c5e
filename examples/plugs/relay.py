"""A relay before the session port of a server, which can cut off one site.

While a site is cut off, its bytes wait, in both directions: its connections stay open, and new ones get no
answer, as in a network that loses all packets. A connection belongs to the site whose process has opened it:
the kernel knows it, as all processes are on this machine.
"""

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

LOOPBACK = "127.0.0.1"
PIECE = 65_536
LOCAL, REMOTE, INODE = 1, 2, 9  # columns of the kernel's table of connections
LOOKS, PAUSE_S = 10, 0.05  # a look can miss a row, as the table changes while it is read


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
        for _ in range(LOOKS):
            files = self._files(port)
            for name, pids in self._pids.items():
                if any(_has(pid, files) for pid in pids()):
                    return name
            time.sleep(PAUSE_S)
        return ""

    def _files(self, port: int) -> set[str]:
        """Return the names of the open files of a connection to the relay.

        The local port alone does not tell: a closed connection to another server can have had the same.
        """
        ends = [f"0100007F:{each:04X}" for each in (port, self._port)]
        rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines())
        return {f"socket:[{row[INODE]}]" for row in rows if [row[LOCAL], row[REMOTE]] == ends}


def _has(pid: int, files: set[str]) -> bool:
    """Whether a process has one of these files open."""
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if str(each.readlink()) in files:
                    return True
    return False
