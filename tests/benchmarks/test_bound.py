"""Test the fluid bound, and work as the inverse of time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bound import fluid_s, units_by
from fedgc.sim.clock import NEVER, working

paces = st.lists(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3), min_size=1, max_size=4)


@given(paces, st.floats(0.0, 50.0), st.floats(0.1, 2.0))
def test_timed_work_takes_given_time(rows, when_s, slice_units):
    conditions = working(rows, slice_units=slice_units)
    assert conditions.after_s(units_by(conditions, when_s)) == pytest.approx(when_s, abs=1e-9)


@given(paces, st.floats(0.1, 20.0))
def test_fluid_bound_is_total_work_over_total_speed(rows, units):
    conditions = working(rows, slice_units=0.5)
    bound_s = fluid_s(conditions, units)
    assert units_by(conditions, bound_s).sum() == pytest.approx(units)


def test_fluid_bound_counts_work_before_death_only():
    both = working([[1.0], [1.0]])
    dying = replace(both, dies_s_w=np.array([0.5, NEVER]))
    returning = replace(dying, returns_s_w=np.array([1.0, NEVER]))
    assert fluid_s(both, 2.0) == pytest.approx(1.0)
    assert fluid_s(dying, 2.0) == pytest.approx(1.5)
    assert fluid_s(returning, 2.5) == pytest.approx(1.5)
