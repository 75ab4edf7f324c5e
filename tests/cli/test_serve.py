"""Test `fedgc serve`: what it resumes and leaves alone, and when it gives up; contract tests kill servers."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest

from fedgc.cli import run as running
from fedgc.cli import serve as serving
from fedgc.cli.run import Wanted
from fedgc.cli.run_place import claimed
from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, Unusable
from fedgc.store import checkpoint
from fedgc.store.checkpoint import Checkpoint
from fedgc.store.database import Store
from fedgc.store.liveness import SERVER, this_process
from fedgc.store.records import Appended, Begun, Ended, Present
from tests.cli.test_follow import ROW
from tests.cli.test_run import Stand

Does = Callable[[Store, str], None]


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(serving, "FIRST_PAUSE_S", 0.01)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Starts(Stand):
    """A SuperLink on which each start of the run does what comes next in the script."""

    def __init__(self, folder: Path, *script: Does) -> None:
        super().__init__(folder, lambda store, name: self.script.pop(0)(store, name), "finished:failed")
        self.script = list(script)
        self.given: list[tuple[str, str]] = []  # the settings run and resume of each start
        self.stops: list[int] = []

    def submit(self, app: Path) -> int:
        self.looks = 0
        flower_run = super().submit(app)
        self.given.append((str(self.settings["run"]), str(self.settings["resume"])))
        return flower_run

    def stop(self, run: int) -> None:
        self.stops.append(run)
        self.ended = "finished:stopped"


@pytest.fixture
def starts(apart: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Starts]:
    def make(*script: Does) -> Starts:
        made = Starts(apart, *script)
        monkeypatch.setattr(running, "named", lambda name, folder: made)
        return made

    return make


def does(number: int, *, state: str = "", reason: str = "", saves: bool = True) -> Does:
    """Return a start that ends after round `number`: as recorded, or with a server that is gone."""

    def start(store: Store, name: str) -> None:
        store.write(Begun(time.time(), name, RunConfig(run=name, rounds=9).table()))
        if number:
            store.write(Appended(time.time(), name, replace(ROW, round=number)))
            if saves:
                folder = Path(os.environ["XDG_STATE_HOME"]) / "fedgc" / "runs" / name
                checkpoint.save(folder, Checkpoint(number, number, np.zeros(2, np.float32), b"", "{}"), 3)
        if state:
            store.write(Ended(time.time(), name, state, reason))
        else:
            store.write(Present(time.time(), name, {SERVER: {**this_process().words(), "began": 0}}))

    return start


def serve(
    most: int = 5, superlink: str = "ward", rest: Callable[[], object] | None = None, **settings: object
) -> None:
    serving.serve(Wanted(None, {"run": "ward", "rounds": 9, **settings}, superlink=superlink), most, rest)


def test_crashed_server_is_resumed_until_run_completes(starts, capsys):
    made = starts(does(1), does(4), does(9, state="completed"))
    serve()
    assert made.given == [("ward", ""), ("ward", "ward"), ("ward", "ward")]
    said = capsys.readouterr().out
    assert said.count("the server process is gone") == 2
    assert "it is resumed from its last checkpoint in 0.01 s (restart 1 of 5 without a new round)" in said


def test_run_without_checkpoint_begins_again_under_its_name(starts, capsys):
    made = starts(does(0), does(9, state="completed"))
    serve()
    assert made.given == [("ward", ""), ("ward", "")]
    assert "it begins again in" in capsys.readouterr().out


def test_restarts_without_new_round_are_limited_and_first_cause_leads(starts):
    made = starts(
        does(2, state="failed", reason="the run did not complete: north: no disk"),
        *[does(2, state="failed", reason="no client came")] * 5,
    )
    with pytest.raises(EdgeFailed, match=r"^the run did not complete: north: no disk; 2 restarts in a row"):
        serve(most=2)
    assert len(made.given) == 3


def test_run_without_restarts_fails_with_its_cause_alone(starts):
    starts(does(0, state="failed", reason="the run did not complete: north: no disk"))
    with pytest.raises(EdgeFailed, match=r"^the run did not complete: north: no disk$"):
        serve(most=0)


def test_command_that_stays_rests_only_after_its_run(starts, apart, monkeypatch):
    rested: list[str] = []
    starts(does(0, state="failed", reason="the run did not complete: north: no disk"))
    with pytest.raises(EdgeFailed, match="the run did not complete: north: no disk"):
        serve(most=0, rest=lambda: rested.append("given up"))
    starts(does(9, state="completed"))
    serve(rest=lambda: rested.append("complete"))
    assert rested == ["complete"]

    damaged = apart / "damaged.db"
    damaged.write_bytes((apart / "fedgc.db").read_bytes()[:6000])
    monkeypatch.setenv("FEDGC_DB", str(damaged))
    with pytest.raises(EdgeFailed, match="is damaged"):
        serve(rest=lambda: rested.append("store"))
    assert len(rested) == 1


def test_new_round_resets_count_of_restarts(starts):
    made = starts(*[does(number) for number in range(1, 7)], does(9, state="completed"))
    serve(most=1)
    assert len(made.given) == 7


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("more", ["", "; the other settings of this resume are not kept: seed was 3, is 4"])
def test_run_stopped_by_user_is_not_restarted(starts, capsys, more):
    made = starts(does(3, state="stopped", reason=f"stopped by the user{more}"))
    made.ended = "finished:stopped"
    serve()
    assert len(made.given) == 1
    assert "run ward was stopped after round 3, and is not restarted" in capsys.readouterr().out


@pytest.mark.parametrize("answers", [True, False])
def test_run_ended_by_sigint_without_user_is_resumed(starts, monkeypatch, capsys, answers: bool):
    """Flower gives the server SIGINT also when the SuperLink is restarted, which may not answer at once."""
    made = starts(does(3, state="stopped", reason="stopped by the user"), does(9, state="completed"))
    asked: list[int] = []

    def status(run: int) -> str:
        asked.append(run)
        if len(asked) == 1 and not answers:
            raise EdgeFailed("the SuperLink does not answer")
        return "finished:failed"

    monkeypatch.setattr(made, "status", status)
    serve()
    assert [resume for _, resume in made.given] == ["", "ward"]
    assert "its SuperLink ended the server; it is resumed" in capsys.readouterr().out


def test_run_ended_by_signal_of_its_server_is_resumed(starts):
    made = starts(does(3, state="stopped", reason="the server got SIGTERM"), does(9, state="completed"))
    serve()
    assert made.given[-1] == ("ward", "ward")


def test_known_run_is_resumed_and_complete_one_left_alone(starts, capsys):
    with Store.open() as store:
        does(4)(store, "ward")
    made = starts(does(9, state="completed"))
    serve()
    assert made.given == [("ward", "ward")]
    serve()
    assert len(made.given) == 1
    assert "run ward is complete" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("meanwhile", "given"),
    [(does(4), [("ward", "ward")]), (does(9, state="completed"), [])],
    ids=["begun", "completed"],
)
def test_run_of_other_command_is_judged_after_that_ends(
    starts, monkeypatch, capsys, meanwhile: Does, given: list[tuple[str, str]]
):
    made = starts(does(9, state="completed"))
    with ExitStack() as other:
        other.enter_context(claimed("ward"))
        left = [meanwhile]

        def ends(_seconds: float) -> None:
            if left:
                with Store.open() as store:
                    left.pop()(store, "ward")
                other.close()

        monkeypatch.setattr("fedgc.cli.run_place.time.sleep", ends)
        serve()
    assert made.given == given
    said = f"run ward: waiting for process {os.getpid()}, which has started it, to end\n"
    assert capsys.readouterr().out.count(said) == 1


def test_start_with_unseen_end_is_stopped_before_next_one(starts):
    made = starts(does(1, state="failed", reason="the stream broke"), does(9, state="completed"))
    made.ended = "running"
    serve()
    assert made.stops == [1]


def test_start_that_fails_is_tried_again(starts, capsys):
    made = starts(does(9, state="completed"))
    submit, failures = made.submit, [EdgeFailed("the SuperLink does not answer")] * 2

    def refused(app: Path) -> int:
        if failures:
            raise failures.pop()
        return submit(app)

    made.submit = refused
    serve(superlink="up")
    assert capsys.readouterr().out.count("the SuperLink does not answer; it begins again") == 2


@pytest.mark.parametrize("state", ["", "completed"])
def test_store_that_fails_at_end_of_start_is_waited_for(starts, monkeypatch, capsys, state):
    say, run = serving.say, Store.run

    def away(self: Store, key: str):
        raise EdgeFailed("store: the connection was closed")

    def end(store: Store, name: str) -> None:
        does(3, state=state)(store, name)
        monkeypatch.setattr(Store, "run", away)

    def back(console, line: str) -> None:
        say(console, line)
        if line.startswith("waiting: "):
            monkeypatch.setattr(Store, "run", run)

    monkeypatch.setattr(serving, "say", back)
    made = starts(end, does(9, state="completed"))
    serve()
    assert made.given == [("ward", ""), ("ward", "ward")][: 1 if state else 2]
    assert "waiting: store: the connection was closed" in capsys.readouterr().out


def test_run_that_keeps_no_checkpoint_is_refused(starts):
    starts()
    with pytest.raises(Unusable, match=r"saw history.keep-checkpoints = 0, needed 1 or more"):
        serve(**{"history.keep-checkpoints": 0})


def test_ctrl_c_ends_command_whose_superlink_is_gone(starts, signals, monkeypatch, capsys):
    def interrupted(store: Store, name: str) -> None:
        does(2)(store, name)
        raise KeyboardInterrupt

    def gone(*_: object) -> str:
        raise EdgeFailed("the SuperLink does not answer")

    made = starts(interrupted, does(9, state="completed"))
    monkeypatch.setattr(made, "wait", gone)
    with pytest.raises(KeyboardInterrupt):
        serve()
    assert len(made.given) == 1
    said = "the run was asked to stop, and may go on: the SuperLink does not answer"
    assert said in capsys.readouterr().out


def test_ctrl_c_stops_run_for_good(starts, signals):
    def interrupted(store: Store, name: str) -> None:
        does(2, state="stopped", reason="stopped by the user")(store, name)
        raise KeyboardInterrupt

    made = starts(interrupted)
    with pytest.raises(click.Abort):
        serve()
    assert len(made.given) == 1
