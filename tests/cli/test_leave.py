"""Test `fedgc leave`: which clients it finds, asks and waits for."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgc.cli.leave import leave, local_clients
from fedgc.errors import EdgeFailed, Unusable
from fedgc.processes import supervision

NAME = f"leave-test-{os.getpid()}"
CLIENT = (
    "import os, signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); "
    "open(os.path.join(os.environ['FEDGC_LEAVE'], f'serves-{os.getpid()}'), 'w').close(); "
    "print('ready', flush=True); signal.pause()"
)
NODE = '#!/bin/sh\n{python} -c "$CLIENT" &\nwait\nwhile true; do sleep 0.1; done\n'


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["subprocess.Popen[bytes]"]:
    """A supervised program of the SuperNode's name, with a client that ends when it is asked."""
    program = tmp_path / "flower-supernode"
    program.write_text(NODE.format(python=sys.executable))
    program.chmod(0o700)
    monkeypatch.setenv("CLIENT", CLIENT)
    words = ["--leave", "60", str(program), "--node-config", f'name="{NAME}" pace-s=1']
    held = subprocess.Popen(
        [sys.executable, supervision.__file__, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert held.stdout is not None
    assert held.stdout.readline() == b"ready\n"
    yield held
    held.communicate(timeout=60)


def test_named_client_leaves_and_its_node_stays(
    node: "subprocess.Popen[bytes]", capsys: pytest.CaptureFixture[str]
):
    (client,) = (each for each in local_clients() if each.name == NAME)
    assert client.leaves
    leave([NAME], grace_s=60.0)
    assert capsys.readouterr().out == f"{NAME} has left\n"
    assert node.poll() is None
    assert not client.leaves


def test_client_that_does_not_leave_in_time_fails_command(
    node: "subprocess.Popen[bytes]", capsys: pytest.CaptureFixture[str]
):
    (client,) = (each for each in local_clients() if each.name == NAME)
    (client.folder / supervision.OWES).touch()  # work that nothing here will hand in
    with pytest.raises(EdgeFailed, match=rf"after 0.5 s: saw {NAME} still in a run, needed a longer --grace"):
        leave([NAME], grace_s=0.5)
    assert capsys.readouterr().out == ""


def test_unknown_client_is_named():
    with pytest.raises(Unusable, match=r"clients on this machine: saw .*, needed nobody-here"):
        leave(["nobody-here"], grace_s=1.0)


@pytest.mark.parametrize(("names", "every"), [([], False), (["north"], True)])
def test_command_needs_names_or_all(names: list[str], every: bool):
    with pytest.raises(Unusable, match="needed one of them"):
        leave(names, every=every, grace_s=1.0)


@pytest.mark.parametrize("grace_s", [-1.0, float("inf"), float("nan")])
def test_impossible_grace_is_refused(grace_s: float):
    with pytest.raises(Unusable, match="--grace: saw"):
        leave(["north"], grace_s=grace_s)
