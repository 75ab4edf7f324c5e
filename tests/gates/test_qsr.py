"""Test the gate `qsr` (QSR, Gu 2024): the learning rate alone decides."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadSetting
from fedgc.gates import Reports
from fedgc.gates.qsr import QSR

rates = st.floats(1e-6, 10)


def gaps(gate: QSR, schedule: list[float]) -> list[int]:
    state, passed, found = gate.init(), 0, []
    for rate in schedule:
        state, decision = gate.step(state, Reports((), learning_rate=rate))
        passed += 1
        if decision.sync:
            found.append(passed)
            passed = 0
    return found


@given(base=st.integers(1, 20), growth=st.floats(0.01, 1), rate=rates, check_steps=st.integers(1, 9))
def test_gap_equals_published_formula_in_whole_checks(base, growth, rate, check_steps):
    steps = max(base, math.floor((growth / rate) ** 2))
    period = math.ceil(Fraction(steps, check_steps))
    gate = QSR(base, growth, check_steps, max_gap=None)
    if period <= 200:
        assert gaps(gate, [rate] * (2 * period)) == [period, period]
    else:
        assert gaps(gate, [rate] * 200) == []


@given(schedule=st.lists(rates, min_size=2, max_size=60), growth=st.floats(0.01, 1))
def test_gap_grows_as_learning_rate_falls(schedule, growth):
    *whole, _ = [*gaps(QSR(1, growth, max_gap=None), sorted(schedule, reverse=True)), 0]
    assert whole == sorted(whole)


def test_period_is_fixed_at_start_of_gap():
    gate = QSR(base=1, growth=0.2, max_gap=None)
    assert gaps(gate, [0.1, 10.0, 10.0, 10.0, 10.0]) == [4, 1]


def test_learning_rate_of_zero_waits_for_max_gap():
    assert gaps(QSR(base=1, growth=0.2, max_gap=8), [0.0] * 20) == [8, 8]


@pytest.mark.parametrize("rate", [None, -0.1, math.nan])
def test_missing_learning_rate_is_refused(rate):
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
def test_bad_settings_are_refused(asked, says):
    with pytest.raises(BadSetting, match=f"gate qsr: {says}"):
        QSR(*asked)
