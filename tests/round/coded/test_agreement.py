"""Test agreement of replicas: the first is accepted until two others agree on something else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.messages import Progress
from fedgc.round.coded.agreement import COPIES_AGREE, ReplicaAgreement

ONE, OTHER = (1.0,) * 16, (2.0,) * 16


def copy(sketch: tuple[float, ...] = (), loss: float = 0.5) -> Progress:
    return Progress(0.0, "whoever", 1, 0, 4, 1.0, 1, 1.0, loss, sketch)


def test_replicas_equal_up_to_rounding_agree():
    replicas = ReplicaAgreement()
    assert replicas.hear(0, 0, copy(ONE)).agrees
    assert replicas.hear(0, 1, copy(tuple(1.0 + 1e-6 for _ in ONE))).agrees


def test_differing_replica_is_not_counted_and_distance_reported():
    replicas = ReplicaAgreement()
    replicas.hear(0, 0, copy(ONE))
    verdict = replicas.hear(0, 1, copy(OTHER))
    assert not verdict.agrees
    assert verdict.distance == pytest.approx(0.5)
    assert replicas.believed[0].sketch == ONE


def test_two_agreeing_replicas_outvote_first():
    replicas = ReplicaAgreement()
    replicas.hear(0, 0, copy(ONE))
    assert not replicas.hear(0, 1, copy(OTHER)).agrees
    verdict = replicas.hear(0, 2, copy(OTHER))
    assert verdict.agrees
    assert (verdict.wrong, verdict.right) == ((0,), (1,))
    assert replicas.believed[0].sketch == OTHER
    assert not replicas.hear(0, 3, copy(ONE)).agrees, "two against two: what is believed stays"


def test_repeated_report_of_one_client_cannot_outvote():
    replicas = ReplicaAgreement()
    replicas.hear(0, 0, copy(ONE))
    replicas.hear(0, 1, copy(OTHER))
    assert not replicas.hear(0, 1, copy(OTHER)).agrees


def test_replicas_without_sketch_are_not_judged():
    replicas = ReplicaAgreement()
    assert replicas.hear(0, 0, copy()).agrees
    assert replicas.hear(0, 1, copy()).agrees
    assert replicas.hear(1, 0, copy((0.0,) * 16)).agrees
    assert replicas.hear(1, 1, copy((1e-13,) * 16)).agrees


def test_verdict_is_fixed_while_collecting():
    replicas = ReplicaAgreement()
    replicas.hear(0, 0, copy(ONE))
    assert not replicas.judge(0, 1, copy(OTHER)).agrees
    assert not replicas.judge(0, 2, copy(OTHER)).agrees
    assert replicas.judge(0, 3, copy(ONE)).agrees
    assert replicas.judge(9, 1, copy(OTHER)).agrees
    assert replicas.believed[0].sketch == ONE


def test_replica_without_holder_refuses_no_other():
    for late in (False, True):
        replicas = ReplicaAgreement()
        replicas.hear(0, 0, copy(ONE))
        assert replicas.stands(0, ()) == {}, "there is no other"
        assert (replicas.judge if late else replicas.hear)(0, 1, copy(OTHER)).agrees
        assert replicas.believed[0].sketch == OTHER
        assert replicas.stands(0, {0}) == {}, "the other is here, and was believed first"
        assert replicas.hear(0, 2, copy(ONE)).agrees, "two are more than one"


def test_refused_replica_counts_once_its_opponents_are_lost():
    for leave in (lambda c, v: c.stands(v, ()), lambda c, v: c.stands(v, {1}), lambda c, v: c.cannot(v, [0])):
        replicas = ReplicaAgreement()
        for w, sketch in ((0, ONE), (1, ONE), (2, OTHER), (3, OTHER)):
            replicas.hear(0, w, copy(sketch))
        assert leave(replicas, 1) == {}, "one still says so"
        assert leave(replicas, 0) == {0: (2, 3)}
        assert replicas.believed[0].sketch == OTHER


def test_replica_in_sum_stays_accepted_after_its_holder_is_lost():
    replicas = ReplicaAgreement()
    replicas.hear(0, 0, copy(ONE))
    replicas.hear(0, 1, copy(OTHER))
    assert replicas.stands(0, (), summed={0}) == {}
    assert not replicas.judge(0, 2, copy(OTHER), summed={0}).agrees
    assert replicas.judge(0, 3, copy(ONE), summed={0}).agrees


def test_replica_no_longer_held_changes_no_verdict():
    for kept, right in (((), None), ((0,), (1,))):
        replicas = ReplicaAgreement()
        replicas.hear(0, 0, copy(ONE))
        replicas.hear(0, 1, copy(OTHER))
        replicas.stands(1, ())
        replicas.stands(1, kept)
        verdict = replicas.hear(0, 2, copy(OTHER))
        assert verdict.agrees is (right is not None)
        assert verdict.right == (right or ())


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=12))
def test_accepted_side_is_first_to_reach_most_clients(said: list[tuple[int, int]]):
    replicas, last = ReplicaAgreement(), {}
    believed = None
    for w, kind in said:
        replicas.hear(0, w, copy((float(10**kind),) * 16))
        last[w] = kind
        sides = list(last.values())
        if believed is None or sides.count(kind) > sides.count(believed):
            believed = kind
        assert replicas.believed[0].sketch[0] == 10**believed


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 1, 2, "gone", "back"])), max_size=20))
def test_accepted_replicas_always_have_holder(
    steps: list[tuple[int, object]],
):
    replicas, last, here, counting = ReplicaAgreement(), {}, set(), set()
    for w, step in steps:
        if isinstance(step, int):
            verdict = replicas.hear(0, w, copy((float(10**step),) * 16))
            last[w] = step
            here.add(w)
            counting = counting - {w, *verdict.wrong} | set(verdict.right)
            counting |= {w} if verdict.agrees else set()
        else:
            here = here - {w} | ({w} & last.keys() if step == "back" else set())
            counting.discard(w)
            right = replicas.stands(w, {0} if step == "back" else ())
            counting |= set(right.get(0, ()))
        believed = replicas.believed.get(0)
        stand_by = {v for v in here if believed and 10 ** last[v] == believed.sketch[0]}
        assert bool(stand_by) == bool(here)
        assert counting <= stand_by, "nobody counts who is gone, or says something else"


def test_reports_and_likeness_use_accepted_replicas():
    replicas = ReplicaAgreement()
    assert replicas.likeness() is None
    replicas.hear(3, 0, copy(ONE, loss=0.25))
    assert replicas.likeness() is None
    replicas.hear(1, 0, copy(tuple(-each for each in ONE)))
    reports = replicas.reports({1: 5, 3: 10}, rounds_left=7)
    assert [(item.source, item.samples, item.loss) for item in reports.items] == [(1, 5, 0.5), (3, 10, 0.25)]
    assert reports.rounds_left == 7
    assert replicas.likeness() == 0.0
    replicas.hear(1, 1, copy(ONE))
    replicas.hear(1, 2, copy(ONE))
    assert replicas.likeness() == pytest.approx(1.0)


def test_tolerance_is_relative():
    replicas = ReplicaAgreement()
    replicas.hear(0, 0, copy(tuple(1e6 * each for each in ONE)))
    assert replicas.hear(0, 1, copy(tuple(1e6 * (1 + 0.9 * COPIES_AGREE) for _ in ONE))).agrees


@pytest.mark.parametrize(("model_norms", "agrees"), [((2.0, 2.0), True), ((0.0, 1e12), False)])
def test_short_updates_may_differ_by_rounding_of_model(model_norms, agrees):
    """The update is as short as the rounding of weights near 1; no client alone can claim a long model."""
    replicas, ulp = ReplicaAgreement(), 2.0**-23
    sketches = (20 * ulp,) * 16, (20.3 * ulp,) * 16
    for w, (sketch, norm) in enumerate(zip(sketches, model_norms, strict=True)):
        verdict = replicas.hear(0, w, replace(copy(sketch), model_norm=norm))
    assert verdict.agrees == agrees


def test_replica_without_sketch_is_outvoted_by_one_with_sketch():
    replicas = ReplicaAgreement()
    for w in (0, 1):
        assert replicas.hear(0, w, copy()).agrees
    verdict = replicas.hear(0, 2, copy(ONE))
    assert (verdict.agrees, verdict.wrong, verdict.blamed) == (True, (0, 1), (0, 1))
    assert replicas.hear(0, 3, copy()).blamed == (3,)
    assert replicas.believed[0].sketch == ONE
    assert replicas.accused() == ()


def test_odd_one_of_three_is_blamed_and_neither_of_two():
    for order in ((0, 1, 2), (1, 0, 2), (1, 2, 0)):
        replicas, blamed = ReplicaAgreement(), []
        for told, w in enumerate(order):
            blamed += replicas.hear(0, w, copy(OTHER if w == 0 else ONE)).blamed
            if told == 1:
                assert set(blamed) == set()
                assert bool(replicas.disputed()) == (0 in order[:2])
        assert blamed == [0]
        assert replicas.disputed() == {}


@given(st.permutations([(chunk, who) for chunk in range(6) for who in ("false", "honest")]))
def test_only_false_replica_is_accused_in_any_order(said: list[tuple[int, str]]):
    """Client 9 holds every chunk and reports false sketches; honest client c % 3 holds chunk c too."""
    replicas, accused = ReplicaAgreement(), []
    for chunk, who in said:
        w, sketch = (9, (float(chunk + 2),) * 16) if who == "false" else (chunk % 3, ONE)
        replicas.hear(chunk, w, copy(sketch))
        accused += replicas.accused()
    assert set(accused) == {9}


def test_one_wrong_chunk_does_not_discredit_other_chunks():
    replicas = ReplicaAgreement()
    for w, sketch in ((0, OTHER), (1, ONE), (2, ONE), (3, ONE)):
        replicas.hear(0, w, copy(sketch))
    assert replicas.accused() == ()
