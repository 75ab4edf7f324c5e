"""Test that a server names a port that another program has, before it writes anything."""

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgc.cli.commands import app
from fedgc.deploy import processes
from fedgc.deploy.ports import must_be_free
from fedgc.errors import EdgeFailed


def test_server_on_used_port_writes_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(processes, "SUPERLINK_PORT", port := taken.getsockname()[1])
        words = ["deploy", "server", "--insecure", "--state", str(tmp_path)]
        said = CliRunner().invoke(app, words)
    assert isinstance(said.exception, EdgeFailed)
    assert str(said.exception) == (
        f"--host (FEDGC_HOST) 127.0.0.1: port {port} of the SuperLink: saw Address already in use, needed it "
        "free: end what listens there (`ss -ltnp` names it), or give another address by --host"
    )
    assert not (tmp_path / "flower").exists()


def test_port_of_sessions_is_checked_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "SUPERLINK_PORT", 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(processes, "SESSION_PORT", taken.getsockname()[1])
        processes.ServerPlace("", tmp_path, tmp_path, "127.0.0.1", insecure=True).check_ports()
        with pytest.raises(EdgeFailed, match="of the sessions: saw Address already in use"):
            processes.ServerPlace("a.org:443", tmp_path, tmp_path, "127.0.0.1").check_ports()


def test_address_of_other_machine_is_refused():
    with pytest.raises(EdgeFailed, match="saw Cannot assign requested address"):
        must_be_free("192.0.2.1", {"the SuperLink": 0})
