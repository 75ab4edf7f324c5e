"""Test the replication target against rounds with known waits and link speeds."""

from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.messages import Lost, Skip
from fedgc.round.machine import Assignment, Round, State
from fedgc.round.replication import FEW, FORGOTTEN_AFTER, RECENT_ROUNDS, ReplicationCosts, ReplicationTarget
from fedgc.sim.clock import MODELS, UNCONTENDED
from fedgc.sim.ours import Fedgc
from tests.coded_round import TARGET, Clients, joined, planned, progress, sync, work


def played(
    replication: ReplicationTarget,
    waits: list[float],
    upload_s: float,
    guess: float = 0.0,
    dearer: float = 1.0,
) -> int:
    """Play a round that waits `waits[k]` from k to k + 1 replicas; return the collected replicas.

    The guess is what the round takes any wait for that was never seen; on the way waits are `dearer`.
    """
    replication_costs = replication.replication_costs("a", 1)
    began = aim = min(replication_costs.aim, len(waits))
    while aim < len(waits) and replication_costs.pays(aim, guess, upload_s):
        aim += 1
    passed = [wait * (dearer if at >= began else 1.0) for at, wait in enumerate(waits[:aim])]
    replication.learn(list(accumulate(passed)), 1, aim, upload_s / aim, began=began)
    return aim


def best(waits: list[float], upload_s: float) -> float:
    return min(total(waits, upload_s, replicas) for replicas in range(1, len(waits) + 1))


def total(waits: list[float], upload_s: float, replicas: int) -> float:
    return sum(waits[:replicas]) + upload_s / replicas


@given(st.lists(st.floats(0.1, 5.0), min_size=1, max_size=6), st.floats(0.0, 50.0), st.floats(1.0, 1.6))
def test_replication_reaches_best_count_under_growing_waits(waits, upload_s, dearer):
    """Even if waiting is underestimated, except for rounds that retry a rarely seen option."""
    waits, replication = sorted(waits), ReplicationTarget()
    for _ in range(2 * len(waits)):
        played(replication, waits, upload_s, dearer=dearer)
    tried = [played(replication, waits, upload_s, dearer=dearer) for _ in range(3 * RECENT_ROUNDS)]
    good = [
        replicas for replicas in tried if total(waits, upload_s, replicas) <= best(waits, upload_s) + 1e-9
    ]
    assert len(good) >= len(tried) - FEW


@given(st.lists(st.floats(0.1, 5.0), min_size=2, max_size=6), st.floats(0.0, 50.0))
def test_well_known_option_is_retried_only_when_forgotten(waits, upload_s):
    replication = ReplicationTarget()
    for _ in range(2 * len(waits)):
        played(replication, waits, upload_s)
    tried = [played(replication, waits, upload_s) for _ in range(FORGOTTEN_AFTER - 2 * len(waits) - 1)]
    changes = sum(before != after for before, after in pairwise(tried))
    assert changes <= 2 * (FEW - 1)
    assert len({*tried[-FORGOTTEN_AFTER // 2 :]}) == 1


def test_old_waiting_cost_is_measured_again():
    replication = ReplicationTarget()
    again = [2, *[1] * RECENT_ROUNDS]
    expected = [*again * (FEW - 1), 2, *[1] * FORGOTTEN_AFTER, *again]
    assert [played(replication, [1.0, 9.0], 10.0) for _ in expected] == expected


@pytest.mark.parametrize("unlucky", [0, 1, 2, 5])
def test_unlucky_round_affects_few_later_rounds(unlucky: int):
    replication = ReplicationTarget()
    good = [1.0, 1.0, 1.0, 1.0]
    tried = [
        played(replication, [1.0, 90.0, 90.0, 90.0] if at == unlucky else good, 24.0) for at in range(40)
    ]
    assert tried.count(4) >= 40 - RECENT_ROUNDS - 2


def test_link_changes_adjust_target_both_ways():
    replication = ReplicationTarget()
    assert [played(replication, [1.0, 2.0, 2.5], 30.0) for _ in range(2)] == [3, 3]
    assert [played(replication, [1.0, 2.0, 2.5], 0.5) for _ in range(RECENT_ROUNDS)][-1] == 1
    assert [played(replication, [1.0, 2.0, 2.5], 30.0) for _ in range(RECENT_ROUNDS)][-1] == 3


def test_other_kind_of_round_resets_replication_history():
    replication = ReplicationTarget()
    played(replication, [1.0, 2.0], 30.0)
    replication.learn([1.0, 3.0], 1, 2, 15.0, began=2)
    assert replication.replication_costs("a", 3) == ReplicationCosts((6.0,), {2: 15.0})
    assert (
        replication.replication_costs("b", 1) == ReplicationCosts() == replication.replication_costs("a", 1)
    )


def begun_with(replication_costs: ReplicationCosts, blocks: int | str = "auto") -> tuple[Round, Clients]:
    plan = planned(4, 8, replicas=4, blocks=blocks)
    machine = Round(
        plan,
        Assignment(number=1, version=0, target=TARGET, seed=0, replication_costs=replication_costs),
        sync,
    )
    clients = Clients(plan)
    clients.obey(machine.start(0.0, [joined(plan, client) for client in plan.clients]))
    return machine, clients


def test_round_first_aims_at_best_known_count():
    machine, clients = begun_with(ReplicationCosts((1.0, 5.0), {2: 4.0}))
    assert machine.progress[2] == 2
    first = machine.plan.clients[0]
    chunk = clients.queue[first][0]
    assert not [each for each in machine.handle(progress(first, chunk)) if isinstance(each, Skip)]


def test_fixed_blocks_override_best_known_count():
    machine, _ = begun_with(ReplicationCosts((1.0, 5.0), {2: 4.0}), blocks=3)
    assert machine.progress[2] == 3


def test_target_stays_within_plan():
    machine, _ = begun_with(ReplicationCosts((0.1,) * 9, {9: 1.0}))
    assert machine.progress[2] == 4


@pytest.mark.parametrize("dies", [False, True])
def test_round_reports_time_to_each_replication_level(dies: bool):
    """Replicas of a client that is lost later count as made."""
    machine, clients = begun_with(ReplicationCosts((1.0, 1.0, 1.0), {1: 20.0}))
    heard: list[list[float]] = [[] for _ in machine.plan.chunks]
    now = 0.0
    while machine.state is State.WORKING:
        now += 1.0
        name = next(each for each in clients.queue if clients.queue[each])
        heard[clients.queue[name][0]].append(now)
        work(machine, clients, name, now)
        if dies and now == 5.0:
            clients.stop(name)
            clients.obey(machine.handle(Lost(now, name)))
    replicas = min(map(len, heard))
    assert replicas >= 2
    assert list(machine.summary.covered_s) == [max(times[at] for times in heard) for at in range(replicas)]


@pytest.mark.parametrize("upload_s", [1.0, 6.0, 20.0])
def test_adaptive_rounds_are_as_quick_as_best_fixed_blocks(upload_s: float):
    scenario = MODELS["shifted-exponential"](40, 24, np.random.default_rng(0))
    scenario = tuple(replace(each, up_s_w=np.full(40, upload_s)) for each in scenario)

    def median_s(blocks: int) -> float:
        return float(
            np.median([each.seconds for each in Fedgc(4, 1, blocks).play(scenario, UNCONTENDED)[4:]])
        )

    assert median_s(0) <= 1.1 * min(map(median_s, (1, 2, 3, 4)))
