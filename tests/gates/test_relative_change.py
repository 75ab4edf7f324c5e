"""Test SelSync against a slow reference that follows the paper's formula, and at both extremes."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadSetting
from fedgc.gates import Report, Reports
from fedgc.gates.relative_change import RelativeChange

norms = st.floats(0, 1e6)
checks = st.lists(st.dictionaries(st.integers(0, 3), norms), min_size=1, max_size=40)


def reports(norm_of: dict) -> Reports:
    return Reports(tuple(Report(source, 1, 1, norm, 0.0) for source, norm in norm_of.items()))


def decisions(gate: RelativeChange, history: list[dict]) -> list[bool]:
    state, syncs = gate.init(), []
    for norm_of in history:
        state, decision = gate.step(state, reports(norm_of))
        syncs.append(decision.sync)
    return syncs


def means_of(norms_seen: list[float], window: int, smoothing: float) -> list[float]:
    """Slow reference: the windowed, exponentially weighted mean, from the whole history each time."""
    means = []
    for end in range(1, len(norms_seen) + 1):
        recent = np.array(norms_seen[:end][-window:])
        weights = (1 - smoothing) ** np.arange(len(recent) - 1, -1, -1)
        means.append(float(weights @ recent / weights.sum()))
    return means


def changes_by_twin(history: list[dict], window: int, smoothing: float) -> list[float]:
    """The largest relative change of each check; a source's first norm is compared with itself."""
    seen, largest = {}, []
    for norm_of in history:
        changes = [0.0]
        for source, norm in norm_of.items():
            seen.setdefault(source, []).append(norm)
            *_, before, after = [0.0, *means_of(seen[source], window, smoothing)]
            if len(seen[source]) > 1:
                changes.append(abs(after - before) / before if before else (math.inf if after else 0.0))
        largest.append(max(changes))
    return largest


@given(history=checks, window=st.integers(1, 8), smoothing=st.floats(0.05, 1), delta=st.floats(1e-3, 3))
def test_decision_equals_published_formula(history, window, smoothing, delta):
    gate = RelativeChange(delta, window, smoothing, max_gap=None)
    for sync, change in zip(
        decisions(gate, history), changes_by_twin(history, window, smoothing), strict=True
    ):
        if not math.isclose(change, delta, rel_tol=1e-6):
            assert sync == (change >= delta)


@given(history=checks)
def test_default_smoothing_is_number_of_sources_over_100(history):
    everybody = [{source: norm_of.get(source, 1.0) for source in range(4)} for norm_of in history]
    by_rule, by_hand = RelativeChange(0.1, 5), RelativeChange(0.1, 5, smoothing=0.04)
    assert decisions(by_rule, everybody) == decisions(by_hand, everybody)


@given(history=checks)
def test_delta_zero_syncs_at_every_check(history):
    assert decisions(RelativeChange(0.0), [{}, *history]) == [True] * (len(history) + 1)


@given(history=checks)
def test_delta_infinite_never_syncs(history):
    assert not any(decisions(RelativeChange(math.inf, max_gap=None), history))


def test_gradients_returning_from_zero_exceed_every_finite_delta():
    vanished = [{"a": 0.0}] * 30
    assert decisions(RelativeChange(1e9, max_gap=None), [*vanished, {"a": 1e-300}]) == [False] * 30 + [True]


@given(history=checks, low=st.floats(0, 2), more=st.floats(0, 2))
def test_higher_delta_syncs_no_more_often(history, low, more):
    lower = decisions(RelativeChange(low, max_gap=None), history)
    higher = decisions(RelativeChange(low + more, max_gap=None), history)
    assert all(below or not above for below, above in zip(lower, higher, strict=True))


@given(history=checks, stop=st.integers(0, 39))
def test_state_resumes_after_json_round_trip(history, stop):
    gate = RelativeChange(0.2, 4)
    state, syncs = gate.init(), []
    for at, norm_of in enumerate(history):
        if at == stop:
            state = json.loads(json.dumps(state, allow_nan=False))
        state, decision = gate.step(state, reports(norm_of))
        syncs.append(decision.sync)
    assert syncs == decisions(gate, history)


def test_one_source_is_enough_and_is_named():
    gate = RelativeChange(0.5, smoothing=0.5)
    state, _ = gate.step(gate.init(), reports({"calm": 1.0, "bank-3": 1.0}))
    _, decision = gate.step(state, reports({"calm": 1.0, "bank-3": 4.0}))
    assert decision.sync
    assert "at bank-3, threshold 50%" in decision.reason


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"delta": -0.1}, "saw delta -0.1, needed 0 or more"),
        ({"delta": math.nan}, "saw delta nan"),
        ({"delta": 0.1, "window": 0}, "saw window 0, needed at least 1"),
        ({"delta": 0.1, "smoothing": 0.0}, "saw smoothing 0.0, needed above 0 and at most 1"),
        ({"delta": 0.1, "smoothing": 1.5}, "saw smoothing 1.5"),
    ],
)
def test_invalid_settings_are_refused(settings, says):
    with pytest.raises(BadSetting, match=f"gate relative-change: {says}"):
        RelativeChange(**settings)
