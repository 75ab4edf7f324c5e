"""Test SIGKILL while rounds are written: acknowledged rounds are kept and the file is sound."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedgc.store.database import Store

WRITER = Path(__file__).with_name("writer.py")
CLIENTS = 200


def start(url, run, first):
    words = [sys.executable, str(WRITER), url, run, str(first), str(CLIENTS)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def kill_after(process, acknowledged, extra_s):
    """Let the run acknowledge so many rounds, kill it a moment later; return the last acknowledged."""
    last = -1
    for _ in range(acknowledged):
        line = process.stdout.readline()
        assert line, f"the writer ended by itself: {process.wait(10)}"
        last = int(line)
    time.sleep(extra_s)
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read()
    assert process.wait(30) == -signal.SIGKILL
    process.stdout.close()
    whole = rest[: rest.rfind("\n") + 1].split()
    return int(whole[-1]) if whole else last


def check(url, last):
    with Store.open(url) as store:
        assert store.check().faults == ()
        assert not list(Path(url).parent.glob("*.aside"))
        for run, number in last.items():
            rounds = store.rounds(run)
            assert [each.row.round for each in rounds[: number + 1]] == list(range(number + 1))
            assert len(rounds) <= number + 2  # at most the round whose acknowledgement died with the run
            assert {each.clients for each in rounds} == {CLIENTS}
            assert len(store.client_rows(run, number)) == CLIENTS
            told = {each.what for each in store.audited(limit=10**6) if each.who == run}
            assert told.issuperset(map(str, range(number + 1)))


@pytest.fixture
def chance():
    return np.random.default_rng(5)


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_acknowledged_rounds_survive_kills(tmp_path, chance, kills):
    url, last = str(tmp_path / "store.db"), -1
    for _ in range(kills):
        process = start(url, "r1", last + 1)
        last = kill_after(process, chance.integers(1, 9), chance.random() * 0.05)
        check(url, {"r1": last})


def test_two_runs_write_concurrently_and_one_is_killed(tmp_path, chance):
    url = str(tmp_path / "store.db")
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(start(url, run, 0)) for run in ("r1", "r2"))
        stack.callback(second.kill)
        stack.callback(first.kill)
        killed = kill_after(first, 5, chance.random() * 0.05)
        cache_files = kill_after(second, 10, 0.0)
    check(url, {"r1": killed, "r2": cache_files})
