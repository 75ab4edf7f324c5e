"""Test the ports and names of a local federation."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fedgc.deploy import local_federation
from fedgc.deploy.local_federation import PORTS, PORTS_EACH, LocalFederation, Node, free_port
from fedgc.errors import BadSetting
from fedgc.processes import supervision


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


WAITING = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.01)
pathlib.Path(sys.argv[3]).write_text("saved")
"""


def test_clients_may_end_their_scripts_after_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a script does that tests and saves its model after the loop."""
    monkeypatch.setattr(local_federation, "SOON_S", 0.0)
    go, saved = tmp_path / "go", tmp_path / "saved"
    federation = LocalFederation([Node("north")], folder=tmp_path / "federation")
    command = [sys.executable, "-c", WAITING, supervision.CLIENT_APP, str(go), str(saved)]
    program = [sys.executable, supervision.__file__, *command]
    supervisor = subprocess.Popen(program, stdin=subprocess.PIPE)
    federation._supervisors["north"] = supervisor
    try:
        while not federation.pids("north"):
            assert supervisor.poll() is None, "it has ended before its program was seen"
        federation.await_clients(go.touch)
        assert saved.read_text() == "saved"
    finally:
        federation.close()


LEFT = """
import os
from fedgc.deploy.local_federation import LocalFederation

print(LocalFederation(0).folder, flush=True)
os._exit(0)  # as SIGKILL ends it
"""


def test_folder_of_killed_federation_is_removed_by_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = subprocess.run(
        [sys.executable, "-c", LEFT],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(made.stdout.strip()).is_dir()
    living = LocalFederation(0)
    other = LocalFederation(0)
    assert set(tmp_path.iterdir()) == {living.folder, other.folder}
    for each in (living, other):
        each.close()
    assert list(tmp_path.iterdir()) == []


def test_close_that_is_interrupted_removes_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a second Ctrl-C."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    federation = LocalFederation(0)

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(federation.superlink, "close", interrupt)
    with pytest.raises(KeyboardInterrupt):
        federation.close()
    assert list(tmp_path.iterdir()) == []


def test_close_ends_question_that_ctrl_c_has_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a second Ctrl-C does while Flower is asked to stop the run."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    federation = LocalFederation(0)
    (program := federation.folder / "programs" / "flwr").parent.mkdir()
    program.write_text("#!/bin/sh\nsleep 1\nkill -INT $PPID\nexec sleep 60\n")
    program.chmod(0o700)
    with pytest.raises(KeyboardInterrupt):
        federation.superlink.stop(1)
    (asking,) = supervision.descendants(os.getpid())
    federation.close()
    assert asking not in supervision.descendants(os.getpid())
