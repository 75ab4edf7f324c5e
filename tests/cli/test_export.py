"""Test `fedgc export` and `fedgc model export` at signals; tests/export tests the files."""

import os
import signal
from pathlib import Path

import pytest

from fedgc.cli import export as exporting
from fedgc.cli import model
from fedgc.files import whole
from fedgc.store import checkpoint
from fedgc.store.database import Store
from tests.web.run_of_four import tell_a_run


def ended_halfway(path: Path) -> None:
    with whole(path):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "this would leave a part of the file"
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("signals")
def test_export_that_is_ended_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    with Store.open() as store:
        tell_a_run(store)
    (folder := tmp_path / "tables").mkdir()
    monkeypatch.setattr(exporting, "FORMS", {"csv": lambda *_: ended_halfway(folder / "rounds.csv")})
    with pytest.raises(KeyboardInterrupt):
        exporting.export("csv", str(folder), None)
    monkeypatch.setattr(checkpoint, "pinned", lambda _: None)
    for name in ("_metrics", "_chosen"):
        monkeypatch.setattr(model, name, lambda *_, **__: None)
    monkeypatch.setattr(model, "_figures", lambda *_: {})
    monkeypatch.setattr(model, "_write", lambda path, *_: ended_halfway(path))
    with pytest.raises(KeyboardInterrupt):
        model.export(folder / "model.pt", None, None)
    assert list(folder.iterdir()) == []
