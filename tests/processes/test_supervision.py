"""Test the supervisor: it reports how its program ended, and ends it on release."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedgc.flower.departure import Departure
from fedgc.processes import supervision

CLIENT = """
import os, signal, sys, time
folder = os.environ["FEDGC_LEAVE"]
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
open(os.path.join(folder, f"serves-{os.getpid()}"), "w").close()
print("client", flush=True)
signal.sigwait([signal.SIGTERM])
print("asked", os.path.exists(os.path.join(folder, "asked")), flush=True)
sys.stdin.readline()
"""
NODE = (
    "trap 'echo node; exit 3' TERM; {python} -c \"$CLIENT\" <{pipe} & wait; while true; do sleep 0.05; done"
)


def supervisor(*command: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, supervision.__file__, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


@pytest.mark.parametrize(("words", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)])
def test_exit_code_is_that_of_program(words: str, code: int):
    held = supervisor("sh", "-c", words)
    assert held.wait(30) == code
    held.communicate()


def test_released_process_is_ended_with_its_children():
    held = supervisor("sh", "-c", "sleep 300 & echo $!; wait")
    assert held.stdout is not None
    below = int(held.stdout.readline())
    assert below in supervision.descendants(held.pid)
    held.communicate(timeout=30)
    assert held.returncode == 0
    assert subprocess.run(["kill", "-0", str(below)], capture_output=True).returncode != 0


def test_terminated_supervisor_passes_signal_on():
    held = supervisor("sh", "-c", "trap 'exit 3' TERM; echo ready; while true; do sleep 0.05; done")
    assert held.stdout is not None
    held.stdout.readline()
    held.terminate()
    assert held.wait(30) == 3
    held.communicate()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A supervised program whose client ends once something is written into `pipe`."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setenv("CLIENT", CLIENT)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(supervision, "DELIVERY_S", 0.0)
    held = supervisor("--leave", "300", "sh", "-c", NODE.format(python=sys.executable, pipe=pipe))
    with pipe.open("w") as line:
        assert held.stdout is not None
        assert held.stdout.readline() == b"client\n"
        yield held, line
    held.communicate(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_client_leaves_before_its_node_ends(node, tmp_path: Path, number: signal.Signals):
    held, line = node
    held.send_signal(number)
    assert held.stdout.readline() == b"asked True\n"
    line.write("over\n")
    line.flush()
    assert held.stdout.readline() == b"node\n"
    assert held.wait(60) == 3
    assert not list(tmp_path.glob("fedgc-leave-*"))


def test_second_signal_ends_node_at_once(node):
    held, _ = node
    held.terminate()
    assert held.stdout.readline() == b"asked True\n"
    held.terminate()
    assert held.stdout.readline() == b"node\n"
    assert held.wait(60) == 3


def test_node_ends_without_its_folder(node, tmp_path: Path):
    held, _ = node
    (folder,) = tmp_path.glob("fedgc-leave-*")
    shutil.rmtree(folder)
    held.terminate()
    assert held.wait(60) == 3


def test_client_is_asked_by_signal_where_nothing_can_be_written(node, tmp_path: Path):
    held, line = node
    (folder,) = tmp_path.glob("fedgc-leave-*")
    (folder / "asked.new").mkdir()
    held.terminate()
    assert held.stdout.readline() == b"asked False\n"
    line.write("over\n")
    line.flush()
    assert held.stdout.readline() == b"node\n"
    assert held.wait(60) == 3


def test_request_makes_missing_folder_again(tmp_path: Path):
    folder = tmp_path / "fedgc-leave-x"
    supervision.ask_to_leave(folder, os.getpid(), 30.0)
    assert 0.0 < (Departure(folder=folder).left_s or 0.0) <= 30.0


def test_client_that_does_not_leave_is_waited_for_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setenv("CLIENT", CLIENT)
    held = supervisor("--leave", "0.5", "sh", "-c", NODE.format(python=sys.executable, pipe=pipe))
    with pipe.open("w"):
        assert held.stdout is not None
        held.stdout.readline()
        held.terminate()
        assert held.stdout.readline() == b"asked True\n"
        assert held.stdout.readline() == b"node\n"
        assert held.wait(60) == 3
    held.communicate()


def test_supervisor_alone_does_not_need_its_input():
    held = subprocess.Popen(
        [sys.executable, supervision.__file__, "--alone", "sh", "-c", "sleep 1; exit 5"],
        stdin=subprocess.DEVNULL,
    )
    assert held.wait(60) == 5
