"""Policies: worked by hand where that is possible, and what holds of all of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baselines import block_coordinate, cyclic
from fedgc.errors import BadPlacement, BadSetting, NotRecoverable
from fedgc.history import RoundRow
from fedgc.sim import (
    BlockCoordinate,
    DropSlowest,
    FedBuff,
    Fedgc,
    FluidBound,
    FractionalRepetition,
    FullWorkers,
    Obeys,
    OverSelection,
    PartialStragglers,
    Uncoded,
    WorkQueue,
    bounds,
    find,
    ours,
    rivals,
)
from fedgc.sim.clock import MODELS, NEVER, UNCONTENDED, Line, working
from fedgc.sim.coded import block_sizes, matching_orders

FOUR = (working([[1.0], [1.0], [2.0], [4.0]], up_s=1.0),)


def seconds(policy, scenario=FOUR, line=UNCONTENDED):
    return policy.play(scenario, line)[0].seconds


# ---- by hand: paces 1, 1, 2, 4; an upload takes 1


def test_uncoded_waits_for_the_slowest():
    assert seconds(Uncoded()) == 5.0


def test_shares_by_speed_need_a_round_to_learn():
    first, second = Uncoded(proportional=True).play(FOUR * 2, UNCONTENDED)
    assert first.seconds == 5.0
    assert second.seconds == pytest.approx(4 / (1 + 1 + 0.5 + 0.25) + 1)


def test_a_queue_of_whole_pieces_is_taken_by_who_is_idle():
    """Four pieces: two fast ones take 1 s, then the two slow ones have begun theirs already."""
    assert seconds(WorkQueue(1)) == 5.0
    assert seconds(WorkQueue(2)) == 2.0 + 1.0
    assert seconds(WorkQueue(2, wire=0.25)) == 2.0 + 0.25


def test_a_queue_does_again_what_a_dead_client_had_done():
    dying = (replace(FOUR[0], dies_s_w=np.array([0.75, NEVER, NEVER, NEVER])),)
    result = WorkQueue(2).play(dying, UNCONTENDED)[0]
    assert result.exact
    assert result.computed > 4.0
    alone = (replace(working([[1.0]]), dies_s_w=np.array([0.5])),)
    assert seconds(WorkQueue(2), alone) == NEVER


def test_leaving_out_the_slowest_says_what_is_missing():
    result = DropSlowest(0.25).play(FOUR, UNCONTENDED)[0]
    assert (result.seconds, result.missing, result.exact) == (3.0, 0.25, False)
    assert OverSelection(2.0).play(FOUR, UNCONTENDED)[0].missing == 0.5
    assert seconds(OverSelection(2.0)) == 2.0


def test_any_m_minus_s_waits_for_so_many_full_workers():
    assert seconds(FullWorkers(2, earliest=False)) == 2 * 2.0 + 1.0
    assert seconds(FullWorkers(2, blocks=2, earliest=False)) == 2 * 4.0 + 0.5
    assert seconds(FullWorkers(1, earliest=False)) == seconds(Uncoded())


def test_the_earliest_needs_every_chunk_with_somebody():
    """Cyclic: client w holds w and w+1; 0 and 2 hold everything together."""
    assert seconds(FullWorkers(2)) == 2 * 2.0 + 1.0


def test_the_first_of_each_group_counts():
    assert seconds(FractionalRepetition(2)) == 2 * 2.0 + 1.0
    assert seconds(FractionalRepetition(4)) == 4 * 1.0 + 1.0


def test_an_unfilled_group_makes_the_others_larger():
    three = (working([[1.0]] * 3),)
    assert seconds(FractionalRepetition(2), three) == 3.0


def test_fedbuff_takes_what_comes():
    assert seconds(FedBuff()) == pytest.approx(4 / (1 / 2 + 1 / 2 + 1 / 3 + 1 / 5))


def test_the_fluid_bound_is_work_over_speed():
    assert seconds(FluidBound()) == pytest.approx(4 / 2.75 + 1.0)
    assert seconds(FluidBound(2)) == pytest.approx(8 / 2.75 + 0.5)


def test_the_published_protocol_stops_at_so_many_copies():
    """Two clients, both hold both, in opposite orders: at blocks 2 the slower one needs both."""
    two = (working([[1.0], [3.0]]),)
    assert sorted(map(tuple, matching_orders(2, 2).tolist())) == [(0, 1), (1, 0)]
    assert seconds(PartialStragglers(2), two) == 2.0
    assert seconds(PartialStragglers(2, blocks=2), two) == 6.0


def test_blocks_of_coordinates_end_together():
    sizes = block_sizes(np.array([1.0, 1.0, 2.0, 4.0]), 3)
    work = np.cumsum(np.arange(1, 4) * sizes)
    assert sizes.sum() == pytest.approx(1.0)
    assert work * np.array([4.0, 2.0, 1.0]) == pytest.approx(np.full(3, work[0] * 4.0))


def test_a_block_of_coordinates_is_sent_while_the_next_is_worked_on():
    """Two clients of pace 1 and 2: 2/3 of the coordinates need both, the rest whoever is first."""
    rounds = (working([[1.0], [2.0]], up_s=0.3),) * 2
    assert block_sizes(np.array([1.0, 2.0]), 2) == pytest.approx([2 / 3, 1 / 3])
    both_s, first_s = 2 / 3 * 2.0 + 2 / 3 * 0.3, 2 / 3 + 2 / 3 + 1 / 3 * 0.3
    assert BlockCoordinate(2).play(rounds, UNCONTENDED)[1].seconds == pytest.approx(max(both_s, first_s))
    slow = tuple(replace(each, up_s_w=np.full(2, 4.0)) for each in rounds)
    both_s, first_s = 2 / 3 * 2.0 + 2 / 3 * 4.0, max(2 / 3 + 2 / 3 * 4.0, 4 / 3) + 1 / 3 * 4.0
    assert BlockCoordinate(2).play(slow, UNCONTENDED)[1].seconds == pytest.approx(max(both_s, first_s))


# ---- the codes behind the times exist


@pytest.mark.parametrize("blocks", [1, 2])
def test_any_m_minus_s_can_be_decoded_and_fewer_cannot(blocks):
    code = cyclic(6, 3, blocks, np.random.default_rng(0))
    answered = np.ones(6, bool)
    answered[: 3 - blocks] = False
    code.weights(answered)
    answered[5] = False
    with pytest.raises(NotRecoverable):
        code.weights(answered)


def test_block_coordinate_recovers_a_block_once_so_many_are_past_it():
    code = block_coordinate(4, (0, 1, 2), np.random.default_rng(0))
    assert code.recovered([3, 3, 2, 1]) == (True, True, True)
    assert code.recovered([3, 3, 1, 1]) == (True, False, True)


@pytest.mark.parametrize(("clients", "load"), [(7, 3), (12, 8), (5, 5)])
def test_every_place_of_the_matching_orders_is_a_matching(clients, load):
    orders = matching_orders(clients, load)
    assert all(sorted(column.tolist()) == list(range(clients)) for column in orders.T)
    assert all(len(set(row)) == load for row in orders.tolist())


# ---- fedgc through the run


@pytest.mark.parametrize("obeys", Obeys)
def test_fedgc_is_exact_whatever_clients_obey(obeys):
    results = Fedgc(3, 2, 1, obeys).play(MODELS["bimodal"](9, 3, np.random.default_rng(1)), UNCONTENDED)
    assert all(result.exact for result in results)
    assert all(result.discarded >= -1e-9 for result in results)


def test_skipping_and_steering_are_each_worth_something():
    scenario = MODELS["shifted-exponential"](30, 6, np.random.default_rng(0))
    static, skip, steer = (
        np.mean([result.seconds for result in Fedgc(4, 5, 1, obeys).play(scenario, UNCONTENDED)])
        for obeys in Obeys
    )
    assert static > skip > steer


def test_nothing_is_lost_where_nobody_straggles():
    scenario = MODELS["nobody"](12, 2, np.random.default_rng(0))
    assert seconds(Fedgc(1, 1), scenario) == pytest.approx(seconds(Uncoded(), scenario))


def test_every_round_begins_with_everybody_where_clients_die():
    scenario = MODELS["fail-stop"](50, 3, np.random.default_rng(0))
    results = Fedgc(4, 4).play(scenario, UNCONTENDED)
    assert all(result.exact for result in results)
    assert max(result.seconds for result in results) < 3.0


def test_more_replicas_than_clients_are_refused():
    with pytest.raises(BadPlacement, match="5 replicas on 4 clients"):
        Fedgc(5, 1).play(FOUR, UNCONTENDED)
    with pytest.raises(BadPlacement, match="5 replicas, 4 clients"):
        FullWorkers(5).play(FOUR, UNCONTENDED)


# ---- of all policies


@settings(max_examples=25)
@given(st.sampled_from(list(MODELS)), st.integers(0, 1000), st.sampled_from([0.0, 0.5]), st.booleans())
def test_no_exact_policy_beats_the_fluid_bound(name, seed, up_s, contended):
    scenario = tuple(
        replace(each, up_s_w=np.full(8, up_s)) for each in MODELS[name](8, 2, np.random.default_rng(seed))
    )
    line = Line(update_s=0.1) if contended else UNCONTENDED
    bound = {policy.blocks: policy.play(scenario, line) for policy in bounds()}
    for policy in (*rivals(4), *ours(4, 1), *ours(4, 2)):
        if not policy.exact or policy.name.startswith("block-"):
            continue  # less work for some coordinates
        for result, least in zip(policy.play(scenario, line), bound[policy.blocks], strict=True):
            least_s = least.seconds if result.size == least.size else least.working_s  # short numbers
            assert result.seconds >= least_s - 1e-9 or not result.exact, policy.name
            assert result.working_s <= result.seconds
            assert result.discarded >= -1e-9, policy.name


@pytest.mark.parametrize("policy", [*rivals(4), *ours(4, 1)], ids=lambda policy: policy.name)
def test_a_policy_gives_the_same_again(policy):
    scenario = MODELS["bimodal"](8, 3, np.random.default_rng(3))
    assert policy.play(scenario, UNCONTENDED) == policy.play(scenario, UNCONTENDED)


def test_names_are_unique_and_found():
    names = [policy.name for policy in (*rivals(8), *ours(8, 1), *ours(8, 2), *bounds())]
    assert len(set(names)) == len(names)
    assert [policy.name for policy in find(["uncoded", "FedBuff"], rivals(8))] == [
        "uncoded",
        "uncoded, by speed",
        "FedBuff",
    ]
    with pytest.raises(BadSetting, match="did you mean FedBuff"):
        find(["FedBuf f"], rivals(8))


def spared(slow_s: list[float]) -> list[int]:
    """How much work 20 clients throw away in each round, of which the first has such an uplink."""
    scenario = MODELS["shifted-exponential"](20, len(slow_s), np.random.default_rng(0))
    others = [4.0] * 19
    linked = [
        replace(each, up_s_w=np.array([up_s, *others])) for each, up_s in zip(scenario, slow_s, strict=True)
    ]
    rows: list[RoundRow] = []
    Fedgc(4, 5, 1).watched(tuple(linked), UNCONTENDED, watch=False, heard=rows.append)
    return [row.discarded for row in rows]


def test_clients_train_on_for_the_sake_of_a_slow_line_as_long_as_there_is_one():
    first, *then = spared([60.0] * 8)
    assert min(then) > 100 > first, "although the slow one's codeword never comes: there are 100 chunks"
    *slow, cured = spared([9.0] * 3 + [4.0] * 9)
    assert min(slow[1:3]) > 100
    assert cured == 0
