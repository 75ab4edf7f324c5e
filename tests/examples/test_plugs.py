"""Test the parts of the example `plugs` that need no federation: its relay, and its random buttons."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice

import pytest

from benchmarks.served import eventually
from examples.plugs.fleet import BUTTONS
from examples.plugs.presses import planned
from examples.plugs.relay import LOOPBACK, Relay
from fedgc.deploy.local_federation import free_port
from fedgc.errors import EdgeFailed

CLIENT = """
import socket, sys
stream = socket.socket()
stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
stream.bind(("127.0.0.1", int(sys.argv[2])))
stream.connect(("127.0.0.1", int(sys.argv[1])))
for line in sys.stdin:
    stream.sendall(line.encode())
    print(stream.recv(100).decode(), end="", flush=True)
"""


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets; its port."""

    def answer(stream: socket.socket) -> None:
        while piece := stream.recv(100):
            stream.sendall(piece)
        stream.close()

    def accept() -> None:
        while True:
            try:
                stream, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(stream,), daemon=True).start()

    listener = socket.create_server((LOOPBACK, 0))
    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


class Site:
    """A process that says lines to a server, and hears its answers."""

    def __init__(self, port: int, local: int = 0) -> None:
        words = [sys.executable, "-c", CLIENT, str(port), str(local)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.heard: list[str] = []
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        self.heard += iter(self.process.stdout.readline, "")

    def say(self, line: str) -> None:
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def test_relay_holds_bytes_of_site_that_is_cut_off(echo: int):
    port, sites = free_port(), {}
    pids = {name: (lambda name=name: [sites[name].process.pid]) for name in ("a", "b")}
    with Relay(port, echo, pids) as relay:
        sites |= {name: Site(port) for name in pids}
        try:
            for site in sites.values():
                site.say("one")
                eventually(lambda site=site: site.heard == ["one\n"])
            relay.cut("a")
            for site in sites.values():
                site.say("two")
            eventually(lambda: sites["b"].heard == ["one\n", "two\n"])
            assert sites["a"].heard == ["one\n"]
            relay.mend("a")
            eventually(lambda: sites["a"].heard == ["one\n", "two\n"])
        finally:
            for site in sites.values():
                site.end()


def test_relay_knows_site_whose_port_had_closed_connections(echo: int):
    local = 0
    for _ in range(20):  # the kernel lists the connections of a port in any order
        with socket.create_server((LOOPBACK, 0)) as other, socket.socket() as used:
            used.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            used.bind((LOOPBACK, local))
            used.connect(other.getsockname())
            local = used.getsockname()[1]
            stream, _ = other.accept()
            used.close()
            stream.close()
    port, sites = free_port(), {}
    with Relay(port, echo, {"a": lambda: [sites["a"].process.pid]}) as relay:
        relay.cut("a")
        sites["a"] = Site(port, local)
        try:
            sites["a"].say("one")
            with pytest.raises(EdgeFailed):
                eventually(lambda: sites["a"].heard, 1)
            relay.mend("a")
            eventually(lambda: sites["a"].heard == ["one\n"])
        finally:
            sites["a"].end()


def test_relay_closes_connections_that_server_refuses():
    with Relay(port := free_port(), free_port(), {}), socket.create_connection((LOOPBACK, port)) as stream:
        assert stream.recv(1) == b""


def test_random_buttons_are_those_of_page():
    first = list(islice(planned(7), 30))
    assert first == list(islice(planned(7), 30))
    assert all(each.button in BUTTONS[each.name] for each in first)
    assert {each.button for each in first} == {each for buttons in BUTTONS.values() for each in buttons}
