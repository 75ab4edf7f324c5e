"""Conditions: paces in slices, work and time as inverses of each other, the fluid bound."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadSetting
from fedgc.sim.clock import NEVER, ArrayClientModel, Conditions, working

paces = st.lists(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3), min_size=1, max_size=4)


def slow_after_s(conditions: Conditions, w: int, units: float) -> float:
    """The obvious twin: walk slice by slice."""
    seconds, at = 0.0, 0
    row = conditions.pace_wk[w]
    while units > 0:
        part = min(units, conditions.slice_units)
        seconds += part * row[at % len(row)]
        units -= part
        at += 1
    return seconds


@given(paces, st.floats(0.01, 5.0), st.floats(0.1, 2.0))
def test_time_for_work_is_the_walk_through_the_slices(rows, units, slice_units):
    conditions = working(rows, slice_units=slice_units)
    expected = [slow_after_s(conditions, w, units) for w in range(len(rows))]
    assert conditions.after_s(np.full(len(rows), units)) == pytest.approx(expected)


@given(paces, st.floats(0.0, 50.0), st.floats(0.1, 2.0))
def test_work_by_a_time_takes_that_time(rows, when_s, slice_units):
    conditions = working(rows, slice_units=slice_units)
    assert conditions.after_s(conditions.units_by(when_s)) == pytest.approx(when_s, abs=1e-9)


@given(paces, st.floats(0.0, 20.0), st.floats(0.01, 3.0), st.floats(0.1, 2.0))
def test_a_client_asked_chunk_by_chunk_goes_at_the_same_pace(rows, begun_s, units, slice_units):
    conditions = working(rows, slice_units=slice_units)
    client_model = ArrayClientModel(lambda _: conditions, [units])
    list(client_model.begin(1))
    for w in range(len(rows)):
        before = conditions.units_by(begun_s)[w]
        after = conditions.after_s(np.full(len(rows), before + units))[w]
        assert client_model.seconds(w, 0, 1.0, begun_s) == pytest.approx(after - begun_s, abs=1e-9)


@given(paces, st.floats(0.1, 20.0))
def test_in_the_fluid_time_all_together_do_just_the_work(rows, units):
    conditions = working(rows, slice_units=0.5)
    fluid_s = conditions.fluid_s(units)
    assert conditions.units_by(fluid_s).sum() == pytest.approx(units)


def test_what_the_dead_had_done_is_part_of_the_fluid_bound_and_what_they_would_have_done_is_not():
    both = working([[1.0], [1.0]])
    dying = replace(both, dies_s_w=np.array([0.5, NEVER]))
    returning = replace(dying, returns_s_w=np.array([1.0, NEVER]))
    assert both.fluid_s(2.0) == pytest.approx(1.0)
    assert dying.fluid_s(2.0) == pytest.approx(1.5)
    assert returning.fluid_s(2.5) == pytest.approx(1.5)


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
def test_conditions_that_cannot_be_are_refused(change, says):
    with pytest.raises(BadSetting, match=says):
        replace(working([[1.0], [2.0]]), **change)
