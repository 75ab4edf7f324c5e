"""Test how a gate is made from its name, the settings and its own options."""

from dataclasses import replace

import pytest

from fedgc.errors import BadSetting
from fedgc.gates import GateSettings, gate_named, make_gate, summaries
from fedgc.gates.drift import Drift
from fedgc.gates.every import Every
from fedgc.gates.qsr import QSR
from fedgc.gates.relative_change import RelativeChange
from fedgc.plugins import available

SETTINGS = GateSettings(rounds=100, period=3, budget=0.2, unit="share", check_steps=16, max_gap=32, min_gap=2)


@pytest.mark.parametrize(
    ("name", "options", "gate"),
    [
        ("every", "", Every(3, max_gap=32, min_gap=2)),
        ("drift", "", Drift(0.2, max_gap=32, min_gap=2)),
        ("relative-change", "", RelativeChange(0.3, window=25, max_gap=32, min_gap=2)),
        ("relative-change", "delta=inf, window=3", RelativeChange(float("inf"), 3, max_gap=32, min_gap=2)),
        ("qsr", "base=4,growth=0.5", QSR(base=4, growth=0.5, check_steps=16, max_gap=32, min_gap=2)),
    ],
)
def test_name_and_options_make_gate(name, options, gate):
    assert make_gate(name, SETTINGS, options) == gate


def test_gate_ignores_settings_of_other_gates():
    assert make_gate("every", replace(SETTINGS, budget=-1.0)) == make_gate("every", SETTINGS)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("delta", "setting gate.options: saw 'delta', needed name=value"),
        ("delta=1,delta=2", "saw 'delta=2', needed name=value, each name once, such as delta="),
        ("delt=1", "setting gate.options: saw 'delt', needed delta, window, .*; did you mean delta"),
        ("window=0.5", "setting gate.options: saw window='0.5', needed a whole number"),
        ("delta=-1", "gate relative-change: saw delta -1.0"),
    ],
)
def test_bad_options_are_refused_by_name(options, says):
    with pytest.raises(BadSetting, match=says):
        make_gate("relative-change", SETTINGS, options)


def test_gate_without_options_is_described():
    with pytest.raises(BadSetting, match="needed none, the options of gate every"):
        make_gate("every", SETTINGS, "period=3")


def test_unknown_name_is_refused_with_nearest():
    with pytest.raises(
        BadSetting, match=r"setting gate.name: saw 'drif', needed one of drift, .*mean drift\?"
    ):
        make_gate("drif", SETTINGS)


def test_every_shipped_gate_describes_itself():
    assert {"every", "drift", "relative-change", "qsr"} <= set(available("fedgc.gates"))
    for name in available("fedgc.gates"):
        assert gate_named(name).summary
        assert f"{name}: {gate_named(name).summary}" in summaries()


@pytest.mark.parametrize(("period", "min_gap", "always"), [(1, 1, True), (2, 1, False), (1, 2, False)])
def test_only_period_of_1_always_syncs(period, min_gap, always):
    made = make_gate("every", replace(SETTINGS, period=period, min_gap=min_gap))
    assert made.always_syncs is always
    assert not make_gate("drift", SETTINGS).always_syncs
