"""Test `fedgc run`: its options and the reported end of a run; contract tests start real runs."""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from rich.console import Console

from fedgc.cli import follow
from fedgc.cli import run as running
from fedgc.cli.follow import Log
from fedgc.cli.new_app import write_new
from fedgc.cli.run import Wanted
from fedgc.config import RunConfig
from fedgc.deploy.app_folder import app_in
from fedgc.errors import BadSetting, BadTask, EdgeFailed, Unusable
from fedgc.flower import preconditions as beginning
from fedgc.store import checkpoint
from fedgc.store.checkpoint import Checkpoint
from fedgc.store.database import Store
from fedgc.store.liveness import SERVER, this_process
from fedgc.store.records import Appended, Begun, Decided, Ended, Present
from tests.cli.test_follow import ROW, tell


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text('[superlink.ward]\naddress = "127.0.0.1:1"\ninsecure = true\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("nope:task", "task nope:task: importing nope raised ModuleNotFoundError: No module named 'nope'"),
        ("ward_task:tusk", "task ward_task:tusk: ward_task has no 'tusk'; did you mean task?"),
        (
            "ward_task:NUMBER",
            "task ward_task:NUMBER: saw a int, needed a Task or a function of RunConfig that",
        ),
    ],
)
def test_task_that_local_clients_cannot_import_starts_nothing(apart: Path, task: str, reason: str, capfd):
    (apart / "ward_task.py").write_text("print('imported')\nNUMBER = 5\ndef task(config): ...\n")
    with pytest.raises(BadTask, match=f"^{re.escape(reason)}"):
        running.run(Wanted(2, {"task": task}))
    with Store.open() as store:
        assert not store.runs()
    assert not capfd.readouterr().out.count("imported")


def test_task_is_imported_apart_from_command(apart: Path, monkeypatch):
    """So a queue finds a changed module, and one of the same name in another folder."""
    before = [*sys.path]
    with Store.open() as store:
        for number, line in enumerate(("def task(config): ...\n", "def other(config): ...\n")):
            folder = apart / f"ward-{number}"
            folder.mkdir()
            (folder / "ward_task.py").write_text(line)
            monkeypatch.chdir(folder)
            name = line.split()[1].partition("(")[0]
            running.ready(store, Wanted(2, {"task": f"ward_task:{name}"}), None)
        (folder / "ward_task.py").write_text("import os\nos._exit(3)\n")
        with pytest.raises(BadTask, match="the process that imported it ended with exit code 3"):
            running.ready(store, Wanted(2, {"task": "ward_task:other"}), None)
    assert "ward_task" not in sys.modules
    assert sys.path == before


def test_task_in_other_folder_needs_app_to_be_imported(apart: Path):
    write_new(there := apart / "ward")
    wanted = Wanted(2, {"task": "ward.task:task", "data.chunks": 2}, folder=there)
    with Store.open() as store:
        running.ready(store, wanted, app_in(there))
        (there / "plain.py").write_text("def task(config): ...\n")
        plain = Wanted(2, {"task": "plain:task"}, folder=there)
        with pytest.raises(BadTask, match="No module named 'plain'"):
            running.ready(store, plain, None)


def test_settings_beside_script_are_those_of_run(apart: Path, monkeypatch):
    """The folder has a manifest without an app: fedgc's own carries the settings."""
    monkeypatch.chdir(apart)
    (apart / "train.py").write_text("")
    (apart / "pyproject.toml").write_text('[tool.flwr.app.config]\nscript = "train.py"\nrounds = 2\n')
    app = app_in(apart)
    with Store.open() as store:
        config = running.ready(store, Wanted(2, {"seed": 3}, folder=apart), app)
        assert (config.script, config.rounds, config.seed) == (str(apart / "train.py"), 2, 3)
        (apart / "pyproject.toml").write_text('[tool.flwr.app.config]\ntask = "none:task"\n')
        with pytest.raises(BadTask, match="No module named 'none'"):
            running.ready(store, Wanted(2, {}, folder=apart), app_in(apart))
    written = running.app_with(app, apart / "app", config, apart)
    assert (written / "server" / "app.py").is_file()


