"""Test worker processes: they do their jobs, and end with their owner."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedgc.sim.owned import Processes

WAIT_S = 60.0
OWNER = """
import os, time
from fedgc.sim.owned import Processes

if __name__ == "__main__":
    with Processes(2) as pool:
        print(*{pool.submit(os.getpid).result() for _ in range(2)}, flush=True)
        pool.submit(time.sleep, 600).result()
"""


def test_owned_processes_start_and_run_their_jobs():
    with Processes(1, note_that_it_began) as pool:
        assert pool.submit(os.getenv, "FEDGC_BEGAN").result() == "yes"
        assert pool.submit(os.getpid).result() != os.getpid()


def note_that_it_began() -> None:
    os.environ["FEDGC_BEGAN"] = "yes"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_owned_processes_end_with_their_owner(tmp_path: Path, number: signal.Signals):
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout is not None
        pids = [int(each) for each in owner.stdout.readline().split()]
        assert pids
        assert all(alive(pid) for pid in pids)
        owner.send_signal(number)
        owner.wait(WAIT_S)
    until = time.monotonic() + WAIT_S
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


@pytest.mark.parametrize("kill", [os.kill, os.killpg], ids=["owner", "terminal"])
def test_interrupted_owner_does_not_wait_for_jobs(
    tmp_path: Path, kill: Callable[[int, signal.Signals], None]
):
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline().split()
        kill(owner.pid, signal.SIGINT)
        _, stderr = owner.communicate(timeout=WAIT_S)
    assert stderr.count("Traceback") == 1, "that of the owner, whose script does not handle it"
    assert owner.returncode == -signal.SIGINT


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
