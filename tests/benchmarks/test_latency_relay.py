"""Tests of the relay that gives benchmarks the latency of a network."""

import socket
import threading
import time

import pytest

from benchmarks.latency_relay import delayed
from fedgc.deploy.local_federation import free_port

DELAY_S = 0.05
DATA = bytes(range(256)) * 4000


@pytest.fixture
def echo():
    """Return the port of a server that sends back what comes over its first connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            plain, _ = listening.accept()
            with plain:
                while data := plain.recv(2**16):
                    plain.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


def connected(port: int) -> socket.socket:
    """Connect to the relay, whose process may still be starting."""
    for _ in range(200):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=30.0)
        except ConnectionRefusedError:
            time.sleep(0.05)
    pytest.fail("the relay accepts no connection")


def test_bytes_come_in_order_after_both_delays(echo):
    with delayed(echo, DELAY_S) as near, connected(near) as end:
        sending = threading.Thread(target=end.sendall, args=(DATA,))
        began = time.monotonic()
        sending.start()
        came = end.recv(2**16)
        assert time.monotonic() - began >= 2 * DELAY_S
        while len(came) < len(DATA):
            came += end.recv(2**16)
        sending.join()
        assert came == DATA


def test_end_of_other_server_is_passed_on():
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        delayed(listening.getsockname()[1], DELAY_S) as near,
        connected(near) as end,
    ):
        plain, _ = listening.accept()
        plain.sendall(b"last")
        plain.close()
        assert end.recv(2**16) == b"last"
        assert end.recv(2**16) == b""


def test_connection_ends_where_server_is_missing():
    with delayed(free_port(), DELAY_S) as near, connected(near) as end:
        assert end.recv(2**16) == b""