def test_task_is_imported_from_folder_of_running_federation(apart: Path, monkeypatch):
    there = apart / "there"
    there.mkdir()
    (there / "ward_task.py").write_text("def task(config): ...\n")
    (apart / "ward_other.py").write_text("def task(config): ...\n")
    standing = running.up.RunningFederation(1, "127.0.0.1:1", str(apart), 2, str(there))
    monkeypatch.setattr(running.up, "running_federation", lambda: standing)
    with Store.open() as store:
        running.ready(store, Wanted(None, {"task": "ward_task:task"}, superlink="up"), None)
        where = f"No module named 'ward_other'; the clients look for modules in {there}, where `fedgc up` was"
        with pytest.raises(BadTask, match=where):
            running.ready(store, Wanted(None, {"task": "ward_other:task"}, superlink="up"), None)


def test_task_of_app_is_named_right_before_anything_starts(apart: Path):
    write_new(there := apart / "ward")
    manifest = there / "pyproject.toml"
    manifest.write_text(manifest.read_text().replace("ward.task:task", "ward.task"))
    with (
        Store.open() as store,
        pytest.raises(BadSetting, match=r"setting task: saw 'ward\.task', needed digits"),
    ):
        running.ready(store, Wanted(2, {}, folder=there), app_in(there))


class Stand:
    """A SuperLink with a scripted run that writes to the store or only to its log."""

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

    def check(self) -> None:
        pass


@pytest.fixture
def stand(apart: Path, monkeypatch: pytest.MonkeyPatch):
    def make(does=lambda store, name: None, status: str = "finished:completed") -> Stand:
        made = Stand(apart, does, status)
        monkeypatch.setattr(running, "named", lambda name, folder: made)
        return made

    return make


def complete(store: Store, name: str, **more: str) -> None:
    store.write(Begun(1000.0, name, RunConfig(work="coded", **more).table()))
    tell_as(store, name)
    store.write(Ended(1001.0, name, "completed"))


def tell_as(store: Store, name: str) -> None:
    store.write(Appended(1000.0, name, ROW))


def test_run_in_store_is_shown_from_store(stand, capsys):
    stand(complete)
    running.run(Wanted(None, {}, superlink="ward"))
    said = capsys.readouterr().out
    assert "round 1: synced" in said
    assert "The clients" in said


def test_run_with_other_store_is_shown_from_log(stand, capsys):
    stand()
    running.run(Wanted(None, {}, superlink="ward"))
    assert "first words\nlast words" in capsys.readouterr().out


@pytest.mark.parametrize("waits", [True, False])
def test_log_of_run_with_other_store_is_announced_once(capsys, tmp_path, waits):
    path = tmp_path / "log"
    path.write_text("INFO :  round 1 synced version=1\n")
    unseen = running.Unseen(Console(), Log(path), waits=waits)
    unseen.show()
    said = capsys.readouterr().out
    assert running.ELSEWHERE not in said
    assert ("round 1 synced" in said) != waits
    with path.open("a") as file:
        file.write("INFO :  round 2 synced version=2\n")
    unseen.show()
    unseen.show()
    assert capsys.readouterr().out.splitlines()[0] == running.ELSEWHERE


def test_remote_run_failure_is_reported(stand):
    stand(status="finished:failed")
    with pytest.raises(EdgeFailed, match="Flower says finished:failed"):
        running.run(Wanted(None, {}, superlink="ward"))


def test_failed_run_reports_reason_and_how_to_resume(stand):
    def fail(store: Store, name: str) -> None:
        complete(store, name)
        store.write(Ended(1002.0, name, "failed", "no client came"))

    stand(fail)
    with pytest.raises(EdgeFailed, match="no client came; `fedgc run --resume run-"):
        running.run(Wanted(None, {}, superlink="ward"))


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_and_signals_stop_run_and_print_how_to_resume(stand, capsys, number):
    def interrupt(store: Store, name: str) -> None:
        complete(store, name)
        store.write(Ended(1002.0, name, "stopped", "stopped by the user"))
        os.kill(os.getpid(), number)

    made = stand(interrupt)
    with pytest.raises(click.Abort):
        running.run(Wanted(None, {}, superlink="ward"))
    assert made.stopped
    said = capsys.readouterr().out
    assert "stopping the run" in said
    again = f"fedgc run --resume {made.settings['run']}"
    assert f"stopped after round 1; `{again}` goes on" in said


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(("app", "leaves"), [("fedgc", ["asked"]), ("stock", [])])
def test_clients_are_asked_to_leave_unless_stock(stand, monkeypatch, app: str, leaves: list[str]):
    def interrupt(store: Store, name: str) -> None:
        complete(store, name, client_app=app)
        store.write(Ended(1002.0, name, "stopped", "stopped by the user"))
        os.kill(os.getpid(), signal.SIGTERM)

    made, asked = stand(interrupt), []
    host = running.Host(made, leave=lambda: asked.append("asked"))
    monkeypatch.setattr(running, "host_of", lambda *_: nullcontext(host))
    with pytest.raises(click.Abort):
        running.run(Wanted(None, {}, superlink="ward"))
    assert asked == leaves


