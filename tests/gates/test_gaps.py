"""Test properties of every gate: bounds on the gap, invalid reports, and JSON states."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadSetting
from fedgc.gates import Report, Reports
from fedgc.gates.drift import Drift
from fedgc.gates.every import Every
from fedgc.gates.qsr import QSR
from fedgc.gates.relative_change import RelativeChange

sources = st.builds(
    Report,
    st.integers(0, 3),
    st.integers(0, 50),
    st.integers(1, 9),
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(-1e3, 1e3),
)
checks = st.lists(
    st.builds(
        Reports,
        st.lists(sources, max_size=4).map(tuple),
        learning_rate=st.floats(0, 10),
    ),
    max_size=60,
)
gaps = st.tuples(st.integers(1, 5), st.integers(0, 7)).map(lambda pair: (pair[0], sum(pair)))
makers = st.sampled_from(
    [
        lambda least, most: Every(9, most, least),
        lambda least, most: Every(1, most, least),
        lambda least, most: QSR(1, 0.1, 1, most, least),
        lambda least, most: RelativeChange(0.0, max_gap=most, min_gap=least),
        lambda least, most: RelativeChange(math.inf, max_gap=most, min_gap=least),
        lambda least, most: Drift(1 / most, most, least),
        lambda least, most: Drift(1 / least, most, least),
    ]
)


def gaps_of(gate, history):
    state, passed, found = gate.init(), 0, []
    for each in history:
        state, decision = gate.step(state, each)
        passed += 1
        if decision.sync:
            found.append(passed)
            passed = 0
    return found, passed


@given(make=makers, bounds=gaps, history=checks)
def test_gap_stays_between_min_and_max(make, bounds, history):
    least, most = bounds
    found, open_gap = gaps_of(make(least, most), history)
    assert all(least <= gap <= most for gap in found)
    assert open_gap < most


@given(make=makers, bounds=gaps, history=checks, stop=st.integers(0, 59))
def test_state_is_strict_json_and_resumable_after_any_report(make, bounds, history, stop):
    gate = make(*bounds)
    state = resumed = gate.init()
    for at, each in enumerate(history):
        if at == stop:
            resumed = json.loads(json.dumps(resumed, allow_nan=False))
        state, decision = gate.step(state, each)
        resumed, again = gate.step(resumed, each)
        assert again == decision
    assert json.dumps(state, allow_nan=False) == json.dumps(resumed, allow_nan=False)


@given(make=makers, bounds=gaps, history=checks)
def test_invalid_report_changes_no_decision_and_is_named(make, bounds, history):
    gate = make(*bounds)
    with_bad = without = gate.init()
    for each in history:
        fit = Reports(each.working(), learning_rate=each.learning_rate)
        unfit = [item for item in each.items if not (item.squared_norm >= 0 and item.squared_norm < math.inf)]
        with_bad, decision = gate.step(with_bad, each)
        without, clean = gate.step(without, fit)
        assert (decision.sync, with_bad) == (clean.sync, without)
        assert decision.left_out == tuple(item.source for item in unfit)
        assert decision.reason.startswith(clean.reason)
        assert all(f"{item.source} (squared norm {item.squared_norm})" in decision.reason for item in unfit)


def test_forced_and_held_sync_have_reason():
    never = RelativeChange(math.inf, max_gap=1)
    assert never.step(never.init(), Reports(()))[1].reason == (
        "1 check since the last sync, no gap may be longer (no client has reported)"
    )
    always = Every(1, min_gap=3)
    state, first = always.step(always.init(), Reports(()))
    assert first.reason == "1 check since the last sync, needed 3"
    assert always.step(state, Reports(()))[1].reason == "2 checks since the last sync, needed 3"


@pytest.mark.parametrize(
    "make",
    [
        lambda **gap: Every(5, **gap),
        lambda **gap: QSR(1, 1.0, **gap),
        lambda **gap: RelativeChange(0.1, **gap),
        lambda **gap: Drift(0.5, **gap),
    ],
)
@pytest.mark.parametrize(
    ("gap", "says"),
    [
        ({"min_gap": 5, "max_gap": 4}, r"saw max_gap 4, needed at least min_gap \(5\)"),
        ({"min_gap": 0}, "saw min_gap 0, needed at least 1"),
    ],
)
def test_impossible_bounds_are_refused(make, gap, says):
    with pytest.raises(BadSetting, match=says):
        make(**gap)


@given(makers, gaps, st.data())
def test_forced_sync_begins_new_gap(maker, bounds, data):
    least, most = bounds
    gate = maker(least, most)
    state, report = gate.init(), Report("a", 4, 10, 1.0, 1.0)
    check = Reports((report,), rounds_left=100, learning_rate=0.1)
    for _ in range(data.draw(st.integers(0, 9))):
        state, _ = gate.step(state, check)
    state, decision = gate.step(state, replace(check, forced="client a is leaving"))
    assert (decision.sync, decision.reason) == (True, "client a is leaving")
    assert (state if isinstance(state, int) else state[0]) == 0
    for _ in range(least - 1):
        state, decision = gate.step(state, check)
        assert not decision.sync
