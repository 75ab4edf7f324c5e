"""`Every` syncs each period-th round, whatever is reported; `QSR` by the learning rate alone."""

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadSetting
from fedgc.gates import QSR, Every, Report, Reports

reports = st.builds(
    Reports,
    st.lists(st.builds(Report, st.integers(0, 9), st.integers(0, 9), st.integers(1, 9)
                       , st.floats(0, 1e9), st.floats(-1e9, 1e9)), max_size=3).map(tuple),
)  # fmt: skip


def decisions(gate: Every, rounds: list[Reports]) -> list[bool]:
    state, syncs = gate.init(), []
    for each in rounds:
        state, decision = gate.step(state, each)
        syncs.append(decision.sync)
    return syncs


@given(period=st.integers(1, 7), rounds=st.lists(reports, max_size=30))
def test_every_period_th_round_is_exchanged_and_no_other(period, rounds):
    assert decisions(Every(period), rounds) == [(at + 1) % period == 0 for at in range(len(rounds))]


@given(period=st.integers(1, 7), rounds=st.lists(reports, min_size=1, max_size=20), stop=st.integers(0, 19))
def test_a_state_that_went_through_json_carries_on_where_it_was(period, rounds, stop):
    gate = Every(period)
    state, syncs = gate.init(), []
    for at, each in enumerate(rounds):
        if at == stop:
            state = json.loads(json.dumps(state))
        state, decision = gate.step(state, each)
        syncs.append(decision.sync)
    assert syncs == decisions(gate, rounds)


@given(period=st.integers(1, 7), state=st.integers(0, 100), each=reports)
def test_a_step_is_a_function_of_its_arguments(period, state, each):
    assert Every(period).step(state, each) == Every(period).step(state, each)


@given(period=st.integers(2, 7), beyond=st.integers(0, 5))
def test_a_resumed_state_beyond_a_shortened_period_syncs_at_once(period, beyond):
    state, decision = Every(period).step(period - 1 + beyond, Reports(()))
    assert (state, decision.sync) == (0, True)


def test_the_reason_says_how_far_the_period_is():
    gate = Every(3)
    state, first = gate.step(gate.init(), Reports(()))
    state, second = gate.step(state, Reports(()))
    _, third = gate.step(state, Reports(()))
    assert [first.reason, second.reason, third.reason] == [
        "round 1 of 3 between syncs",
        "round 2 of 3 between syncs",
        "every 3",
    ]
    assert Every(1).step(0, Reports(()))[1].reason == "every round"


@pytest.mark.parametrize("period", [0, -1])
def test_a_period_below_1_is_refused(period):
    with pytest.raises(BadSetting, match=f"gate every: saw period {period}, needed at least 1"):
        Every(period)


rates = st.floats(1e-6, 10)


def qsr_gaps(gate: QSR, schedule: list[float]) -> list[int]:
    state, passed, gaps = gate.init(), 0, []
    for rate in schedule:
        state, decision = gate.step(state, Reports((), learning_rate=rate))
        passed += 1
        if decision.sync:
            gaps.append(passed)
            passed = 0
    return gaps


@given(base=st.integers(1, 20), growth=st.floats(0.01, 1), rate=rates, check_steps=st.integers(1, 9))
def test_qsr_waits_the_published_number_of_steps_rounded_up_to_checks(base, growth, rate, check_steps):
    steps = max(base, math.floor((growth / rate) ** 2))
    period = math.ceil(Fraction(steps, check_steps))
    gate = QSR(base, growth, check_steps, max_gap=None)
    if period <= 200:
        assert qsr_gaps(gate, [rate] * (2 * period)) == [period, period]
    else:
        assert qsr_gaps(gate, [rate] * 200) == []


@given(schedule=st.lists(rates, min_size=2, max_size=60), growth=st.floats(0.01, 1))
def test_qsr_never_syncs_more_often_as_the_learning_rate_falls(schedule, growth):
    *whole, _ = [*qsr_gaps(QSR(1, growth, max_gap=None), sorted(schedule, reverse=True)), 0]
    assert whole == sorted(whole)


def test_qsr_keeps_the_period_that_the_gap_began_with():
    gate = QSR(base=1, growth=0.2, max_gap=None)
    assert qsr_gaps(gate, [0.1, 10.0, 10.0, 10.0, 10.0]) == [4, 1]


def test_qsr_at_a_learning_rate_of_zero_waits_for_max_gap():
    assert qsr_gaps(QSR(base=1, growth=0.2, max_gap=8), [0.0] * 20) == [8, 8]


@pytest.mark.parametrize("rate", [None, -0.1, math.nan])
def test_qsr_refuses_to_guess_the_learning_rate(rate):
    gate = QSR(1, 0.2)
    with pytest.raises(BadSetting, match=f"gate qsr: saw learning rate {rate}, needed 0 or more"):
        gate.step(gate.init(), Reports((), learning_rate=rate))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ((0, 0.1), "saw base 0, needed at least 1 step"),
        ((1, 0.0), "saw growth 0.0, needed above 0"),
        ((1, math.inf), "saw growth inf, needed above 0"),
        ((1, 0.1, 0), "saw check_steps 0, needed at least 1"),
    ],
)
def test_qsr_settings_that_cannot_be_are_refused(asked, says):
    with pytest.raises(BadSetting, match=f"gate qsr: {says}"):
        QSR(*asked)
