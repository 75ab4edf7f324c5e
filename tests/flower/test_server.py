"""Test the ServerApp's refusals before training; contract tests start whole runs."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedgc.config import RunConfig
from fedgc.errors import BadTask, EdgeFailed, Unusable
from fedgc.flower.client import client_app
from fedgc.flower.run_memory import _resumed
from fedgc.flower.server import server_app
from fedgc.flower.strategy import FedGC
from fedgc.store import checkpoint
from fedgc.store.checkpoint import Checkpoint


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("made", [client_app, FedGC])
def test_function_in_place_of_task_is_refused(made) -> None:
    with pytest.raises(BadTask, match="saw a function, needed a Task; a function is named by"):
        made(lambda _: None)


def begin(**settings: str | int) -> None:
    table = {**RunConfig(work="coded").table(), **settings}
    server_app()(grid=None, context=Context(1, 0, {}, RecordDict(), table))


def saved(folder: Path, round_: int) -> Path:
    return checkpoint.save(folder, Checkpoint(round_, 1, np.zeros(2, np.float32), b"", "{}"), keep=1)


def test_new_run_over_models_of_other_run_is_refused(apart: Path) -> None:
    kept = saved(apart / "fedgc" / "runs" / "same", 3)
    with pytest.raises(Unusable, match="run same: there is one of that name already"):
        begin(run="same")
    assert kept.exists()


def test_resume_with_fewer_rounds_than_done_is_refused(apart: Path) -> None:
    saved(apart / "fedgc" / "runs" / "far", 27)
    with pytest.raises(Unusable, match="setting rounds: saw 1, the run is at 27, needed more"):
        begin(resume="far", rounds=1)


def released(folder: Path, version: int) -> Path:
    spent = f'{{"spent": {version}.0, "clip": 1.0}}'
    made = Checkpoint(version, version, np.zeros(2, np.float32), b"", "{}", privacy=spent)
    return checkpoint.save(folder, made, keep=9)


def test_restored_private_run_keeps_all_that_is_spent(apart: Path) -> None:
    for version in (1, 2, 3):
        released(apart / "private", version)
    checkpoint.restore(apart / "private", 1)
    found = _resumed(RunConfig(resume="private", rounds=9), apart)
    assert (found.version, found.privacy) == (1, '{"spent": 3.0, "clip": 1.0}')


def test_private_run_does_not_skip_damaged_model(apart: Path) -> None:
    newest = [released(apart / "private", version) for version in (1, 2)][-1]
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    config = RunConfig(resume="private", rounds=9)
    with pytest.raises(Unusable, match="restore 1` takes this one"):
        _resumed(config, apart)
    checkpoint.restore(apart / "private", 1)
    assert _resumed(config, apart).privacy == '{"spent": 2.0, "clip": 1.0}'
    next((apart / "private").glob("aside-*/model-*2.fedgc")).write_bytes(b"")
    with pytest.raises(EdgeFailed, match="checkpoint"):
        _resumed(config, apart)


@pytest.mark.parametrize("name", ["history.checkpoint-dir", "history.log-file"])
def test_unwritable_output_is_refused(apart: Path, name: str) -> None:
    (apart / "file").write_text("")
    place = apart / "file" if name.endswith("dir") else apart
    with pytest.raises(Unusable, match=f"setting {name}: saw {place}"):
        begin(**{name: str(place)})
