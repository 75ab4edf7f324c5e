"""Test `fedgc up` and `fedgc down`: how a running federation is recognized."""

import fcntl
import json
import os
import signal
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from fedgc.cli import up
from fedgc.errors import EdgeFailed, Unusable
from fedgc.processes.supervision import descendants

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


def test_recorded_process_number_is_ignored_without_lock(folder: Path):
    (folder / "standing.json").write_text(json.dumps(THERE))
    assert up.running_federation() is None
    (folder / "lock").write_bytes(b"")
    assert up.running_federation() is None
    with pytest.raises(Unusable, match="saw no federation up"):
        up.down()


def test_recorded_process_number_is_valid_while_lock_is_held(held: Path):
    assert up.running_federation() is None  # it is starting
    (held / "standing.json").write_text(json.dumps(THERE))
    assert up.running_federation() == up.RunningFederation(**THERE)
    with pytest.raises(Unusable, match="saw 3 clients up at"):
        up.up(2, foreground=False)


def test_start_waits_for_command_that_looks_for_federation(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "lock").touch()
    with (folder / "lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr(up.time, "sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
        with up._locked(folder):
            assert not up._taken(looking)


def test_simultaneous_starts_get_separate_places(held: Path):
    with pytest.raises(Unusable, match="another federation that is starting"):
        up.up(2, foreground=True)


class Played:
    """A federation of one client that hands in what it has for ever; signals arrive meanwhile."""

    address, home = "127.0.0.1:1", "/x"

    def __init__(self) -> None:
        self.stopped = False

    def restart_ended(self) -> Mapping[str, str]:
        signal.raise_signal(signal.SIGTERM)
        return {}

    def leave(self) -> None:
        signal.raise_signal(signal.SIGTERM)

    def stop_servers(self) -> None:
        self.stopped = True


def test_second_signal_ends_federation_without_wait(
    folder: Path, signals: None, monkeypatch: pytest.MonkeyPatch
):
    played = Played()
    monkeypatch.setattr(up, "LocalFederation", lambda *_, **__: nullcontext(played))
    monkeypatch.setattr(up, "RESTART_S", 0.01)
    with pytest.raises(KeyboardInterrupt):
        up.up(1, foreground=True)
    assert not played.stopped
    assert up.running_federation() is None


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"pid": 1}', "[" * 100_000])
def test_unreadable_state_file_is_no_federation(held: Path, text: str):
    (held / "standing.json").write_text(text)
    assert up.running_federation() is None


def test_process_that_does_not_end_is_reported(held: Path, monkeypatch: pytest.MonkeyPatch):
    (held / "standing.json").write_text(json.dumps(THERE))
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *words: sent.append(words))
    monkeypatch.setattr(up, "END_S", 0.01)
    with pytest.raises(EdgeFailed, match=r"127.0.0.1:1 \(process 1\) has not ended"):
        up.down()
    assert len(sent) == 1


def test_interrupted_start_leaves_no_process(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def commands() -> str:
        found = (Path(f"/proc/{each}/cmdline") for each in descendants(os.getpid()))
        return "\n".join(each.read_bytes().replace(b"\0", b" ").decode() for each in found if each.exists())

    def interrupted() -> None:
        if "up --foreground" in commands():
            raise KeyboardInterrupt

    monkeypatch.setattr(up, "running_federation", interrupted)
    with pytest.raises(KeyboardInterrupt):
        up.up(1, foreground=False)
    assert "up --foreground" not in commands()


def test_invalid_client_settings_are_refused_before_start(folder: Path):
    with pytest.raises(Unusable, match="needed at least 2: --client names north, south"):
        up.up(1, ["north:a=1", "south:a=2"], foreground=False)
    with pytest.raises(Unusable, match="needed NAME:key=value"):
        up.up(None, ["north"], foreground=True)
    assert up.running_federation() is None
