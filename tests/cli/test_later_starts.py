"""Test `fedgc run` and `fedgc serve` with an app that calls `FedGC.start` twice."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from fedgc.cli import run as running
from fedgc.cli import serve as serving
from fedgc.cli.new_app import write_new
from fedgc.cli.run import Wanted
from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, Unusable
from fedgc.store.database import Store
from fedgc.store.later_starts import SUBMITTED_ROUNDS
from fedgc.store.records import Begun, Ended
from tests.cli.test_run import apart, saved, stand, tell_as
from tests.cli.test_serve import Starts

__all__ = ["apart", "stand"]
NONE: Mapping[str, int] = {}


def write_start(
    store: Store, name: str, state: str, reason: str = "", now: float = 1000.0, more: Mapping[str, int] = NONE
) -> None:
    """Record a start of the app of run ward."""
    store.write(Begun(now, name, {**RunConfig(run="ward", rounds=1).table(), **more}))
    tell_as(store, name)
    if state != "running":
        store.write(Ended(now + 1, name, state, reason))


@pytest.fixture
def resumable(apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(apart / "fedgc" / "runs" / "ward")
    monkeypatch.setattr(running.up, "NAME", "ward")


@pytest.mark.usefixtures("resumable")
def test_app_is_resumed_until_its_last_start_is_complete(stand):
    with Store.open() as store:
        write_start(store, "ward", "completed")
        write_start(store, "ward-2", "stopped")
    made = stand(both)
    running.run(Wanted(None, {}, superlink="ward", resume="ward"))
    assert (made.settings["run"], made.settings["resume"]) == ("ward", "ward")
    with pytest.raises(Unusable, match="run ward-2 is complete at round 1: --set rounds=N, above 1"):
        running.run(Wanted(None, {}, superlink="ward", resume="ward"))


@pytest.mark.usefixtures("resumable")
def test_resumed_app_gets_rounds_it_was_submitted_with(stand):
    """Its first start was given fewer, as its argument `num_rounds`."""
    with Store.open() as store:
        write_start(store, "ward", "completed", more={SUBMITTED_ROUNDS: 9})
        write_start(store, "ward-2", "stopped")
    made = stand(both)
    running.run(Wanted(None, {}, superlink="ward", resume="ward"))
    assert made.settings["rounds"] == 9


@pytest.mark.usefixtures("resumable")
def test_app_is_not_resumed_while_later_start_is_under_way(stand):
    with Store.open() as store:
        write_start(store, "ward", "completed")
        write_start(store, "ward-2", "running", now=time.time())
    made = stand()
    with pytest.raises(Unusable, match="run ward-2: saw it running, needed it to be over"):
        running.run(Wanted(None, {}, superlink="ward", resume="ward"))
    assert not made.settings, "nothing was submitted"


@pytest.fixture
def wanted(apart: Path) -> Wanted:
    """A run of an app of the user's own."""
    write_new(apart / "app")
    return Wanted(None, {"run": "ward"}, superlink="ward", folder=apart / "app")


def both(store: Store, _: str, ends: str = "completed", reason: str = "") -> None:
    """Write two starts of an app, of which the second ends like this."""
    now = time.time()
    write_start(store, "ward", "completed", now=now)
    write_start(store, "ward-2", ends, reason, now=now)
    saved(Path(os.environ["XDG_STATE_HOME"]) / "fedgc" / "runs" / "ward")


def test_later_start_is_named_and_so_is_its_end(stand, wanted, capsys):
    stand(both)
    running.run(wanted)
    said = capsys.readouterr().out
    assert "the app has begun run ward-2: `fedgc watch ward-2` shows it" in said
    assert said.endswith("run ward-2: completed, 1 round\n")


def test_failed_later_start_fails_run(stand, wanted):
    stand(lambda store, name: both(store, name, "failed", "too few clients"), "finished:failed")
    says = "the run did not complete: run ward-2: too few clients; `fedgc run --resume ward` goes on"
    with pytest.raises(EdgeFailed, match=f"^{says}$"):
        running.run(wanted)


def test_failure_of_app_after_its_starts_fails_run(stand, wanted):
    made = stand(both, "finished:failed")

    def fails(store: Store, name: str) -> None:
        both(store, name)
        made.log(1).write_text("ERROR : RuntimeError: no space\nERROR : Exit Code: 201\n")

    made.does = fails
    says = "the run is complete, but its app failed after the last round: RuntimeError: no space"
    with pytest.raises(EdgeFailed, match=f"^{says}$"):
        running.run(wanted)


@pytest.fixture
def served(apart: Path, monkeypatch: pytest.MonkeyPatch):
    def make(status: str, *script) -> Starts:
        monkeypatch.setattr(serving, "FIRST_PAUSE_S", 0.01)
        made = Starts(apart, *script)
        made.ended = status
        monkeypatch.setattr(running, "named", lambda name, folder: made)
        return made

    return make


def test_server_resumes_app_until_its_later_start_is_complete(served, wanted, capsys):
    made = served(
        "finished:completed", lambda store, name: both(store, name, "failed", "too few clients"), both
    )
    serving.serve(wanted, 5)
    assert [resume for _, resume in made.given] == ["", "ward"]
    serving.serve(wanted, 5)
    assert "run ward-2 is complete" in capsys.readouterr().out
    assert not made.script


def test_server_does_not_restart_complete_run_whose_app_failed(served, wanted):
    made = served("finished:failed", both)
    with pytest.raises(EdgeFailed, match="the run is complete, but its app failed after the last round"):
        serving.serve(wanted, 5)
    assert len(made.given) == 1
