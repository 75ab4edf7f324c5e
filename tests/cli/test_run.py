"""`fedgc run`: what it makes of its words, and of how a run ended; real runs are in the contract tests."""

import time
from pathlib import Path

import click
import pytest

from fedgc.cli import run as running
from fedgc.cli.new import write_new
from fedgc.cli.run import Wanted
from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, Unusable
from fedgc.store.database import Store
from fedgc.store.records import Begun, Ended, Present
from tests.cli.test_follow import tell


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text('[superlink.ward]\naddress = "127.0.0.1:1"\ninsecure = true\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Stand:
    """A SuperLink on which a run does what it is told, to the store or to its log alone."""

    def __init__(self, folder: Path, does, status: str) -> None:
        self.folder, self.does, self.ended = folder, does, status
        self.settings: dict[str, object] = {}
        self.stopped = False
        self.looks = 0

    def submit(self, app: Path) -> int:
        import tomllib

        self.settings = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
        self.log(1).write_text("first words\nlast words\n")
        return 1

    def log(self, run: int) -> Path:
        return self.folder / f"run-{run}.log"

    def running(self, run: int) -> bool:
        self.looks += 1
        if self.looks == 1:
            with Store.open() as store:
                self.does(store, str(self.settings["run"] or self.settings["resume"]))
        return self.looks < 3

    def stop(self, run: int) -> None:
        self.stopped = True

    def wait(self, run: int, timeout_s: float) -> str:
        return self.ended

    def status(self, run: int) -> str:
        return self.ended

    def close(self) -> None:
        pass


@pytest.fixture
def stand(apart: Path, monkeypatch: pytest.MonkeyPatch):
    def make(does=lambda store, name: None, status: str = "finished:completed") -> Stand:
        made = Stand(apart, does, status)
        monkeypatch.setattr(running, "named", lambda name, folder: made)
        return made

    return make


def complete(store: Store, name: str) -> None:
    store.write(Begun(1000.0, name, RunConfig().table()))
    tell_as(store, name)
    store.write(Ended(1001.0, name, "completed"))


def tell_as(store: Store, name: str) -> None:
    from fedgc.store.records import Appended
    from tests.cli.test_follow import ROW

    store.write(Appended(1000.0, name, ROW))


def test_a_run_that_the_store_knows_is_shown_by_it(stand, capsys):
    stand(complete)
    running.run(Wanted(None, {}, superlink="ward"))
    said = capsys.readouterr().out
    assert "round 1: synced" in said
    assert "The devices" in said


def test_a_run_that_keeps_its_store_elsewhere_is_shown_by_its_log(stand, capsys):
    stand()
    running.run(Wanted(None, {}, superlink="ward"))
    assert "first words\nlast words" in capsys.readouterr().out


def test_a_run_elsewhere_that_failed_is_said_to_have_failed(stand):
    stand(status="finished:failed")
    with pytest.raises(EdgeFailed, match="Flower says finished:failed"):
        running.run(Wanted(None, {}, superlink="ward"))


def test_a_run_that_failed_says_why_and_how_to_go_on(stand):
    def fail(store: Store, name: str) -> None:
        complete(store, name)
        store.write(Ended(1002.0, name, "failed", "no device came"))

    stand(fail)
    with pytest.raises(EdgeFailed, match=r"no device came; `fedgc run --resume run-.*` goes on"):
        running.run(Wanted(None, {}, superlink="ward"))


def test_ctrl_c_stops_the_run_and_says_how_to_go_on(stand, capsys):
    def interrupt(store: Store, name: str) -> None:
        complete(store, name)
        store.write(Ended(1002.0, name, "stopped", "the server got SIGINT"))
        raise KeyboardInterrupt

    made = stand(interrupt)
    with pytest.raises(click.Abort):
        running.run(Wanted(None, {}, superlink="ward"))
    assert made.stopped
    said = capsys.readouterr().out
    assert "stopping the run" in said
    assert f"stopped after round 1; `fedgc run --resume {made.settings['run']}` goes on" in said


def test_settings_come_from_the_app_then_the_resumed_run_then_the_words(stand, apart, monkeypatch):
    write_new(apart / "ward")
    monkeypatch.chdir(apart / "ward")
    with Store.open() as store:
        store.write(Begun(1.0, "old", {**RunConfig(rounds=5, seed=3, chunks=6).table(), "gone": 1}))
    made = stand(lambda store, name: complete(store, name))
    running.run(Wanted(None, {"rounds": 9}, superlink="ward", resume="old"))
    assert (made.settings["rounds"], made.settings["seed"], made.settings["chunks"]) == (9, 3, 6)
    assert made.settings["resume"] == "old"
    made = stand(complete)
    running.run(Wanted(None, {"rounds": 9}, superlink="ward"))
    assert (made.settings["task"], made.settings["chunks"]) == ("ward.task:task", 8)
    assert made.settings.keys() == RunConfig().table().keys()


def test_a_run_that_is_over_or_silent_is_not_waited_for(capsys):
    with Store.open() as store:
        store.write(Begun(1000.0, "r", RunConfig().table()))
        tell(store, 1)
        store.write(Present(1000.0, "r", {}))
    with pytest.raises(EdgeFailed, match="has said nothing for 60 s"):
        running.attach("r", alone=True)
    with Store.open() as store:
        store.write(Ended(time.time(), "r", "completed"))
    running.attach("r", alone=True)
    assert capsys.readouterr().out.count("round 1: synced") == 2


def test_to_look_at_a_run_and_to_change_it_are_two_things():
    with pytest.raises(Unusable, match="saw other words with it"):
        running.attach("r", alone=False)
