"""Test the folder of a client's connection to its script."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedgc.config import RunConfig
from fedgc.training.script.connection import ScriptConnection, ScriptFacts

KILLED = """
import os, signal
from pathlib import Path
from fedgc.config import RunConfig
from fedgc.training.script.connection import ScriptConnection, ScriptFacts
connection = ScriptConnection(ScriptFacts(RunConfig(script="train.py"), "north", {}, Path("state")))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("t")  # the path of a socket is short
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_folder_left_by_killed_client_is_removed(short: Path, tmp_path: Path):
    subprocess.run([sys.executable, "-c", KILLED], check=False, timeout=60)
    (left,) = short.iterdir()
    facts = ScriptFacts(RunConfig(script="train.py"), "north", {}, tmp_path / "state")
    connection = ScriptConnection(facts)
    (own,) = short.iterdir()
    assert own != left
    connection.close(0.0)
    connection.close(0.0)
    assert not list(short.iterdir())
