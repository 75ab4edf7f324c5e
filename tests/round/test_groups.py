"""Test which clients form a group, and that a round ends with a quorum of any one group."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.history import Speed, Speeds
from fedgc.round.groups import APART, groups_by_speed
from fedgc.round.local.quorum import is_quorum, quorum_of
from fedgc.round.local.weights import FEWEST
from fedgc.round.plan import Chunk, Fleet, Plan, make_plan
from tests.config_of import config_of

SIZE, STEPS = 1000, 16


def planned(*speeds: Speed, unknown: int = 0, **settings: object) -> Plan:
    names = [each.client for each in speeds] + [f"unknown {at}" for at in range(unknown)]
    table = tuple(Chunk(w, f"chunk {w}", 10) for w in range(len(names)))
    fleet = Fleet({name: frozenset({w}) for w, name in enumerate(names)}, table, SIZE)
    values = {"work": "local", "late_updates": "count", "groups": "speed", "aggregator": "weighted-mean"}
    config = config_of({**values, **settings})
    return make_plan(fleet, Speeds({each.client: each for each in speeds}), config, steps=STEPS)


def speeds(*step_s: float) -> list[Speed]:
    return [Speed(f"client {w}", each) for w, each in enumerate(step_s)]


def test_clients_of_about_same_speed_form_group():
    plan = planned(*speeds(1.0, 20.0, 1.9, 5.0, 9.9))
    assert plan.groups == ({0, 2}, {3, 4}, {1})
    assert plan.reason.endswith("; groups by speed, of 2, 2, 1 clients")


def test_links_count_as_steps_do():
    """A model of 4,000 bytes takes 40 s down or up, as long as 16 steps of 2.5 s."""
    quick = Speed("quick", 0.01, up_bytes_s=1e6, down_bytes_s=1e6)
    slow = [replace(quick, down_bytes_s=100.0), replace(quick, up_bytes_s=100.0), replace(quick, step_s=2.5)]
    plan = planned(quick, *(replace(each, client=f"slow {at}") for at, each in enumerate(slow)))
    assert plan.groups == ({0}, {1, 2, 3})
    assert plan.round_s == pytest.approx((0.168, 40.164, 40.164, 40.008))


def test_unknown_times_of_client_count_as_median():
    assert planned(*speeds(1.0, 1.0, 9.0), unknown=1).groups == ({0, 1, 3}, {2})
    linked = [Speed(f"client {w}", 0.01, up_bytes_s=100.0, down_bytes_s=100.0) for w in range(4)]
    assert planned(*linked, unknown=1).groups == ()
    assert planned(*linked[:3], Speed("slow", 0.01, up_bytes_s=10.0), unknown=1).groups == ({0, 1, 2, 4}, {3})


def test_clients_without_history_or_setting_form_no_groups():
    assert planned(unknown=4).groups == ()
    plan = planned(*speeds(1.0, 1.0, 9.0, 9.0), groups="off")
    assert (plan.groups, plan.reason) == ((), planned(*speeds(1.0, 1.0, 1.0, 1.0)).reason)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12))
def test_groups_are_apart_and_hold_each_client_once(seconds: list[float]):
    groups = groups_by_speed(seconds)
    found = [sorted(seconds[w] for w in group) for group in groups]
    assert sorted(w for group in groups for w in group) == (list(range(len(seconds))) if groups else [])
    assert not groups or len(seconds) > FEWEST
    assert all(group[-1] < APART * group[0] for group in found)
    assert all(below[0] * APART <= above[0] for below, above in pairwise(found))


def test_quorum_of_any_group_is_enough():
    plan = planned(*speeds(1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0), quorum=0.75)
    able = set(range(7))
    assert not is_quorum(plan, able, {0, 1, 4, 5})
    assert is_quorum(plan, able, {0, 1, 2})
    assert is_quorum(plan, able, {4, 5, 6})
    assert quorum_of(plan, able) == 3


def test_group_without_able_clients_makes_no_quorum():
    plan = planned(*speeds(1.0, 1.0, 9.0, 9.0), quorum=0.5)
    assert not is_quorum(plan, {2, 3}, {3})
    assert is_quorum(plan, {2, 3}, {2, 3})
    assert not is_quorum(plan, set(), set())
    assert quorum_of(plan, set()) == 0


def test_small_group_makes_no_model_alone():
    """So a client that claims to be the quickest by far does not make models of its own updates."""
    plan = planned(*speeds(1.0, 9.0, 9.0, 9.0), quorum=0.5)
    able = set(range(4))
    assert not is_quorum(plan, able, {0})
    assert is_quorum(plan, able, {0, 1, 2})
    assert quorum_of(plan, able) == plan.fewest == 3
    three_of_twenty = planned(*speeds(*[1.0] * 3, *[9.0] * 17))
    assert not is_quorum(three_of_twenty, set(range(20)), set(range(6)))
    assert is_quorum(three_of_twenty, set(range(20)), set(range(7)))
