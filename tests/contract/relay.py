"""A TCP relay between clients and a server: it delays, cuts and refuses connections.

The relay sees TLS only: the number of bytes, their direction and their time. That is enough to find a phase:
only a model is a download of megabytes, and only a codeword an upload of megabytes."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Way = Literal["up", "down"]  # from the client, to the client
WAIT_S = 60.0


class Flow:
    """One connection of a client: what passed each way, and a gate for each way."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.port = near.getpeername()[1]
        self.passed: dict[Way, int] = {"up": 0, "down": 0}
        self.ends = (near, far)
        self.over = False
        self.moved = time.monotonic()
        self._gates: dict[Way, threading.Event] = {"up": threading.Event(), "down": threading.Event()}
        self.release()

    def hold(self, *ways: Way) -> None:
        """Stop all data but keep the connection open, as for a silently gone peer."""
        for way in ways:
            self._gates[way].clear()

    def release(self) -> None:
        for gate in self._gates.values():
            gate.set()

    def wait(self, way: Way) -> None:
        self._gates[way].wait()

    def rest(self, quiet_s: float) -> None:
        """Wait until nothing has passed for a while: what was sent is answered."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < self.moved + quiet_s:
            assert time.monotonic() < end, "it never rests"
            time.sleep(0.01)

    def cut(self) -> None:
        """Break the connection; what was held is lost."""
        self.over = True
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.release()


@dataclass
class Trap:
    """Catches the first connection that carries this many bytes in one direction after the trap was set.

    What is caught is held at that byte, in the ways of `holds`, before anything else can happen.
    """

    way: Way
    after: int
    holds: tuple[Way, ...]
    before: dict[Flow, int]
    only: Callable[[Flow], bool]
    caught: Flow | None = None
    sprung: threading.Event = field(default_factory=threading.Event)

    def look(self, flow: Flow) -> None:
        passed = flow.passed[self.way] - self.before.get(flow, 0)
        if self.caught is None and passed >= self.after and self.only(flow):
            flow.hold(*self.holds)
            self.caught = flow
            self.sprung.set()

    def wait(self) -> Flow:
        """Return what was caught; fail if nothing is."""
        assert self.sprung.wait(WAIT_S), f"nothing went {self.way} in {WAIT_S} s"
        assert self.caught is not None
        return self.caught


class Relay:
    """Listen at `address` and connect each admitted connection to `target`."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.flows: list[Flow] = []
        self.turned_away = 0
        self.lets_in: Callable[[Flow], bool] = lambda _: True
        self._traps: list[Trap] = []
        self._moved = time.monotonic()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()
        for flow in self.flows:
            flow.cut()

    @property
    def living(self) -> list[Flow]:
        return [flow for flow in self.flows if not flow.over]

    @contextlib.contextmanager
    def trap(
        self, way: Way, after: int, *holds: Way, only: Callable[[Flow], bool] = lambda _: True
    ) -> Iterator[Trap]:
        """Set a trap; data still held at the end is released."""
        trap = Trap(way, after, holds, {flow: flow.passed[way] for flow in self.flows}, only)
        self._traps.append(trap)
        try:
            yield trap
        finally:
            self._traps.remove(trap)
            if trap.caught is not None:
                trap.caught.release()

    def rest(self, quiet_s: float = 0.15) -> None:
        """Wait until only single lines pass for a while: clients are training."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < self._moved + quiet_s:
            assert time.monotonic() < end, "it never rests"
            time.sleep(0.01)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with socket.socket() as far:
            flow = Flow(near, far)
            if not self.lets_in(flow):
                self.turned_away += 1
                near.close()
                return
            try:
                far.connect(self._target)
            except OSError:
                near.close()
                return
            self.flows.append(flow)
            back = threading.Thread(target=self._pump, args=(flow, far, near, "down"), daemon=True)
            back.start()
            self._pump(flow, near, far, "up")
            back.join()
            flow.cut()

    def _pump(self, flow: Flow, source: socket.socket, sink: socket.socket, way: Way) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                flow.wait(way)
                sink.sendall(data)
                flow.passed[way] += len(data)
                flow.moved = time.monotonic()
                if len(data) > 16_384:
                    self._moved = flow.moved
                for trap in list(self._traps):
                    trap.look(flow)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def owner(port: int, pids: tuple[int, ...]) -> int | None:
    """Return which of these processes has a socket at this port of loopback."""
    inodes = {
        columns[9]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if int((columns := line.split())[1].rpartition(":")[2], 16) == port
    }
    return next((pid for pid in pids if inodes & _sockets(pid)), None)


def _sockets(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(handle.readlink()).removeprefix("socket:[").removesuffix("]"))
    return found
