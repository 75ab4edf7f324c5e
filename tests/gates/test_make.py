"""Plain settings become the gate they name."""

from dataclasses import replace

import pytest

from fedgc.errors import BadSetting
from fedgc.gates import QSR, Drift, Every, GateSettings, RelativeChange, make_gate

PLAIN = GateSettings(
    period=3, budget=0.2, unit="share", delta=0.3, window=25, base=4, growth=0.2, check_steps=16,
    max_gap=32, min_gap=2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "gate"),
    [
        ("every", Every(3, max_gap=32, min_gap=2)),
        ("drift", Drift(0.2, max_gap=32, min_gap=2)),
        ("relative-change", RelativeChange(0.3, window=25, max_gap=32, min_gap=2)),
        ("qsr", QSR(base=4, growth=0.2, check_steps=16, max_gap=32, min_gap=2)),
    ],
)
def test_each_name_is_its_gate(name, gate):
    assert make_gate(name, PLAIN) == gate


def test_a_max_gap_of_zero_is_no_bound():
    assert make_gate("drift", replace(PLAIN, max_gap=0)) == Drift(0.2, max_gap=None, min_gap=2)


def test_only_the_chosen_gates_settings_are_looked_at():
    assert make_gate("every", replace(PLAIN, budget=-1.0, delta=-1.0)) == make_gate("every", PLAIN)


def test_a_name_that_is_none_is_refused_with_the_nearest():
    with pytest.raises(
        BadSetting, match=r"gate: saw 'drif', needed one of every, drift, .*did you mean drift"
    ):
        make_gate("drif", PLAIN)
