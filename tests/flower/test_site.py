"""Test sites: a fleet with a server of its own is one client of a consortium."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedgc.errors import BadMessage
from fedgc.flower.driver import Driver
from fedgc.flower.site import GatewayLine, NewModel, SiteState
from fedgc.run.outputs import Apply
from fedgc.run.site_steps import SiteSteps
from fedgc.training.cache_files import digest_of
from fedgc.training.loop.leader import Action, Do
from tests.site_fleet import Fleet, Rows, served

SECONDS = 30.0


def site(folder: Path, *members: int | Fleet, pace_s: float = 0.0, **settings: object) -> Fleet:
    return Fleet(folder, members, {"site_gateway": str(folder), **settings}, pace_s)


def test_site_in_region_gives_mean_of_all_clients(tmp_path: Path) -> None:
    pooled = Fleet(tmp_path / "pooled", [0, 1, 2, 3], {"rounds": 2})
    pooled.run()
    north = site(tmp_path / "north", 0, 1)
    region = site(tmp_path / "region", north, 2)
    nested = Fleet(tmp_path / "nested", [region, 3], {"rounds": 2})
    nested.run()
    for each in (nested, region, north):
        assert [row.outcome for row in each.sink.rows] == ["synced", "synced"]
    np.testing.assert_allclose(nested.driver.model, pooled.driver.model, atol=2e-5)


def test_site_trains_again_from_version_with_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean update that is not finite is left out, and the next version is the same model."""
    stepped = Driver._stepped

    def without_step(driver: Driver, apply: Apply) -> object:
        if driver._job.gateway is not None:
            return stepped(driver, apply)
        driver._taken_mean(apply)
        return None

    monkeypatch.setattr(Driver, "_stepped", without_step)
    north = site(tmp_path / "north", 0, 1)
    Fleet(tmp_path / "both", [north, 2], {"rounds": 2}).run()
    assert [row.outcome for row in north.sink.rows] == ["synced", "synced"]


def first_model(fleet: Fleet, folder: Path) -> np.ndarray:
    """Return what a gateway of this fleet answers to a request for the first model."""
    place = folder / "gateway"
    engine = fleet._gateway(place, folder, time.sleep)
    server = threading.Thread(target=served, args=(fleet, place))
    server.start()
    try:
        end = time.monotonic() + SECONDS
        while engine.layout is None:
            assert time.monotonic() < end, "the site has not gathered"
            time.sleep(0.01)
        return engine.initial()
    finally:
        engine.close()
        server.join(SECONDS)


def test_resumed_site_gives_no_first_model(tmp_path: Path) -> None:
    north = site(tmp_path / "north", 0, 1)
    Fleet(tmp_path / "both", [north, 2], {"rounds": 1}).run()
    assert np.abs(north.saved[-1].model).max() > 0
    fresh = site(tmp_path / "fresh", 0, 1)
    assert first_model(fresh, tmp_path / "first").size == north.saved[-1].model.size
    resumed = replace(fresh, resume=north.saved[-1], sink=Rows(), saved=[], killed=threading.Event())
    with pytest.raises(BadMessage, match="this one is trained already"):
        first_model(resumed, tmp_path / "second")


@pytest.mark.parametrize(("loss", "told"), [(0.5, [0.5]), (None, [])])
def test_site_tells_loss_that_its_clients_tell(loss: float | None, told: list[float]) -> None:
    logged: list[float] = []
    leader = SimpleNamespace(steps=0, log_loss=logged.append, count_steps=lambda *_: None)
    state = SiteState(SiteSteps(done=4, loss=loss), np.zeros(2, np.float32), 1.0, 8, works=False)
    GatewayLine(leader)._count(state)
    assert logged == told


@pytest.mark.slow
def test_site_hands_in_partial_rounds_at_deadline(tmp_path: Path) -> None:
    north = site(tmp_path / "north", 0, 1, pace_s=0.2, local_steps=40)
    both = Fleet(tmp_path / "both", [north, 2], {"rounds": 2, "local_steps": 40, "deadline_s": 4.0})
    both.run()
    for row in both.sink.rows:
        assert row.outcome == "synced"
        counted = sorted(client.counted for client in row.clients)
        assert 0 < counted[0] < counted[1] == 40
    assert [row.outcome for row in north.sink.rows] == ["synced", "synced"]


@pytest.mark.slow
def test_returning_gateway_loses_no_round_of_its_site(tmp_path: Path) -> None:
    north = site(tmp_path / "north", 0, 1, pace_s=0.05, local_steps=4)
    settings = {"rounds": 1, "local_steps": 24}
    both = Fleet(tmp_path / "both", [north, 2], settings, pace_s=0.4)
    consortium = threading.Thread(target=both.run)
    consortium.start()
    end = time.monotonic() + SECONDS
    while len(north.saved) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    north.killed.set()
    consortium.join(SECONDS)
    assert sorted(client.counted for client in both.sink.rows[0].clients) == [24, 24]
    steps = [max(c.counted for c in row.clients) for row in north.sink.rows + north.again.sink.rows]
    assert sum(steps[: len(north.saved)]) >= 12
    assert north.again.resume.round + len(north.again.sink.rows) == 6


@pytest.mark.parametrize(("first", "told", "keeps"), [(True, 8, True), (True, 24, False), (False, 8, False)])
def test_resumed_site_keeps_steps_beyond_cache_of_gateway(*, first: bool, told: int, keeps: bool) -> None:
    """A gateway that was killed gives the model that its cache holds, from which the site has trained on."""
    cached, newer = np.zeros(2, np.float32), np.ones(2, np.float32)
    leader = SimpleNamespace(steps=told, common=cached)
    origin = f"3 {digest_of(cached)}" if first else "2 of another model"
    steps = SiteSteps(origin, done=16)
    line = GatewayLine(leader)
    state = SiteState(steps, newer, 1.0, 8, works=False)
    asked = list(line._do(Action(Do.LOAD, version=3, steps=told), state))
    assert ([] if keeps else [NewModel]) == [type(each) for each in asked]
    assert steps.done == (16 if keeps else told)
