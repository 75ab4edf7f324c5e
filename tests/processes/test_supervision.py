"""Test the supervisor: it reports how its program ended, and ends it on release."""

import subprocess
import sys

import pytest

from fedgc.processes import supervision


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
