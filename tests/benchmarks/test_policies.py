"""Test policies of the benchmarks against hand-computed rounds, and properties of all policies."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baselines import block_coordinate, cyclic
from benchmarks.bound import FluidBound
from benchmarks.coded_policies import (
    BlockCoordinate,
    FractionalRepetition,
    FullWorkers,
    all_arrivals_s,
    block_sizes,
)
from benchmarks.policies import FedBuff, UncodedBySpeed, baselines, bounds
from fedgc.errors import BadPlacement, NotRecoverable
from fedgc.sim import Uncoded, ours
from fedgc.sim.clock import MODELS, UNCONTENDED, Line, working

FOUR = (working([[1.0], [1.0], [2.0], [4.0]], up_s=1.0),)


def seconds(policy, scenario=FOUR, line=UNCONTENDED):
    return policy.play(scenario, line)[0].seconds


def test_speed_shares_need_one_round_to_learn():
    first, second = UncodedBySpeed().play(FOUR * 2, UNCONTENDED)
    assert first.seconds == 5.0
    assert second.seconds == pytest.approx(4 / (1 + 1 + 0.5 + 0.25) + 1)


def test_any_m_minus_s_waits_for_m_minus_s_full_clients():
    assert seconds(FullWorkers(2, earliest=False)) == 2 * 2.0 + 1.0
    assert seconds(FullWorkers(2, blocks=2, earliest=False)) == 2 * 4.0 + 0.5
    assert seconds(FullWorkers(1, earliest=False)) == seconds(Uncoded())


def test_earliest_needs_one_replica_of_every_chunk():
    """Cyclic: client w holds w and w+1; 0 and 2 hold everything together."""
    assert seconds(FullWorkers(2)) == 2 * 2.0 + 1.0


def test_first_of_each_group_counts():
    assert seconds(FractionalRepetition(2)) == 2 * 2.0 + 1.0
    assert seconds(FractionalRepetition(4)) == 4 * 1.0 + 1.0


def test_unfilled_group_enlarges_others():
    three = (working([[1.0]] * 3),)
    assert seconds(FractionalRepetition(2), three) == 3.0


def test_fedbuff_takes_updates_as_they_arrive():
    assert seconds(FedBuff()) == pytest.approx(4 / (1 / 2 + 1 / 2 + 1 / 3 + 1 / 5))


def test_fluid_bound_is_work_over_speed():
    assert seconds(FluidBound()) == pytest.approx(4 / 2.75 + 1.0)
    assert seconds(FluidBound(2)) == pytest.approx(8 / 2.75 + 0.5)


def test_coordinate_blocks_end_together():
    sizes = block_sizes(np.array([1.0, 1.0, 2.0, 4.0]), 3)
    work = np.cumsum(np.arange(1, 4) * sizes)
    assert sizes.sum() == pytest.approx(1.0)
    assert work * np.array([4.0, 2.0, 1.0]) == pytest.approx(np.full(3, work[0] * 4.0))


def test_coordinate_block_is_sent_during_next_block():
    """Two clients of pace 1 and 2: 2/3 of the coordinates need both, the rest needs the first to finish."""
    rounds = (working([[1.0], [2.0]], up_s=0.3),) * 2
    assert block_sizes(np.array([1.0, 2.0]), 2) == pytest.approx([2 / 3, 1 / 3])
    both_s, first_s = 2 / 3 * 2.0 + 2 / 3 * 0.3, 2 / 3 + 2 / 3 + 1 / 3 * 0.3
    assert BlockCoordinate(2).play(rounds, UNCONTENDED)[1].seconds == pytest.approx(max(both_s, first_s))
    slow = tuple(replace(each, up_s_w=np.full(2, 4.0)) for each in rounds)
    both_s, first_s = 2 / 3 * 2.0 + 2 / 3 * 4.0, max(2 / 3 + 2 / 3 * 4.0, 4 / 3) + 1 / 3 * 4.0
    assert BlockCoordinate(2).play(slow, UNCONTENDED)[1].seconds == pytest.approx(max(both_s, first_s))


@pytest.mark.parametrize("blocks", [1, 2])
def test_any_m_minus_s_decode_and_fewer_do_not(blocks):
    code = cyclic(6, 3, blocks, np.random.default_rng(0))
    answered = np.ones(6, bool)
    answered[: 3 - blocks] = False
    code.weights(answered)
    answered[5] = False
    with pytest.raises(NotRecoverable):
        code.weights(answered)


def test_block_coordinate_recovers_block_after_enough_clients():
    code = block_coordinate(4, (0, 1, 2), np.random.default_rng(0))
    assert code.recovered([3, 3, 2, 1]) == (True, True, True)
    assert code.recovered([3, 3, 1, 1]) == (True, False, True)


@settings(max_examples=12)
@given(st.sampled_from(list(MODELS)), st.integers(0, 1000), st.sampled_from([0.0, 0.5]), st.booleans())
def test_exact_policies_do_not_beat_fluid_bound(name, seed, up_s, contended):
    scenario = tuple(
        replace(each, up_s_w=np.full(8, up_s)) for each in MODELS[name](8, 2, np.random.default_rng(seed))
    )
    line = Line(update_s=0.1) if contended else UNCONTENDED
    bound = {policy.blocks: policy.play(scenario, line) for policy in bounds()}
    for policy in (*baselines(4), *ours(4, 1), *ours(4, 2)):
        if not policy.exact or policy.name.startswith("block-"):
            continue  # less work for some coordinates
        for result, least in zip(policy.play(scenario, line), bound[policy.blocks], strict=True):
            least_s = least.seconds if result.size == least.size else least.working_s  # short numbers
            assert result.seconds >= least_s - 1e-9 or not result.exact, policy.name
            assert result.working_s <= result.seconds
            assert result.discarded >= -1e-9, policy.name


@pytest.mark.parametrize("policy", baselines(4), ids=lambda policy: policy.name)
def test_policy_is_repeatable(policy):
    scenario = MODELS["bimodal"](8, 3, np.random.default_rng(3))
    assert policy.play(scenario, UNCONTENDED) == policy.play(scenario, UNCONTENDED)


def test_more_replicas_than_clients_are_refused():
    with pytest.raises(BadPlacement, match="5 replicas, 4 clients"):
        FullWorkers(5).play(FOUR, UNCONTENDED)


def test_names_are_unique():
    names = [policy.name for policy in (*baselines(8), *ours(8, 1), *ours(8, 2), *bounds())]
    assert len(set(names)) == len(names)


# ---- several vectors of a client


vectors = st.lists(
    st.tuples(st.lists(st.floats(0.0, 3.0), min_size=3, max_size=3), st.floats(0.1, 2.0)),
    min_size=1,
    max_size=5,
)


@given(vectors, st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3))
def test_vectors_of_client_are_sequential(given_vectors, sizes):
    """A link wide enough for all changes nothing, for any number of slots."""
    ready, own = (np.array(each) for each in zip(*given_vectors, strict=True))
    came = all_arrivals_s(ready, sizes, own, UNCONTENDED)
    for sends, done, pace in zip(ready.tolist(), came.tolist(), own.tolist(), strict=True):
        free = 0.0
        for ready_s, size, came_s in zip(sends, sizes, done, strict=True):
            free = max(free, ready_s) + size * pace
            assert came_s == pytest.approx(free)
    for line in (Line(update_s=1e-4), Line(slots=len(own))):
        assert all_arrivals_s(ready, sizes, own, line) == pytest.approx(came, abs=1e-9)
    narrow = all_arrivals_s(ready, sizes, own, Line(slots=1))
    assert (narrow >= came - 1e-9).all()
    assert narrow.max() >= ready[:, 0].min() + float((own * sum(sizes)).sum()) - 1e-9


@pytest.mark.parametrize("line", [UNCONTENDED, Line(slots=1), Line(update_s=1.0)])
def test_vector_that_is_never_ready_blocks_later_vectors(line):
    ready = np.array([[0.0, np.inf, np.inf], [np.inf] * 3])
    assert all_arrivals_s(ready, (1.0, 1.0, 1.0), np.ones(2), line).tolist() == [
        [1.0, *[np.inf] * 2],
        [np.inf] * 3,
    ]
