"""Test conditions: paces in slices, work and time as inverses."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bound import units_by
from fedgc.errors import BadSetting
from fedgc.sim.clock import NEVER, ClientModel, Conditions, working

paces = st.lists(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3), min_size=1, max_size=4)


def slow_after_s(conditions: Conditions, w: int, units: float) -> float:
    """Slow reference: walk slice by slice."""
    seconds, at = 0.0, 0
    row = conditions.pace_wk[w]
    while units > 0:
        part = min(units, conditions.slice_units)
        seconds += part * row[at % len(row)]
        units -= part
        at += 1
    return seconds


@given(paces, st.floats(0.01, 5.0), st.floats(0.1, 2.0))
def test_work_time_equals_sum_over_time_slices(rows, units, slice_units):
    conditions = working(rows, slice_units=slice_units)
    expected = [slow_after_s(conditions, w, units) for w in range(len(rows))]
    assert conditions.after_s(np.full(len(rows), units)) == pytest.approx(expected)


@given(paces, st.floats(0.0, 20.0), st.floats(0.01, 3.0), st.floats(0.1, 2.0))
def test_chunk_by_chunk_work_has_same_pace(rows, begun_s, units, slice_units):
    conditions = working(rows, slice_units=slice_units)
    client_model = ClientModel(lambda _: conditions, [units])
    list(client_model.begin(1))
    for w in range(len(rows)):
        before = units_by(conditions, begun_s)[w]
        after = conditions.after_s(np.full(len(rows), before + units))[w]
        assert client_model.seconds(w, 0, 1.0, begun_s) == pytest.approx(after - begun_s, abs=1e-9)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pace_wk": np.zeros((2, 1))}, "above 0"),
        ({"pace_wk": np.ones(2)}, "clients x slices"),
        ({"up_s_w": np.array([-1.0, 0.0])}, "up_s_w: saw -1.0 at"),
        ({"up_s_w": np.ones(3)}, "of 2 clients"),
        ({"dies_s_w": np.array([5.0, NEVER]), "returns_s_w": np.array([1.0, NEVER])}, "returns before"),
        ({"slice_units": 0.0}, "more than 0"),
    ],
)
def test_invalid_conditions_are_refused(change, says):
    with pytest.raises(BadSetting, match=says):
        replace(working([[1.0], [2.0]]), **change)
