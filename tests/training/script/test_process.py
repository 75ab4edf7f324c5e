"""Test the process of a script: nothing that it started outlives it, or its client."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedgc.training.script.process import ScriptProcess
from tests.contract.conftest import alive, eventually

WAIT_S = 30.0
LAUNCHER = """
import os, subprocess, sys, time
rank = subprocess.Popen(["sleep", "300"], start_new_session=True)  # as torchrun starts its ranks
open(sys.argv[1], "w").write(f"{os.getpid()} {rank.pid} {os.environ.get('RANK')}")
time.sleep(300)
"""
CLIENT = """
import sys, time
from pathlib import Path
from fedgc.training.script.process import ScriptProcess
ScriptProcess(sys.argv[1], {}, Path(sys.argv[2]))
time.sleep(300)
"""


@pytest.fixture
def launcher(tmp_path: Path) -> str:
    path = tmp_path / "launcher.py"
    path.write_text(LAUNCHER)
    return f"{path} {tmp_path / 'pids'}"


def pids(folder: Path) -> list[str]:
    path = folder / "pids"
    eventually(lambda: path.exists() and path.read_text(), WAIT_S)
    return path.read_text().split()


def gone(*processes: str) -> bool:
    return not any(alive(int(pid)) for pid in processes)


def test_rank_ends_with_its_killed_launcher(launcher: str, tmp_path: Path):
    script = ScriptProcess(launcher, {}, tmp_path / "log")
    parent, rank, _ = pids(tmp_path)
    os.kill(int(parent), signal.SIGKILL)
    eventually(lambda: script.ended is not None, WAIT_S)
    assert script.why_ended() == "the script ended: killed by SIGKILL"
    script.end(0.0)
    assert gone(rank)


def test_ended_script_takes_stopped_rank_along(launcher: str, tmp_path: Path):
    script = ScriptProcess(launcher, {}, tmp_path / "log")
    parent, rank, _ = pids(tmp_path)
    os.kill(int(rank), signal.SIGSTOP)
    script.end(0.0)
    assert gone(parent, rank)


def test_script_ends_with_its_killed_client(launcher: str, tmp_path: Path):
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, launcher, str(tmp_path / "log")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    parent, rank, _ = pids(tmp_path)
    client.kill()
    client.wait()
    eventually(lambda: gone(parent, rank), WAIT_S)


def test_script_does_not_inherit_rank_of_client(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RANK", "3")
    script = ScriptProcess(launcher, {}, tmp_path / "log")
    assert pids(tmp_path)[2] == "None"
    script.end(0.0)


def test_script_that_ends_by_itself_is_given_time(tmp_path: Path):
    path = tmp_path / "slow.py"
    path.write_text("import time\ntime.sleep(0.3)\nraise SystemExit(4)\n")
    script = ScriptProcess(str(path), {}, tmp_path / "log")
    script.end(WAIT_S)
    assert script.ended == 4


@pytest.mark.parametrize("place_bytes", [80, 120])
def test_kernel_of_notebook_listens_on_no_port(
    place_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that start at the same time would be given the same ports; paths of sockets are short."""
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    cell = """
from pathlib import Path
from ipykernel.kernelapp import IPKernelApp
Path("transport").write_text(IPKernelApp.instance().transport)
"""
    place = tmp_path / ("x" * max(1, place_bytes - len(os.fsencode(tmp_path)) - 1))
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    path = tmp_path / "train.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)]), path)
    process = ScriptProcess(f"{path} --timeout=60", {}, tmp_path / "log")
    eventually(lambda: process.ended is not None, WAIT_S)
    assert process.ended == 0, process.why_ended()
    process.end(0.0)
    assert (tmp_path / "transport").read_text() == "ipc"