@pytest.mark.parametrize(
    ("status", "why"),
    [("finished:stopped", "stopped by the user"), ("finished:failed", "its SuperLink ended the server")],
)
def test_run_is_stopped_by_its_user_only_if_flower_says_so(stand, status: str, why: str):
    def ends(store: Store, name: str) -> None:
        complete(store, name)
        store.write(Ended(1002.0, name, "stopped", "stopped by the user"))

    stand(ends, status)
    with pytest.raises(
        EdgeFailed, match=f"^the run did not complete: {why}; `fedgc run --resume same` goes on$"
    ):
        running.run(Wanted(None, {"run": "same"}, superlink="ward"))


@pytest.mark.usefixtures("signals")
def test_run_that_completes_while_it_stops_is_not_called_stopped(stand, capsys):
    def interrupt(store: Store, name: str) -> None:
        complete(store, name)
        os.kill(os.getpid(), signal.SIGTERM)

    stand(interrupt)
    running.run(Wanted(None, {}, superlink="ward"))
    said = capsys.readouterr().out
    assert "completed: 1 round" in said
    assert "stopped after" not in said


@pytest.mark.usefixtures("signals")
def test_warnings_of_stopping_run_are_printed_once(stand, capsys):
    def interrupt(store: Store, name: str) -> None:
        store.write(Begun(1000.0, name, RunConfig(work="coded").table()))
        warn("a is lost")
        os.kill(os.getpid(), signal.SIGINT)

    def warn(text: str) -> None:
        with made.log(1).open("a") as log:
            log.write(f"WARNING :  round 2: {text}\n")

    made = stand(interrupt)
    made.stop = lambda run: warn("b left")
    with pytest.raises(click.Abort):
        running.run(Wanted(None, {}, superlink="ward"))
    said = capsys.readouterr().out.splitlines()
    notes = [running.STOPPING, "round 2: a is lost", "round 2: b left", "stopped"]
    assert sorted(each for each in said if each in notes) == sorted(notes)


def again(store: Store, name: str) -> None:
    """Ctrl-C before a resumed run has a new round."""
    store.write(Begun(2000.0, name, RunConfig(work="coded").table()))
    store.write(Ended(2001.0, name, "stopped", f"stopped by the user; {beginning.NOT_KEPT}: seed was 3"))
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("signals")
def test_resumed_run_stopped_at_once_says_how_to_resume(stand, capsys):
    with Store.open() as store:
        complete(store, "same")
    stand(again)
    with pytest.raises(click.Abort):
        running.run(Wanted(None, {"rounds": 9}, superlink="ward", resume="same"))
    goes_on = f"`fedgc run --resume same` goes on; {beginning.NOT_KEPT}: seed was 3"
    assert f"stopped after round 1; {goes_on}" in capsys.readouterr().out


@pytest.mark.usefixtures("signals")
def test_ctrl_c_before_clients_are_started_is_told(apart, monkeypatch, capsys):
    @contextmanager
    def starting(*_: object) -> Iterator[object]:
        os.kill(os.getpid(), signal.SIGINT)
        yield

    monkeypatch.setattr(running, "host_of", starting)
    with pytest.raises(SystemExit, match="130"):
        running.run(Wanted(2, {"task": "digits"}))
    assert capsys.readouterr().err == "fedgc: interrupted; nothing was started\n"


