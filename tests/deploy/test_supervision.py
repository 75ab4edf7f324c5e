"""A supervisor says how its program ended, and ends it when it is let go."""

import subprocess
import sys

import pytest

from fedgc.deploy import supervision


def supervisor(*command: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, supervision.__file__, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


@pytest.mark.parametrize(("words", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)])
def test_the_exit_code_is_the_programs(words: str, code: int):
    held = supervisor("sh", "-c", words)
    assert held.wait(30) == code
    held.communicate()


def test_what_is_let_go_is_ended_with_all_below_it():
    held = supervisor("sh", "-c", "sleep 300 & echo $!; wait")
    assert held.stdout is not None
    below = int(held.stdout.readline())
    assert below in supervision.descendants(held.pid)
    held.communicate(timeout=30)
    assert held.returncode == 0
    assert subprocess.run(["kill", "-0", str(below)], capture_output=True).returncode != 0
