"""Test an aggregation rule from another package: one class and one entry point."""

import re

import numpy as np
import pytest

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, ExtensionFailed
from fedgc.sim.clock import MODELS
from fedgc.sim.training import Job, train
from tests.outside_package import install
from tests.six_chunks import TASK

RULE = '''
import numpy as np
from fedgc.aggregators import CollectingRule
from fedgc.errors import Refused

TEXT = "no rule"

class SignMean(CollectingRule):
    """Moves each coordinate by `step`, in the direction that most clients agree on (signSGD)."""

    summary = "the majority's sign, times step"

    def __init__(self, *, step: float = 0.01):
        super().__init__()
        self.step = step

    def combine(self, updates):
        if len(updates) > 3:
            raise Refused(f"aggregator sign-mean: saw {len(updates)} updates, needed at most 3")
        votes = sum(np.sign(each.vector) for each in updates)
        return (self.step * np.sign(votes)).astype(np.float32)


class Half(CollectingRule):
    """Lacks `combine`."""


class Broken(CollectingRule):
    """Gives what is no mean update, or raises."""

    def __init__(self, *, how: str = "raises"):
        super().__init__()
        self.how = how

    def begin(self, model, shapes):
        if self.how == "begins":
            raise ValueError("boom")

    def add(self, client, weight, update):
        if self.how == "adds" and client == "client 1":
            raise ValueError("boom")
        super().add(client, weight, update)

    def combine(self, updates):
        vector = updates[0].vector
        if self.how == "raises":
            raise ValueError("boom")
        if self.how == "nothing":
            return None
        if self.how == "not-finite":
            return np.full_like(vector, np.nan)
        means = {"short": vector[:4], "wide": vector.astype(np.float64), "list": vector.tolist()}
        return means.get(self.how, np.broadcast_to(vector[:1], vector.shape))
'''
GROUP = "fedgc.aggregators"


@pytest.fixture
def outside(tmp_path, monkeypatch):
    names = {
        f"{GROUP}:sign-mean": "SignMean",
        f"{GROUP}:half": "Half",
        f"{GROUP}:text": "TEXT",
        f"{GROUP}:lost": "Lost",
        f"{GROUP}:broken": "Broken",
    }
    install(tmp_path / "site", monkeypatch, "ward_rules", RULE, names)


def config(**changes) -> RunConfig:
    values = {
        "rounds": 3, "work": "local", "gate": "every", "local_steps": 2, "batch_size": 4, "min_clients": 3,
        "device": "cpu", "aggregator": "sign-mean", "aggregator_options": "step=0.5",
    }  # fmt: skip
    return RunConfig(**{"work": "coded", **values, **changes})


def trained(clients: int, **changes):
    scenario = MODELS["homogeneous"](clients, 3, np.random.default_rng(0))
    return train(Job(TASK, config(**changes), scenario))


def test_simulated_run_uses_outside_rule(outside):
    moved = [trained(3, rounds=rounds).model for rounds in (1, 2)]
    steps = np.unique(np.abs(moved[1] - moved[0]).round(5))
    assert set(steps.tolist()) <= {0.0, 0.5}
    assert 0.5 in steps


def test_refused_mean_leaves_model_unchanged(outside):
    np.testing.assert_array_equal(trained(4).model, trained(4, rounds=1).model)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raises", "saw ValueError: boom"),
        ("short", "saw float32 of shape (4,) as its mean update, needed float32 of shape (12,)"),
        ("wide", "saw float64 of shape (12,) as its mean update, needed float32 of shape (12,)"),
        ("nothing", "saw None as its mean update, needed float32 of shape (12,)"),
        ("list", "saw a list as its mean update, needed float32 of shape (12,)"),
    ],
)
def test_broken_rule_ends_run_and_is_named(outside, how, says):
    with pytest.raises(ExtensionFailed, match=f"^aggregation.rule broken, round 1: {re.escape(says)}$"):
        trained(3, aggregator="broken", aggregator_options=f"how={how}")


def test_mean_that_is_not_finite_is_left_out_with_warning(outside, caplog):
    over = trained(3, aggregator="broken", aggregator_options="how=not-finite")
    assert np.isfinite(over.model).all()
    assert [(point.row.outcome, point.row.coverage) for point in over.points] == [("approximate", 0.0)] * 3
    said = [
        each.getMessage() for each in caplog.records if "the mean update is left out" in each.getMessage()
    ]
    assert [each.split(":")[0] for each in said] == ["round 1", "round 2", "round 3"]
    assert "12 of 12 numbers not finite" in said[0]


def test_rule_that_raises_before_round_is_named(outside):
    with pytest.raises(ExtensionFailed, match=r"^aggregation.rule broken, model 0: saw ValueError: boom$"):
        trained(3, aggregator="broken", aggregator_options="how=begins")


def test_mean_that_cannot_be_written_to_is_copied(outside):
    assert np.isfinite(trained(3, aggregator="broken", aggregator_options="how=read-only").model).all()


def test_outside_rule_is_documented_and_refused_by_name(outside):
    says = next(says for name, _, says in RunConfig.explained() if name == "aggregation.rule")
    assert "sign-mean: the majority's sign, times step" in says
    assert "lost: cannot be used (setting aggregation.rule: loading 'lost'" in says
    with pytest.raises(BadSetting, match="saw step='far', needed a number"):
        config(aggregator_options="step=far")
    with pytest.raises(BadSetting, match=r"needed a subclass of fedgc\.aggregators\.rule\.AggregationRule"):
        config(aggregator="text", aggregator_options="")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"work": "coded"}, "saw median, needed weighted-mean or auto with work = coded"),
        (
            {"secrecy": "masked", "federation": "all.fed"},
            "saw median, needed weighted-mean or auto with secrecy",
        ),
    ],
)
def test_rules_on_single_updates_are_refused_with_sums(changes, says):
    with pytest.raises(BadSetting, match=f"setting aggregation.rule: {says}"):
        config(aggregator="median", aggregator_options="", **changes)


def test_rule_is_unknown_without_its_package():
    with pytest.raises(BadSetting, match=r"saw 'sign-mean', needed one of bounded-mean, .*\(entry points"):
        config()


def test_rule_without_its_method_is_named(outside):
    with pytest.raises(BadSetting, match=r"^aggregator half: saw TypeError: Can't instantiate .* combine"):
        config(aggregator="half", aggregator_options="")


def test_update_that_rule_cannot_add_costs_mean_of_round(outside, caplog):
    over = trained(3, aggregator="broken", aggregator_options="how=adds")
    assert [(point.row.outcome, point.row.coverage) for point in over.points] == [("approximate", 0.0)] * 3
    said = (
        "the vector of client client 1 could not be added: aggregation.rule broken (client 1): saw ValueError"
    )
    assert all(said in point.row.reason for point in over.points)
    assert f"round 3: the mean update is left out: {said}" in caplog.text