@pytest.mark.usefixtures("signals")
def test_ctrl_c_while_run_is_submitted_names_it(stand, capsys):
    made = stand()
    made.submit = lambda app: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(SystemExit, match="130"):
        running.run(Wanted(None, {"run": "same"}, superlink="ward"))
    begins = "if its SuperLink has accepted it, it will still begin: `fedgc status` shows it"
    assert capsys.readouterr().err == f"fedgc: interrupted; run same has not begun; {begins}\n"


@pytest.mark.usefixtures("signals")
def test_ctrl_c_after_last_round_says_run_is_completed(stand, capsys):
    made = stand(complete)
    made.close = lambda: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(SystemExit, match="130"):
        running.run(Wanted(None, {"run": "same"}, superlink="ward"))
    assert capsys.readouterr().err == "fedgc: interrupted; run same is completed\n"


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(
    ("left", "said"),
    [
        (this_process().words() | {"began": 0}, "run same is crashed; `fedgc run --resume same` goes on"),
        (this_process().words(), "run same is still running, or just ending; `fedgc status same` shows it"),
    ],
    ids=["killed", "alive"],
)
def test_second_ctrl_c_names_state_of_run(stand, capsys, left, said):
    def interrupt(store: Store, name: str) -> None:
        store.write(Begun(1000.0, name, RunConfig(work="coded").table()))
        tell_as(store, name)
        store.write(Present(1001.0, name, {SERVER: left}))
        os.kill(os.getpid(), signal.SIGINT)

    made = stand(interrupt)
    made.stop = lambda run: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(SystemExit, match="130"):
        running.run(Wanted(None, {"run": "same"}, superlink="ward"))
    assert capsys.readouterr().err == f"fedgc: interrupted; {said}\n"


@pytest.mark.parametrize("resume", [{"resume": "old"}, {"settings": {"rounds": 9, "resume": "old"}}])
def test_settings_merge_app_then_resumed_run_then_command_line(stand, apart, monkeypatch, resume):
    write_new(apart / "ward")
    monkeypatch.chdir(apart / "ward")
    with Store.open() as store:
        store.write(Begun(1.0, "old", {**RunConfig(rounds=5, seed=3, chunks=6).table(), "gone": 1}))
    made = stand(lambda store, name: complete(store, name))
    running.run(Wanted(None, **{"settings": {"rounds": 9}, "superlink": "ward", **resume}))
    assert (made.settings["rounds"], made.settings["seed"], made.settings["data.chunks"]) == (9, 3, 6)
    assert made.settings["resume"] == "old"
    made = stand(complete)
    running.run(Wanted(None, {"rounds": 9}, superlink="ward"))
    assert (made.settings["task"], made.settings["data.chunks"]) == ("ward.task:task", 8)
    assert made.settings.keys() == RunConfig(work="coded").table().keys()


def saved(folder: Path, round_: int = 1) -> None:
    checkpoint.save(folder, Checkpoint(round_, 1, np.zeros(2, np.float32), b"", "{}"), keep=1)


def test_name_of_run_with_model_is_refused_before_start(stand, apart):
    made = stand(complete)
    saved(apart / "fedgc" / "runs" / "same")
    lost = "no run of this name in the store, needed a backup of the store that has it"
    with pytest.raises(Unusable, match=f"run same: there is one of that name already: .*, but {lost}, or a"):
        running.run(Wanted(None, {"run": "same"}, superlink="ward"))
    with pytest.raises(Unusable, match=f"run same: saw its checkpoints in .*same, but {lost}"):
        running.run(Wanted(None, {}, superlink="ward", resume="same"))
    running.run(Wanted(None, {"run": "kept-nothing"}, superlink="ward"))
    made.settings.clear()
    with pytest.raises(Unusable, match="there is one of that name already, needed a new name, or --resume k"):
        running.run(Wanted(None, {"run": "kept-nothing"}, superlink="ward"))
    assert not made.settings, "nothing was submitted"


def test_name_of_run_without_model_may_be_reused(stand):
    with Store.open() as store:
        store.write(Begun(1.0, "same", RunConfig(work="coded").table()))
        store.write(Ended(2.0, "same", "failed", "no client came"))
    stand(complete)
    running.run(Wanted(None, {"run": "same"}, superlink="ward"))


