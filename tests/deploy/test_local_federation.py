"""Test the ports and names of a local federation."""

import socket
from pathlib import Path

import pytest

from fedgc.deploy.local_federation import PORTS, PORTS_EACH, LocalFederation, Node, free_port
from fedgc.errors import BadSetting


def test_program_port_is_free_and_outside_ephemeral_range() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if first < PORTS.stop:
        pytest.skip(f"this system gives out ports from {first} on, not from {PORTS.stop}")
    taken = free_port()
    with socket.create_server(("127.0.0.1", taken)):
        found = [free_port() for _ in range(PORTS_EACH - 1)]
        assert free_port() != taken, "its turn has come again"
    assert len(set(found) - {taken}) == PORTS_EACH - 1
    assert not [port for port in found if first <= port <= last]


def test_node_named_superlink_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="needed another"):
        LocalFederation([Node("superlink")], folder=tmp_path)
