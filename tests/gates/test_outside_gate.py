"""Test a gate from another package: one class and one entry point."""

import numpy as np
import pytest

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, ExtensionFailed
from fedgc.gates import Decision
from fedgc.gates.make import gate_named
from fedgc.sim.clock import MODELS
from fedgc.sim.training import Job, train
from tests.outside_package import install
from tests.six_chunks import TASK

GATE = '''
from dataclasses import dataclass
from fedgc.gates import Decision, Gate

@dataclass(frozen=True, slots=True)
class Warm(Gate[int]):
    """Exchanges each of the first rounds, then every `period` rounds."""

    first: int
    period: int
    summary = "each of the first rounds, then by a period"
    measure = "gradient"
    advice = "a larger first exchanges more"

    @classmethod
    def make(cls, settings, *, first: int = 1):
        return cls(first, settings.period)

    def init(self):
        return 0

    def step(self, state, reports):
        assert all(each.squared_norm >= 0 for each in reports.working())
        due = state < self.first or (state - self.first + 1) % self.period == 0
        return state + 1, Decision(due, f"round {state + 1}")

    def describe(self):
        return f"gate-options first={self.first}"
'''
LACKING = """
from fedgc.gates import Decision, Gate

class Odd(Gate):
    def init(self):
        return 0

    def step(self, state, reports):
        return state, Decision(True, "odd")

class Plain(Odd):
    def make(self, settings):
        return self

class Half(Gate):
    @classmethod
    def make(cls, settings):
        return cls()
"""
GROUP = "fedgc.gates"


@pytest.fixture
def outside(tmp_path, monkeypatch):
    install(tmp_path / "site", monkeypatch, "ward_gates", GATE, {f"{GROUP}:warm": "Warm"})


def config(**changes) -> RunConfig:
    values = {
        "rounds": 8, "local_steps": 2, "batch_size": 4, "min_clients": 3, "replicas": 1,
        "blocks": 1, "device": "cpu", "gate": "warm", "gate_period": 3, "gate_options": "first=2",
    }  # fmt: skip
    return RunConfig(**{"work": "local", **values, **changes})


@pytest.mark.parametrize(("work", "measure"), [("coded", "distance"), ("local", "gradient")])
def test_simulated_run_uses_gate_from_outside(outside, monkeypatch, work, measure):
    monkeypatch.setattr(gate_named("warm"), "measure", measure)
    scenario = MODELS["homogeneous"](3, 8, np.random.default_rng(0))
    trained = train(Job(TASK, config(work=work), scenario))
    outcomes = [point.row.outcome for point in trained.points]
    skip = "skipped"
    assert outcomes == ["synced", "synced", skip, skip, "synced", skip, skip, "synced"]


def test_failing_gate_is_named(outside, monkeypatch):
    scenario, gate = MODELS["homogeneous"](3, 8, np.random.default_rng(0)), type(config().new_gate())
    monkeypatch.setattr(gate, "step", lambda *_: {}["loss"])
    with pytest.raises(ExtensionFailed, match=r"^gate.name warm, round 1: saw KeyError: 'loss'$"):
        train(Job(TASK, config(), scenario))


@pytest.mark.parametrize(
    ("decision", "seen"),
    [
        (Decision("yes", "warm"), r"a Decision of \(str, str, tuple\)"),
        (Decision(True, None), r"a Decision of \(bool, NoneType, tuple\)"),
    ],
)
def test_decision_of_wrong_types_is_named(outside, monkeypatch, decision, seen):
    scenario, gate = MODELS["homogeneous"](3, 8, np.random.default_rng(0)), type(config().new_gate())
    monkeypatch.setattr(gate, "step", lambda *_: (0, decision))
    says = rf"^gate.name warm, round 1: step returned {seen}, needed one of \(bool, str, tuple\)$"
    with pytest.raises(ExtensionFailed, match=says):
        train(Job(TASK, config(), scenario))