@pytest.mark.parametrize("wanted", [{"resume": "same"}, {"resume": "latest"}, {}])
def test_running_run_can_be_neither_resumed_nor_restarted(stand, wanted):
    made = stand(complete)
    with Store.open() as store:
        store.write(Begun(time.time(), "same", RunConfig(work="coded").table()))
    with pytest.raises(Unusable, match="run same: saw it running, needed it to be over"):
        running.run(Wanted(None, {} if wanted else {"run": "same"}, superlink="ward", **wanted))
    assert not made.settings


def test_run_is_not_resumed_with_fewer_rounds_than_done(apart):
    with Store.open() as store:
        complete(store, "far")
    saved(apart / "fedgc" / "runs" / "far", round_=27)
    with pytest.raises(Unusable, match="setting rounds: saw 1, the run is at 27, needed more"):
        running.run(Wanted(2, {"rounds": 1}, resume="far"))


@pytest.mark.parametrize("more", [{}, {"rounds": 1}])
def test_complete_run_is_resumed_only_with_more_rounds(stand, apart, monkeypatch, more):
    saved(apart / "fedgc" / "runs" / "over")
    monkeypatch.setattr(running.up, "NAME", "ward")

    def go_on(store: Store, name: str) -> None:
        store.write(Begun(2000.0, name, RunConfig(rounds=2).table()))
        store.write(Ended(2001.0, name, "completed"))

    with Store.open() as store:
        store.write(Begun(1000.0, "over", RunConfig(rounds=1).table()))
        tell_as(store, "over")
        store.write(Ended(1001.0, "over", "completed"))
        before = store.run("over")
    made = stand(go_on)
    with pytest.raises(Unusable, match="run over is complete at round 1: --set rounds=N, above 1, trains on"):
        running.run(Wanted(None, more, superlink="ward", resume="over"))
    assert not made.settings, "nothing was submitted"
    with Store.open() as store:
        assert store.run("over") == before
    running.run(Wanted(None, {"rounds": 2}, superlink="ward", resume="over"))
    assert made.settings["rounds"] == 2


def test_complete_run_goes_on_from_model_that_was_restored():
    config = RunConfig(rounds=2, resume="over")
    with Store.open() as store:
        store.write(Begun(1000.0, "over", RunConfig(rounds=2).table()))
        tell_as(store, "over")
        store.write(Appended(1001.0, "over", replace(ROW, round=2)))
        store.write(Decided(1002.0, "over", 1, "restore"))
        store.write(Ended(1003.0, "over", "completed"))
        with pytest.raises(Unusable, match="run over is complete at round 2"):
            beginning.must_have_rounds_left(config, store)
        store.write(Decided(1004.0, "over", 1, "restore"))
        beginning.must_have_rounds_left(config, store)
        with pytest.raises(Unusable, match="run over is complete at round 1"):
            beginning.must_have_rounds_left(replace(config, rounds=1), store)


def test_run_without_model_is_not_resumed(stand, apart, monkeypatch):
    monkeypatch.setattr(running.up, "NAME", "ward")
    with Store.open() as store:
        store.write(Begun(1000.0, "early", RunConfig(rounds=9).table()))
        store.write(Ended(1001.0, "early", "stopped"))
    made = stand()
    with pytest.raises(Unusable, match=r"run early: saw no checkpoint in .*: start it again"):
        running.run(Wanted(None, {}, superlink="ward", resume="early"))
    assert not made.settings, "nothing was submitted"


def test_stopped_last_round_is_not_counted_as_done():
    with Store.open() as store:
        store.write(Begun(1000.0, "over", RunConfig(rounds=2).table()))
        tell_as(store, "over")
        store.write(Appended(1001.0, "over", replace(ROW, round=2, outcome="stopped")))
        store.write(Ended(1002.0, "over", "completed"))
        beginning.must_have_rounds_left(RunConfig(rounds=2, resume="over"), store)
        with pytest.raises(Unusable, match="run over is complete at round 1: --set rounds=N, above 1"):
            beginning.must_have_rounds_left(RunConfig(rounds=1, resume="over"), store)


def test_run_of_other_store_is_resumed_without_records_here(stand):
    made = stand()
    running.run(Wanted(None, {"resume": "there"}, superlink="ward"))
    assert made.settings["resume"] == "there"


