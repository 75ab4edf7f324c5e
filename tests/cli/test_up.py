"""`fedgc up`, `fedgc down`: which federation is taken for standing, and which never is."""

import fcntl
import json
import os
from pathlib import Path

import pytest

from fedgc.cli import up
from fedgc.errors import EdgeFailed, Unusable

THERE = {"pid": 1, "address": "127.0.0.1:1", "home": "/x", "clients": 3}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = tmp_path / "fedgc" / "up"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def held(folder: Path):
    with (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def test_a_number_that_was_written_down_is_nobodys_while_no_lock_is_held(folder: Path):
    (folder / "standing.json").write_text(json.dumps(THERE))
    assert up.standing() is None
    (folder / "lock").write_bytes(b"")
    assert up.standing() is None
    with pytest.raises(Unusable, match="saw no federation up"):
        up.down()


def test_while_the_lock_is_held_it_stands(held: Path):
    assert up.standing() is None  # it is starting
    (held / "standing.json").write_text(json.dumps(THERE))
    assert up.standing() == up.Standing(**THERE)
    with pytest.raises(Unusable, match="saw 3 clients up at"):
        up.up(2, foreground=False)


def test_two_that_start_at_once_do_not_take_each_others_place(held: Path):
    with pytest.raises(Unusable, match="another federation that is starting"):
        up.up(2, foreground=True)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"pid": 1}'])
def test_what_cannot_be_read_is_no_federation(held: Path, text: str):
    (held / "standing.json").write_text(text)
    assert up.standing() is None


def test_one_that_does_not_end_is_said_to_be_so(held: Path, monkeypatch: pytest.MonkeyPatch):
    (held / "standing.json").write_text(json.dumps(THERE))
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *words: sent.append(words))
    monkeypatch.setattr(up, "END_S", 0.01)
    with pytest.raises(EdgeFailed, match=r"127.0.0.1:1 \(process 1\) has not ended"):
        up.down()
    assert len(sent) == 1
