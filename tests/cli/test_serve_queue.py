"""Test `fedgc queue` and `fedgc serve --queue`: which run is next, and what does not end the queue."""

import json
import os
import shutil
import sqlite3
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import click
import pytest
from typer.testing import CliRunner

from fedgc.cli import serve_queue as serving
from fedgc.cli.commands import app
from fedgc.cli.new_app import write_new
from fedgc.cli.run import Wanted
from fedgc.cli.run_place import claimed, claimed_queue
from fedgc.errors import EdgeFailed, Unusable
from fedgc.store.database import Store
from fedgc.store.liveness import SERVER, this_process
from fedgc.store.records import Ended, Present
from tests.cli import test_serve
from tests.cli.test_serve import does

apart, starts = test_serve.apart, test_serve.starts  # fixtures
GONE = {**this_process().words(), "began": 0}


def cli(*words: str) -> str:
    result = CliRunner().invoke(app, words, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output


def add(run: str, *words: str) -> None:
    cli("queue", "add", *words, "--set", f"run={run}", "--set", "rounds=9")


def entries() -> list[dict[str, object]]:
    return json.loads(cli("queue", "list", "--json"))["queue"]


def states() -> dict[str, str]:
    return {str(each["run"]): str(each["state"]) for each in entries()}


@pytest.fixture
def serve(monkeypatch):
    """Serve the queue until no run waits: there the command would wait for a signal."""

    def over(_seconds: float) -> None:
        with Store.open() as store:
            if not store.queue.entries(finished=0):
                raise KeyboardInterrupt

    def start(most: int = 0) -> None:
        monkeypatch.setattr(serving, "LOOK_S", 0.0)
        monkeypatch.setattr(serving.time, "sleep", over)
        with pytest.raises(KeyboardInterrupt):
            serving.serve_queue(Wanted(None, {}, superlink="ward"), most)

    return start


def test_queue_runs_highest_priority_first(starts, serve, capsys):
    for run, priority in (("a", 0), ("b", 5), ("c", 0)):
        add(run, "--priority", str(priority))
    made = starts(*[does(9, state="completed")] * 3)
    serve()
    assert [run for run, _ in made.given] == ["b", "a", "c"]
    assert states() == {"a": "completed", "b": "completed", "c": "completed"}
    assert "entry 2, priority 5: run b" in capsys.readouterr().out


def test_failed_run_is_recorded_with_first_cause_and_queue_goes_on(starts, serve):
    add("a")
    add("b")
    failed = does(0, state="failed", reason="the run did not complete: north: no disk")
    starts(failed, does(0, state="failed", reason="no client came"), does(9, state="completed"))
    serve(most=1)
    assert states() == {"a": "failed", "b": "completed"}
    assert str(entries()[-1]["reason"]).startswith("the run did not complete: north: no disk; 1 restarts")


def test_run_stopped_by_user_is_recorded_and_queue_goes_on(starts, serve):
    add("a")
    add("b")
    made = starts(does(3, state="stopped", reason="stopped by the user"), does(9, state="completed"))
    made.ended = "finished:stopped"
    serve()
    assert states() == {"a": "stopped", "b": "completed"}


def test_missing_folder_and_unforeseen_error_fail_only_their_run(starts, serve, apart):
    write_new(apart / "app")
    add("a", "app")
    shutil.rmtree(apart / "app")
    add("b")
    add("c")

    def breaks(_store: Store, _name: str) -> None:
        raise ZeroDivisionError

    starts(breaks, does(9, state="completed"))
    serve()
    assert states() == {"a": "failed", "b": "failed", "c": "completed"}
    reasons = {each["run"]: each["reason"] for each in entries()}
    assert reasons["a"] == f"folder {apart / 'app'}: saw none on this machine, needed the one that was added"
    assert reasons["b"] == "the queue (entry 2): saw ZeroDivisionError"


def test_entry_with_damaged_settings_is_not_run(starts, serve, apart):
    add("a")
    add("b")
    with closing(sqlite3.connect(apart / "fedgc.db")) as connection, connection:
        connection.execute("UPDATE queue SET settings = '{\"rounds\": ' WHERE run = 'a'")
    made = starts(does(9, state="completed"))
    serve()
    assert [run for run, _ in made.given] == ["b"]
    assert states() == {"a": "failed", "b": "completed"}
    reasons = {each["run"]: each["reason"] for each in entries()}
    assert reasons["a"].startswith("queue: saw damaged settings in entry 1, needed the run to be added again")


def test_run_that_was_complete_says_that_nothing_was_trained(starts, serve):
    add("one")
    starts(does(9, state="completed"))
    serve()
    add("one")
    serve()
    first, second = sorted(entries(), key=lambda each: each["id"])
    assert (first["state"], first["reason"]) == ("completed", "")
    assert (second["state"], second["reason"]) == ("completed", "it was complete already")


def test_second_server_of_queue_is_refused_at_its_start(starts):
    starts()
    with Store.open() as store:
        name = store.name
    says = rf"saw process {os.getpid()} serving it, needed one server for each store"
    with claimed_queue(name), pytest.raises(Unusable, match=says):
        serving.serve_queue(Wanted(None, {}, superlink="ward"), 0)


def test_run_of_killed_server_is_resumed_before_higher_priority(starts, serve):
    add("a")
    with Store.open() as store:
        store.queue.take(GONE, time.time())
        does(4)(store, "a")
    add("b", "--priority", "9")
    made = starts(*[does(9, state="completed")] * 2)
    serve()
    assert made.given == [("a", "a"), ("b", "")]


def test_followed_run_waits_for_superlink_that_ended_with_it(starts, serve, monkeypatch, capsys):
    add("a")
    made = starts(does(9, state="completed"))
    with Store.open() as store:
        store.queue.take(GONE, time.time())
        does(4)(store, "a")
        store.write(Present(time.time(), "a", {SERVER: this_process().words()}))
    away = [Unusable("SuperLink 'up': saw no federation up, needed one")] * 2

    def named(name: str, folder: Path) -> object:
        if followed and away:
            raise away.pop()
        return made

    followed: list[bool] = []

    def ends(*_: object) -> None:
        followed.append(True)
        with Store.open() as store:
            store.write(Ended(time.time(), "a", "failed", "its SuperLink is gone"))

    monkeypatch.setattr("fedgc.cli.serve.follow", ends)
    monkeypatch.setattr("fedgc.cli.run.named", named)
    serve()
    assert states() == {"a": "completed"}
    assert made.given == [("a", "a")]
    assert capsys.readouterr().out.count("waiting: SuperLink 'up': saw no federation up, needed one") == 1


@pytest.mark.usefixtures("signals")
def test_interrupted_run_stays_first_in_queue(starts, capsys):
    add("a")
    add("b", "--priority", "1")

    def interrupted(store: Store, name: str) -> None:
        does(2, state="stopped", reason="stopped by the user")(store, name)
        raise KeyboardInterrupt

    starts(interrupted)
    with pytest.raises(click.Abort):
        serving.serve_queue(Wanted(None, {}, superlink="ward"), 0)
    assert [each["run"] for each in entries()] == ["b", "a"]
    assert states() == {"b": "interrupted", "a": "waiting"}
    said = "is resumed first at the next start of `fedgc serve --queue`"
    assert entries()[0]["reason"] == said
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == f"entry 2: run b is interrupted, and {said}"
    assert "run b was stopped after round 2" in told


def test_queue_waits_while_another_run_is_under_way(starts, serve):
    add("a")
    with Store.open() as store:
        does(1)(store, "other")
        store.write(Present(time.time(), "other", {SERVER: this_process().words()}))
    made = starts(does(9, state="completed"))
    with Store.open() as store:
        with pytest.raises(EdgeFailed, match=r"^run other is under way$"):
            serving._taken(store, serving.Host(made))
        store.write(Ended(time.time(), "other", "completed"))
    serve()
    assert states() == {"a": "completed"}


def test_queue_waits_for_superlink_that_does_not_answer(starts, serve, capsys):
    add("a")
    made = starts(does(9, state="completed"))
    failures = [EdgeFailed("127.0.0.1:1 does not answer: refused")] * 2

    def check() -> None:
        if failures:
            raise failures.pop()

    made.check = check
    serve()
    assert states() == {"a": "completed"}
    assert capsys.readouterr().out.count("waiting: 127.0.0.1:1 does not answer: refused") == 1


def test_queue_waits_for_store_that_fails(starts, apart, monkeypatch, capsys):
    add("a")

    def rename(table: str, name: str) -> None:
        with closing(sqlite3.connect(apart / "fedgc.db")) as other:
            other.execute(f"ALTER TABLE {table} RENAME TO {name}")

    def breaks(store: Store, name: str) -> None:
        does(9, state="completed")(store, name)
        rename("queue", "gone")

    def repairs(*_: object) -> None:
        with suppress(sqlite3.OperationalError):
            rename("gone", "queue")
            return
        raise KeyboardInterrupt

    made = starts(breaks)
    rename("queue", "gone")
    monkeypatch.setattr(serving, "LOOK_S", 0.0)
    monkeypatch.setattr(serving, "restart_ended", repairs)
    with pytest.raises(KeyboardInterrupt):
        serving.serve_queue(Wanted(None, {}, superlink="ward"), 0)
    assert made.given == [("a", "")]
    assert states() == {"a": "completed"}
    told = capsys.readouterr().out
    assert told.count("no such table: queue") == 2
    assert told.index("no such table") < told.index("entry 1, priority 0: run a")


def test_queue_waits_for_command_that_holds_its_run(starts, monkeypatch, capsys):
    add("a")
    made = starts(does(9, state="completed"))
    monkeypatch.setattr("fedgc.cli.serve.CLAIM_S", 0.0)
    seen: list[str] = []
    with ExitStack() as other:
        other.enter_context(claimed("a"))

        def passes(_seconds: float) -> None:
            seen.append(states()["a"])
            if len(seen) == 3:
                with Store.open() as store:
                    does(4)(store, "a")
                other.close()
            if seen[-1] == "completed":
                raise KeyboardInterrupt

        monkeypatch.setattr(serving.time, "sleep", passes)
        with pytest.raises(KeyboardInterrupt):
            serving.serve_queue(Wanted(None, {}, superlink="ward"), 0)
    assert seen[:3] == ["running"] * 3, "it is not recorded as failed"
    assert seen[-1] == "completed"
    assert made.given == [("a", "a")]
    assert capsys.readouterr().out.count("run a: waiting for process") == 1


def test_run_with_invalid_settings_is_not_added(apart):
    with pytest.raises(Unusable, match="setting task: saw 'diggits'"):
        cli("queue", "add", "--task", "diggits")
    with pytest.raises(Unusable, match="folder nowhere: saw none"):
        cli("queue", "add", "nowhere")
    assert entries() == []


def test_added_run_gets_name_and_keeps_settings(apart):
    said = cli("queue", "add", "--task", "digits", "--set", "rounds=4")
    (entry,) = entries()
    assert said == f"entry 1: run {entry['run']}\n"
    assert entry["settings"] == {"rounds": 4, "task": "digits", "script": "", "run": entry["run"]}
    assert entry["folder"] == str(apart)
    assert str(entry["run"]) in cli("queue", "list")


def test_entry_taken_before_clock_was_set_back_is_removed(apart):
    add("a")
    with Store.open() as store:
        store.queue.take({**GONE, "where": "another container"}, time.time() + 3600.0)
    assert cli("queue", "remove", "1") == "entry 1: run a is removed\n"


def test_run_under_way_is_not_removed(apart):
    add("a")
    with Store.open() as store:
        store.queue.take({**GONE, "where": "another container"}, time.time())
    with pytest.raises(Unusable, match="saw entry 1 taken, and its run not begun"):
        cli("queue", "remove", "1")
    with Store.open() as store:
        does(1)(store, "a")
        store.write(Present(time.time(), "a", {SERVER: this_process().words()}))
    with pytest.raises(Unusable, match="run a: saw it running"):
        cli("queue", "remove", "1")
    with Store.open() as store:
        store.write(Ended(time.time(), "a", "failed"))
    assert cli("queue", "remove", "1") == "entry 1: run a is removed\n"
    assert entries() == []


@pytest.mark.parametrize(
    ("words", "says"),
    [(["plain"], "folder plain: saw no app, needed a pyproject"), (["--script", "lost.py"], "saw lost.py")],
)
def test_folder_without_app_and_missing_script_are_not_queued(apart, words, says):
    (apart / "plain").mkdir()
    result = CliRunner().invoke(app, ["queue", "add", *words])
    assert says in str(result.exception)
    assert not list(apart.glob("*.db")), "nothing was queued"


@pytest.mark.parametrize("words", [["--set", "rounds=3"], ["--stay"], ["--task", "digits"]])
def test_options_of_one_run_are_refused_with_queue(apart, words):
    with pytest.raises(
        Unusable, match=f"--queue: saw {words[0]} beside it, needed no option but --superlink"
    ):
        cli("serve", "--queue", *words)


def test_settings_of_variable_are_refused_by_name_with_queue(apart, monkeypatch):
    monkeypatch.setenv("FEDGC_SETTINGS", "rounds=3")
    with pytest.raises(Unusable, match="--queue: saw FEDGC_SETTINGS beside it, needed no option but"):
        cli("serve", "--queue")
