"""Test policies against hand-computed rounds, and properties of all policies."""

from dataclasses import replace

import numpy as np
import pytest

from fedgc.errors import BadPlacement, BadSetting
from fedgc.history import RoundRow
from fedgc.sim import (
    DropSlowest,
    Fedgc,
    Obeys,
    OverSelection,
    PartialStragglers,
    Uncoded,
    WorkQueue,
    baselines,
    find,
    ours,
)
from fedgc.sim.baselines import matching_orders
from fedgc.sim.clock import MODELS, NEVER, UNCONTENDED, working

FOUR = (working([[1.0], [1.0], [2.0], [4.0]], up_s=1.0),)


def seconds(policy, scenario=FOUR, line=UNCONTENDED):
    return policy.play(scenario, line)[0].seconds


# ---- by hand: paces 1, 1, 2, 4; an upload takes 1


def test_uncoded_waits_for_slowest():
    assert seconds(Uncoded()) == 5.0


def test_idle_client_takes_next_piece_of_queue():
    """Four pieces: two fast ones take 1 s, then the two slow ones have begun theirs already."""
    assert seconds(WorkQueue(1)) == 5.0
    assert seconds(WorkQueue(2)) == 2.0 + 1.0
    assert seconds(WorkQueue(2, wire=0.25)) == 2.0 + 0.25


def test_queue_repeats_work_of_dead_client():
    dying = (replace(FOUR[0], dies_s_w=np.array([0.75, NEVER, NEVER, NEVER])),)
    result = WorkQueue(2).play(dying, UNCONTENDED)[0]
    assert result.exact
    assert result.computed > 4.0
    alone = (replace(working([[1.0]]), dies_s_w=np.array([0.5])),)
    assert seconds(WorkQueue(2), alone) == NEVER


def test_leaving_out_slowest_reports_missing_work():
    result = DropSlowest(0.25).play(FOUR, UNCONTENDED)[0]
    assert (result.seconds, result.missing, result.exact) == (3.0, 0.25, False)
    assert OverSelection(2.0).play(FOUR, UNCONTENDED)[0].missing == 0.5
    assert seconds(OverSelection(2.0)) == 2.0


def test_published_protocol_stops_at_given_replicas():
    """Two clients, both hold both, in opposite orders: at blocks 2 the slower one needs both."""
    two = (working([[1.0], [3.0]]),)
    assert sorted(map(tuple, matching_orders(2, 2).tolist())) == [(0, 1), (1, 0)]
    assert seconds(PartialStragglers(2), two) == 2.0
    assert seconds(PartialStragglers(2, blocks=2), two) == 6.0


@pytest.mark.parametrize(("clients", "load"), [(7, 3), (12, 8), (5, 5)])
def test_every_position_of_matching_orders_is_matching(clients, load):
    orders = matching_orders(clients, load)
    assert all(sorted(column.tolist()) == list(range(clients)) for column in orders.T)
    assert all(len(set(row)) == load for row in orders.tolist())


# ---- fedgc through the run


@pytest.mark.parametrize("obeys", Obeys)
def test_fedgc_is_exact_for_any_obedient_clients(obeys):
    results = Fedgc(3, 2, 1, obeys).play(MODELS["bimodal"](9, 3, np.random.default_rng(1)), UNCONTENDED)
    assert all(result.exact for result in results)
    assert all(result.discarded >= -1e-9 for result in results)


def test_skipping_and_steering_each_reduce_time():
    scenario = MODELS["shifted-exponential"](30, 6, np.random.default_rng(0))
    static, skip, steer = (
        np.mean([result.seconds for result in Fedgc(4, 5, 1, obeys).play(scenario, UNCONTENDED)])
        for obeys in Obeys
    )
    assert static > skip > steer


def test_fedgc_loses_nothing_without_stragglers():
    scenario = MODELS["homogeneous"](12, 2, np.random.default_rng(0))
    assert seconds(Fedgc(1, 1), scenario) == pytest.approx(seconds(Uncoded(), scenario))


def test_every_round_starts_with_all_clients_despite_deaths():
    scenario = MODELS["fail-stop"](50, 3, np.random.default_rng(0))
    results = Fedgc(4, 4).play(scenario, UNCONTENDED)
    assert all(result.exact for result in results)
    assert max(result.seconds for result in results) < 3.0


def test_more_replicas_than_clients_are_refused():
    with pytest.raises(BadPlacement, match="5 replicas on 4 clients"):
        Fedgc(5, 1).play(FOUR, UNCONTENDED)


# ---- of all policies


def test_names_are_unique_and_found():
    names = [policy.name for policy in (*baselines(8), *ours(8, 1), *ours(8, 2))]
    assert len(set(names)) == len(names)
    assert [policy.name for policy in find(["uncoded", "work"], baselines(8))] == [
        "uncoded",
        "work queue of 10",
    ]
    with pytest.raises(BadSetting, match="did you mean over-selection"):
        find(["over-selecton"], baselines(8))


@pytest.mark.parametrize("policy", [*baselines(4), *ours(4, 1)], ids=lambda policy: policy.name)
def test_policy_is_repeatable(policy):
    scenario = MODELS["bimodal"](8, 3, np.random.default_rng(3))
    assert policy.play(scenario, UNCONTENDED) == policy.play(scenario, UNCONTENDED)


def spared(slow_s: list[float]) -> list[int]:
    """The discarded work of 20 clients in each round; the first has the given uplink."""
    scenario = MODELS["shifted-exponential"](20, len(slow_s), np.random.default_rng(0))
    others = [4.0] * 19
    linked = [
        replace(each, up_s_w=np.array([up_s, *others])) for each, up_s in zip(scenario, slow_s, strict=True)
    ]
    rows: list[RoundRow] = []
    Fedgc(4, 5, 1).watched(tuple(linked), UNCONTENDED, watch=False, heard=rows.append)
    return [row.discarded for row in rows]


def test_clients_keep_training_while_slow_uplink_exists():
    first, *then = spared([60.0] * 8)
    assert min(then) > 100 > first, "although the slow one's codeword never comes: there are 100 chunks"
    *slow, cured = spared([9.0] * 3 + [4.0] * 9)
    assert min(slow[1:3]) > 100
    assert cured == 0
