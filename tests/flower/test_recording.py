"""Test that the records of a run whose store failed are written when the run goes on."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedgc.config import RunConfig
from fedgc.flower.recording import recorded
from fedgc.store.database import Store

WAIT_S = 30.0
FAILING = """
import sys
from fedgc.config import RunConfig
from fedgc.flower.recording import recorded

with recorded(RunConfig(), sys.argv[1], 111) as recording:
    recording.sink.audited("joined", "north", "with a key")
    assert recording.keeper.flush(30.0)
    print(flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The address of a store that cannot be opened yet."""
    path = tmp_path / "fedgc.db"
    path.write_text("this is no database" * 100)
    monkeypatch.setenv("FEDGC_DB", str(path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return path


def record(run: str, flower_run: int) -> None:
    with recorded(RunConfig(), run, flower_run) as recording:
        assert recording.keeper.settled(WAIT_S)


def audited(store: Path) -> list[tuple[str, str]]:
    with Store.open(str(store)) as opened:
        return [(each.run, each.who) for each in opened.audited()]


def failing(run: str) -> "subprocess.Popen[str]":
    """A process that records a run, and whose store fails; its standard input ends it."""
    process = subprocess.Popen(
        [sys.executable, "-c", FAILING, run], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def test_records_wait_for_next_process_of_their_run(store: Path):
    with failing("ward"):
        pass
    store.unlink()
    record("other", 222)
    assert audited(store) == []
    record("ward", 333)
    assert ("ward", "north") in audited(store)
    assert not list((store.parent / "state").rglob("aside*.jsonl"))


def test_two_processes_of_one_run_keep_records_apart(store: Path):
    with failing("ward"), recorded(RunConfig(), "ward", 222) as recording:
        assert recording.keeper.flush(WAIT_S)
        assert len(list((store.parent / "state").rglob("aside*.jsonl"))) == 2
