"""Test file permissions: fedgc's files are private to their owner under any umask."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from fedgc.store.checkpoint import Checkpoint, save
from fedgc.store.database import Store
from fedgc.store.records import Ended
from fedgc.store.spool import Aside


@pytest.fixture(autouse=True)
def open_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Return what below this folder others may read, enter or write."""
    found = [folder, *folder.rglob("*")]
    return [str(path.relative_to(folder)) for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_store_checkpoints_and_spool_are_private(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("FEDGC_DB", raising=False)
    state = tmp_path / "state" / "fedgc"
    with Store.open() as store:
        store.runs()
        assert (state / "fedgc.db").exists()
        save(state / "runs" / "r", Checkpoint(1, 1, np.zeros(2, np.float32), b"", "{}"), keep=1)
        Aside(state / "aside.jsonl").add([(Ended(0.0, "r", "failed"), "s")])
        assert len(list(state.rglob("*"))) >= 5
        assert open_to_others(tmp_path / "state") == []


def test_open_permissions_of_state_are_closed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("FEDGC_DB", raising=False)
    state = tmp_path / "fedgc"
    with Store.open():
        pass
    state.chmod(0o755)
    (state / "fedgc.db").chmod(0o644)
    with Store.open():
        assert open_to_others(state) == []


def test_folder_chosen_by_user_keeps_its_mode(tmp_path):
    chosen = tmp_path / "shared"
    chosen.mkdir(mode=0o755)
    with Store.open(str(chosen / "fedgc.db")):
        assert stat.S_IMODE(chosen.stat().st_mode) == 0o755
        assert stat.S_IMODE((chosen / "fedgc.db").stat().st_mode) == 0o600
    save(chosen, Checkpoint(1, 1, np.zeros(2, np.float32), b"", "{}"), keep=1)
    assert stat.S_IMODE(chosen.stat().st_mode) == 0o755
