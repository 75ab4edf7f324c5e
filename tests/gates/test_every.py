"""Test the gate `every`: it syncs at each period, independent of reports."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadSetting
from fedgc.gates import Report, Reports
from fedgc.gates.every import Every

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
def test_every_syncs_at_each_period(period, rounds):
    assert decisions(Every(period), rounds) == [(at + 1) % period == 0 for at in range(len(rounds))]


@given(period=st.integers(1, 7), rounds=st.lists(reports, min_size=1, max_size=20), stop=st.integers(0, 19))
def test_state_survives_json(period, rounds, stop):
    gate = Every(period)
    state, syncs = gate.init(), []
    for at, each in enumerate(rounds):
        if at == stop:
            state = json.loads(json.dumps(state))
        state, decision = gate.step(state, each)
        syncs.append(decision.sync)
    assert syncs == decisions(gate, rounds)


@given(period=st.integers(1, 7), state=st.integers(0, 100), each=reports)
def test_step_is_pure_function(period, state, each):
    assert Every(period).step(state, each) == Every(period).step(state, each)


@given(period=st.integers(2, 7), beyond=st.integers(0, 5))
def test_state_beyond_period_syncs_at_once(period, beyond):
    state, decision = Every(period).step(period - 1 + beyond, Reports(()))
    assert (state, decision.sync) == (0, True)


def test_reason_counts_rounds_of_period():
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
def test_period_below_1_is_refused(period):
    with pytest.raises(BadSetting, match=f"gate every: saw period {period}, needed at least 1"):
        Every(period)
