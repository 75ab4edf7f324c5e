"""Test that a run leaves out a client without which its models are better, by evaluations beside it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedgc.errors import BadSetting
from fedgc.training.tasks import named
from tests.flower.test_driver import SETTINGS, Kept, config_of, run

ROUNDS = 20
WITHOUT = "its update does not count: models are better without its updates"


def turned(loss: Callable) -> Callable:
    """A loss whose steps lead away."""
    return lambda model, batch: -loss(model, batch)


def run_with_hostile(folder: Path, **settings: object) -> Kept:
    """Three clients that learn, and one that does the opposite."""
    task = named("digits", config_of(SETTINGS))
    hostile = replace(task, loss=turned(task.loss))
    chosen = {"work": "local", "replicas": "auto", "gate": "every", "local_steps": 8, "rounds": ROUNDS}
    _, sink, _ = run(folder, own=3, others=[hostile], min_clients=4, **{**chosen, **settings})
    return sink


def left_out(sink: Kept) -> set[str]:
    """Return the clients that did not count in some round."""
    return {who for kind, who, what in sink.audit if kind == "outlier" and what.endswith(WITHOUT)}


def test_client_without_which_models_are_better_is_left_out(tmp_path: Path) -> None:
    sink = run_with_hostile(tmp_path)
    (hostile,) = left_out(sink)
    ours = {each.client for row in sink.rows for each in row.clients if each.counted} - {hostile}
    assert len(ours) == 3
    assert sink.metrics[ROUNDS]["accuracy"] > 0.8


@pytest.mark.parametrize("settings", [{"check_outliers": "off"}, {"evaluate_every": 0}])
def test_without_checks_outliers_are_bounded(tmp_path: Path, settings) -> None:
    assert not left_out(run_with_hostile(tmp_path, **settings))


def test_checks_without_evaluations_of_server_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="check-outliers: saw on, needed auto: the server evaluates no mod"):
        run_with_hostile(tmp_path, check_outliers="on", changes={"evaluate": None})
