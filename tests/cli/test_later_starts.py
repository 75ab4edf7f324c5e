"""Test `fedgc run` and `fedgc serve` with an app that calls `FedGC.start` twice."""

import time
from pathlib import Path

import pytest

from fedgc.cli import run as running
from fedgc.cli.run import Wanted
from fedgc.config import RunConfig
from fedgc.errors import Unusable
from fedgc.store.database import Store
from fedgc.store.records import Begun, Ended
from tests.cli.test_run import apart, saved, stand, tell_as

__all__ = ["apart", "stand"]


def write_start(store: Store, name: str, state: str, reason: str = "", now: float = 1000.0) -> None:
    """Record a start of the app of run ward."""
    store.write(Begun(now, name, RunConfig(run="ward", rounds=1).table()))
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

    def both(store: Store, name: str) -> None:
        for each in (name, f"{name}-2"):
            write_start(store, each, "completed", now=2000.0)

    made = stand(both)
    running.run(Wanted(None, {}, superlink="ward", resume="ward"))
    assert (made.settings["run"], made.settings["resume"]) == ("ward", "ward")
    with pytest.raises(Unusable, match="run ward-2 is complete at round 1: --set rounds=N, above 1"):
        running.run(Wanted(None, {}, superlink="ward", resume="ward"))


@pytest.mark.usefixtures("resumable")
def test_app_is_not_resumed_while_later_start_is_under_way(stand):
    with Store.open() as store:
        write_start(store, "ward", "completed")
        write_start(store, "ward-2", "running", now=time.time())
    made = stand()
    with pytest.raises(Unusable, match="run ward-2: saw it running, needed it to be over"):
        running.run(Wanted(None, {}, superlink="ward", resume="ward"))
    assert not made.settings, "nothing was submitted"
