"""Test the status of a run: by its server's process if visible, else by silence."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fedgc.store.engine import runs_folder
from fedgc.store.liveness import (
    ALIVE_S,
    CRASHED,
    LOCK,
    SERVER,
    SUPERLINK,
    Process,
    advice_for,
    alive,
    busy_with,
    ended,
    reason_of,
    state_of,
    this_process,
)
from fedgc.store.views import Run

PROGRAM = (
    "from fedgc.store.liveness import this_process; import json, sys; "
    "print(json.dumps(this_process().words()), flush=True); sys.stdin.read(); sys.exit(3)"
)
RUN = Run("r", "digits", {}, "running", "", 1000.0, None, 3, 3, {}, 1000.0)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are seen in /proc")


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], Run]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        words = json.loads(process.stdout.readline())
        yield process, replace(RUN, present={"round": 4, SERVER: words}, models=3)
        process.kill()


def until_dead(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it stays to be collected


def test_silent_run_is_running_while_server_exists(server):
    _, run = server
    assert alive(run, now=run.heard + 10 * ALIVE_S)
    assert (state_of(run), reason_of(run), advice_for(run)) == ("running", "", "")


def test_killed_server_is_reported_at_once_with_signal(server):
    process, run = server
    process.kill()
    until_dead(process.pid)
    assert not alive(run, now=run.heard)
    assert state_of(run) == CRASHED
    assert reason_of(run).startswith("the server process was killed by SIGKILL in round 4, last heard of at ")
    assert reason_of(run).endswith(time.strftime(" %Z")), "reports have other times in UTC"
    assert advice_for(run) == "`fedgc run --resume r` goes on"
    process.wait()  # its exit status is no longer available
    assert reason_of(run).startswith("the server process is gone in round 4")
    closed = replace(run, last_round=4)
    assert reason_of(closed).startswith("the server process is gone after round 4")
    assert advice_for(replace(run, models=0)) == "", "there is nothing to go on from"


def test_command_that_restarts_run_is_named_while_it_is_there(server, monkeypatch, tmp_path):
    process, run = server
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    process.kill()
    until_dead(process.pid)
    lock = runs_folder("", os.environ) / "r" / LOCK
    lock.parent.mkdir(parents=True)
    lock.write_text(json.dumps(this_process().words()))
    command = f"process {os.getpid()} has started it and still runs; `fedgc serve` resumes it by itself"
    assert advice_for(run) == command
    for words in (run.present[SERVER], {}, []):
        lock.write_text(json.dumps(words))
        assert advice_for(run) == "`fedgc run --resume r` goes on"


def test_ended_server_is_reported_with_exit_code(server):
    process, run = server
    assert process.stdin is not None
    process.stdin.close()
    until_dead(process.pid)
    assert reason_of(run).startswith("the server process ended with exit code 3 in round 4")


def test_reused_process_id_is_other_process():
    ours = this_process()
    assert ended(ours.words()) == ""
    assert ended(replace(ours, began=ours.began + 1).words()) == "is gone"


@pytest.mark.parametrize("words", [Process("elsewhere", 1, 0).words(), Process("", 1, 0).words(), {}])
def test_remote_process_is_judged_by_silence(words):
    run = replace(RUN, present={SERVER: words})
    assert ended(words) is None
    assert alive(run, now=run.heard + ALIVE_S - 1)
    assert not alive(run, now=run.heard + ALIVE_S + 1)
    assert alive(run, now=run.heard - ALIVE_S + 1), "two machines have two clocks"
    assert not alive(run, now=run.heard - ALIVE_S - 1), "it would be for as long as their clocks differ"
    assert state_of(run) == "running"


def test_reported_end_of_run_is_final(server):
    process, run = server
    process.kill()
    until_dead(process.pid)
    over = replace(run, state="failed", reason="no client came")
    assert (state_of(over), reason_of(over), advice_for(over)) == ("failed", "no client came", "")
    assert not alive(over, now=time.time())


def test_run_of_stock_clients_keeps_no_supernode_busy():
    own, stock = (
        replace(RUN, run=name, settings={"client.app": name}, present={SUPERLINK: "there"}, heard=time.time())
        for name in ("fedgc", "stock")
    )
    assert busy_with([own, stock], "r", "there", time.time()) == ("fedgc",)