def test_decision_of_numpy_is_taken(outside, monkeypatch):
    scenario, gate = MODELS["homogeneous"](3, 2, np.random.default_rng(0)), type(config().new_gate())
    monkeypatch.setattr(gate, "step", lambda *_: (0, Decision(np.float32(2) > 1, "warm")))
    trained = train(Job(TASK, config(rounds=2), scenario))
    assert [point.row.outcome for point in trained.points] == ["synced", "synced"]


@pytest.mark.parametrize(
    ("answer", "seen"),
    [(None, "None"), (True, "a bool"), ((0, True), r"\(int, bool\)"), ((0,), r"\(int\)")],
)
def test_gate_without_decision_is_named(outside, monkeypatch, answer, seen):
    scenario, gate = MODELS["homogeneous"](3, 8, np.random.default_rng(0)), type(config().new_gate())
    monkeypatch.setattr(gate, "step", lambda *_: answer)
    says = rf"^gate.name warm, round 1: step returned {seen}, needed \(state, Decision\)$"
    with pytest.raises(ExtensionFailed, match=says):
        train(Job(TASK, config(), scenario))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("odd", r"^gate odd: make returned None, needed a gate \(make is a classmethod\)$"),
        (
            "plain",
            r"^gate plain: make: saw TypeError: .* missing 1 required positional argument: 'settings'$",
        ),
        ("half", r"^gate half: make: saw TypeError: Can't instantiate abstract class Half .*init.*step"),
    ],
)
def test_gate_without_its_methods_is_named(tmp_path, monkeypatch, name, says):
    install(tmp_path, monkeypatch, "ward_lacking", LACKING, {f"{GROUP}:{name}": name.title()})
    with pytest.raises(BadSetting, match=says):
        config(gate=name, gate_options="")


def test_settings_select_gate(outside):
    local = config()
    assert local.measure == "gradient"
    assert local.most_steps == 0  # clients wait at each check
    says = next(says for name, _, says in RunConfig.explained() if name == "gate.name")
    assert "warm: each of the first rounds, then by a period" in says
    assert local.skips_message(4, 8) == (
        "4 of 8 rounds were skipped by the gate (warm, gate-options first=2): a larger first exchanges more"
    )
    with pytest.raises(BadSetting, match="saw warm, which weighs gradients"):
        config(work="local", secrecy="masked", federation="all.fed")


def test_gate_is_unknown_without_its_package():
    with pytest.raises(BadSetting, match=r"setting gate\.name: saw 'warm', needed one of drift, every"):
        config()


def test_invalid_gate_object_is_refused(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "ward_other", "class Thing: ...", {f"{GROUP}:thing": "Thing"})
    with pytest.raises(BadSetting, match=r"setting gate.name: 'thing' is .*Thing.*, needed a subclass of"):
        config(gate="thing", gate_options="")


def test_gate_that_raises_before_first_check_is_named(outside, monkeypatch):
    scenario, gate = MODELS["homogeneous"](3, 8, np.random.default_rng(0)), type(config().new_gate())
    monkeypatch.setattr(gate, "init", lambda _: {}["loss"])
    with pytest.raises(ExtensionFailed, match=r"^gate.name warm: init: saw KeyError: 'loss'$"):
        train(Job(TASK, config(), scenario))


@pytest.mark.parametrize(
    ("state", "seen"), [({1}, "a set"), (np.zeros(2), r"float64 of shape \(2,\)"), (1j, "a complex")]
)
def test_state_that_json_cannot_hold_is_named(outside, monkeypatch, state, seen):
    scenario, gate = MODELS["homogeneous"](3, 8, np.random.default_rng(0)), type(config().new_gate())
    monkeypatch.setattr(gate, "step", lambda *_: (state, Decision(True, "warm")))
    says = rf"^gate.name warm: saw a state that JSON cannot hold, {seen} \(.*\), needed numbers, texts, lists"
    with pytest.raises(ExtensionFailed, match=says):
        train(Job(TASK, config(), scenario))


def test_unknown_measure_is_refused(outside, monkeypatch):
    monkeypatch.setattr(gate_named("warm"), "measure", "cosine")
    needed = "needed one of none, distance, gradient"
    with pytest.raises(BadSetting, match=f"^setting gate.name: 'warm' has the measure 'cosine', {needed}$"):
        config()