def test_best_figure_of_unknown_direction_is_refused_before_start(apart):
    refused = (
        "setting validate.best-is: saw auto, needed highest or lowest for validate.best = distance, whose"
    )
    with pytest.raises(BadSetting, match=refused):
        running.run(Wanted(2, {"validate.best": "distance"}))


@pytest.mark.parametrize("name", ["history.checkpoint-dir", "history.log-file"])
def test_unwritable_output_is_refused_before_start(apart, name):
    (apart / "file").write_text("")
    (apart / "folder").mkdir()
    place = "file" if name.endswith("dir") else "folder"
    with pytest.raises(Unusable, match=rf"setting {name}: saw {apart / place} \("):
        running.run(Wanted(2, {name: place}))


def test_server_output_paths_are_relative_to_callers_folder(stand, apart, monkeypatch):
    monkeypatch.setattr(running.up, "NAME", "ward")
    made = stand(complete)
    running.run(
        Wanted(None, {"history.checkpoint-dir": "models", "history.log-file": "lines.json"}, superlink="ward")
    )
    assert made.settings["history.checkpoint-dir"] == str(apart / "models")
    assert made.settings["history.log-file"] == str(apart / "lines.json")


def test_ended_or_silent_run_is_not_awaited(capsys):
    with Store.open() as store:
        store.write(Begun(1000.0, "r", RunConfig(work="coded").table()))
        tell(store, 1)
        store.write(Present(1000.0, "r", {}))
    with pytest.raises(EdgeFailed, match="has recorded nothing for 60 s"):
        running.attach("r", alone=True)
    with Store.open() as store:
        store.write(Ended(time.time(), "r", "completed"))
    running.attach("r", alone=True)
    assert capsys.readouterr().out.count("round 1: synced") == 2


def test_attach_refuses_other_options():
    with pytest.raises(Unusable, match="saw other words with it"):
        running.attach("r", alone=False)


@pytest.mark.usefixtures("signals")
def test_ctrl_c_stops_run_while_its_store_fails(stand, monkeypatch):
    def interrupt(store: Store, name: str) -> None:
        complete(store, name)
        monkeypatch.setattr(Store, "run", away)
        os.kill(os.getpid(), signal.SIGINT)

    def away(self: Store, key: str):
        raise EdgeFailed("store: the connection was closed")

    made = stand(interrupt)
    with pytest.raises(EdgeFailed, match="the connection was closed"):
        running.run(Wanted(None, {}, superlink="ward"))
    assert made.stopped


class Unread(Console):
    """A console whose pipe is closed once a run is under way: rich has discarded the output before."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise SystemExit(1)


class ClosingPipe:
    """The end of a pipe whose reader ends at a word."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        if "round 1: synced" in text:
            raise BrokenPipeError
        return len(text)

    def flush(self) -> None:
        """Do nothing."""


def unread(_: Store, name: str) -> None:
    with Store.open() as store:
        complete(store, name)
        store.write(Appended(1001.5, name, replace(ROW, round=2)))
        store.write(Ended(1002.0, name, "stopped", "stopped by the user"))


def test_run_whose_output_is_closed_is_stopped_and_told(stand, monkeypatch):
    """As by `fedgc run | head`."""
    made = stand(unread)
    monkeypatch.setattr(running.view, "terminal", lambda: Unread(file=ClosingPipe(), width=200))
    monkeypatch.setattr(follow, "LOG_S", -1.0)
    again = f"{running.UNREAD}: stopped after round 2; `fedgc run --resume same` goes on"
    with pytest.raises(EdgeFailed, match=f"^{again}$"):
        running.run(Wanted(None, {"run": "same"}, superlink="ward"))
    assert made.stopped


def test_run_whose_output_is_closed_and_cannot_be_stopped_is_told(stand, monkeypatch):
    def stop(run: int) -> None:
        raise EdgeFailed("out of reach")

    stand(unread).stop = stop
    monkeypatch.setattr(running.view, "terminal", lambda: Unread(file=ClosingPipe(), width=200))
    monkeypatch.setattr(follow, "LOG_S", -1.0)
    with pytest.raises(EdgeFailed, match=f"^{running.UNREAD}: {running.NOT_STOPPED}: out of reach"):
        running.run(Wanted(None, {"run": "same"}, superlink="ward"))
