"""Test the run of a site: it trains what a consortium asks for, from the consortium's model."""

import math

import pytest

from fedgc.errors import Unusable
from fedgc.messages import Lost, Reveal, StepsGranted, Stop, Tick, UpdateDue, Work
from fedgc.run.machine import Finished
from fedgc.run.site_steps import SiteSteps
from tests.run.test_local_run import CLIENTS, Fleet


@pytest.fixture
def steps() -> SiteSteps:
    return SiteSteps()


@pytest.fixture
def fleet(steps: SiteSteps) -> Fleet:
    return Fleet(site=steps, gate="every", lockstep="on", rounds=1)


def grant(fleet: Fleet, limit: int, origin: str = "", first_step: int = 0) -> None:
    fleet.say(StepsGranted(fleet.now, origin, first_step, limit))


def test_gathered_site_waits_for_steps(fleet: Fleet, steps: SiteSteps) -> None:
    assert steps.ready
    assert not fleet.of(Work)
    fleet.say(Tick(10_000.0))
    assert fleet.run.next_tick == math.inf
    assert not fleet.run.finished


def test_granted_steps_become_rounds_of_fleet(fleet: Fleet, steps: SiteSteps) -> None:
    grant(fleet, 12)
    for _ in range(3):
        fleet.do_a_round()
    assert [work.target for work in fleet.of(Work)[::4]] == [5, 5, 2]
    assert (steps.done, steps.left, fleet.run.round) == (12, 0, None)


def test_model_of_consortium_is_new_version(fleet: Fleet, steps: SiteSteps) -> None:
    grant(fleet, 5)
    fleet.do_a_round()
    grant(fleet, 5, "5f", first_step=16)
    assert [(work.version, work.first_step) for work in fleet.of(Work)[-4:]] == [(2, 16)] * 4
    assert (steps.origin, steps.done) == ("5f", 0)


def test_due_site_collects_finished_work_of_its_fleet(fleet: Fleet, steps: SiteSteps) -> None:
    grant(fleet, 5)
    fleet.report(CLIENTS[0])
    assert not fleet.of(Reveal)
    fleet.say(UpdateDue(fleet.now))
    assert [reveal.client for reveal in fleet.of(Reveal)] == list(CLIENTS)
    fleet.do_a_round()
    assert fleet.outcomes == ["synced"]
    assert steps.done == 5
    assert steps.rests


def test_site_without_fleet_ends(fleet: Fleet) -> None:
    for client in CLIENTS:
        fleet.say(Lost(1.0, client))
    grant(fleet, 5)
    fleet.say(Tick(fleet.run.next_tick))
    (finished,) = fleet.of(Finished)
    assert not finished.complete


def test_resting_site_stops(fleet: Fleet) -> None:
    fleet.say(Stop(1.0, "over", complete=True))
    assert fleet.of(Finished) == [Finished("over", True)]


def test_damaged_steps_of_checkpoint_are_refused() -> None:
    with pytest.raises(Unusable, match="needed a digest and steps"):
        SiteSteps.read('{"a": 1}')
