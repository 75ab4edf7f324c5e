"""Test that a run goes on well from the best model once it has gone back to it, and what is kept for that."""

import json
import logging
import sys
import weakref
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed
from fedgc.flower.rollback import Rollback
from fedgc.flower.sink import Sink
from fedgc.flower.validation import ON_SERVER
from fedgc.history import ClientRow, RoundRow
from fedgc.large_vectors import IN_MEMORY_BYTES, Scratch
from fedgc.store.checkpoint import Checkpoint
from tests.flower.test_driver import Kept, run
from tests.outside_package import install

RULE = '''
import numpy as np
from fedgc.aggregators.bounded_mean import BoundedMean


class Spoiled(BoundedMean):
    """The bounded mean, and noise in the ninth round of a run."""

    rounds = 0  # of all instances: a run that goes back makes another one

    def result(self):
        mean = super().result()
        Spoiled.rounds += 1
        noise = 3.0 * np.random.default_rng(0).normal(size=mean.size)
        return mean + noise.astype(np.float32) if Spoiled.rounds == 9 else mean
'''


@pytest.mark.parametrize(("momentum", "codec"), [("auto", "float32"), ("off", "int8")])
def test_run_learns_on_after_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, momentum: str, codec: str
) -> None:
    monkeypatch.delitem(sys.modules, "spoiled", raising=False)
    install(tmp_path / "site", monkeypatch, "spoiled", RULE, {"fedgc.aggregators:spoiled": "Spoiled"})
    _, sink, _ = run(
        tmp_path, work="local", replicas="auto", aggregator="spoiled", codec=codec, shared_momentum=momentum,
        rounds=30, local_steps=4, gate="every", deadline_s=60.0,
    )  # fmt: skip
    assert [kind for kind, _, _ in sink.audit if kind != "outlier"] == ["rollback"]
    (back,) = [row for row in sink.rows if "left out" in row.reason]
    assert "the mean update is left out: the run goes back to the model of round " in back.reason
    assert (back.outcome, back.counted_samples) == ("approximate", 0)
    assert sink.metrics[30]["accuracy"] > 0.6


def test_run_returns_at_its_end_if_last_model_has_collapsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "spoiled", raising=False)
    install(tmp_path / "site", monkeypatch, "spoiled", RULE, {"fedgc.aggregators:spoiled": "Spoiled"})
    driver, sink, saved = run(
        tmp_path, work="local", replicas="auto", aggregator="spoiled", rounds=9, local_steps=4, gate="every",
        shared_momentum="off", deadline_s=60.0,
    )  # fmt: skip
    (warned,) = [what for kind, _, what in sink.audit if kind == "rollback"]
    last, back = saved[-1], int(warned.partition("the model of round ")[2].partition(";")[0])
    assert (last.version, last.round, json.loads(last.state)[:2]) == (10, back, [10, 10])
    np.testing.assert_array_equal(last.model, saved[back - 1].model)
    np.testing.assert_array_equal(driver.average, last.model)
    assert sink.metrics[back]["accuracy"] > sink.metrics[9]["accuracy"]


@pytest.mark.parametrize(("resumes", "returns"), [(True, False), (False, True)])
def test_gain_counts_from_first_model_also_after_resume(*, resumes: bool, returns: bool) -> None:
    """Near the end of training little is gained since the resume, and a figure may lose most of that."""
    before = Rollback(RunConfig(), Kept(), logging.getLogger("test"))
    for version, accuracy in enumerate((0.1, 0.5, 0.7, 0.8, 0.9)):
        before.made(large(version))
        before.evaluated(version, {"accuracy": accuracy}, ON_SERVER)
    rollback = Rollback(RunConfig(), Kept(), logging.getLogger("test"))
    rollback.begin(before.figures if resumes else "")
    for version, accuracy in enumerate((0.9, 0.91, 0.92, 0.92, 0.93, 0.91)):
        rollback.made(large(version))
        rollback.evaluated(version, {"accuracy": accuracy}, ON_SERVER)
    assert rollback.is_due is returns


LARGE = IN_MEMORY_BYTES // 4 + 1  # numbers
ACCURACIES = (0.1, 0.5, 0.7, 0.8, 0.9, 0.2)


def large(version: int) -> Checkpoint:
    return Checkpoint(version, version, np.full(LARGE, version, np.float32), b"state %d" % version, "{}")


def test_clients_since_best_model_are_named() -> None:
    sink, names = Kept(), {}
    rollback = Rollback(RunConfig(), sink, logging.getLogger("test"), names=names)
    zero = {each.name: 0 for each in fields(RoundRow)}
    for version, accuracy in enumerate(ACCURACIES):
        clients = tuple(ClientRow(each, counted=1) for each in ("aa", "bb", "cc"))
        row = {**zero, "outcome": "synced", "round": version, "version": version - 1, "clients": clients}
        rollback.made(large(version))
        rollback.counted(RoundRow(**row))
        names |= {"aa": "south", "bb": "north"}
        rollback.evaluated(version, {"accuracy": accuracy}, ON_SERVER)
    ((_, _, what),) = sink.audit
    assert what.endswith("updates since then came from cc, north, south")


def test_run_of_site_does_not_go_back_before_model_of_consortium() -> None:
    sink = Kept()
    rollback = Rollback(RunConfig(), sink, logging.getLogger("test"))
    for version, accuracy in enumerate(ACCURACIES):
        if version == len(ACCURACIES) - 1:
            rollback.begin()
        rollback.made(large(version))
        rollback.evaluated(version, {"accuracy": accuracy}, ON_SERVER)
    assert not rollback.is_due
    assert not sink.audit


def test_large_models_before_newest_are_in_scratch(tmp_path: Path) -> None:
    rollback = Rollback(RunConfig(), Sink(), logging.getLogger("test"), Scratch(tmp_path))
    models = []
    for version, accuracy in enumerate(ACCURACIES):
        checkpoint = large(version)
        models.append(weakref.ref(checkpoint.model))
        rollback.made(checkpoint)
        del checkpoint
        rollback.evaluated(version, {"accuracy": accuracy}, ON_SERVER)
    assert all(each() is None for each in models)
    back = rollback.take()
    assert (back.version, back.optimizer, rollback.take()) == (4, b"state 4", None)
    np.testing.assert_array_equal(back.model, large(4).model)


def test_model_under_evaluation_is_kept_until_it_has_figures(tmp_path: Path) -> None:
    """Its evaluation takes many rounds; those of the models after it are dropped but for the last."""
    rollback = Rollback(RunConfig(), Sink(), logging.getLogger("test"), Scratch(tmp_path))
    for version, accuracy in enumerate(ACCURACIES[:-1]):
        rollback.made(large(version))
        rollback.evaluated(version, {"accuracy": accuracy}, ON_SERVER)
    for version in range(5, 20):
        rollback.made(large(version))
    rollback.evaluated(5, {"accuracy": 0.1}, ON_SERVER)
    assert rollback.is_due


class Full(Scratch):
    """A disk without room."""

    def empty(self, size_bytes: int) -> np.ndarray:
        raise EdgeFailed(f"no room for a vector of {size_bytes} bytes")


def test_run_goes_on_without_room_for_earlier_models(caplog: pytest.LogCaptureFixture) -> None:
    rollback = Rollback(RunConfig(), Sink(), logging.getLogger("test"), Full())
    for version, accuracy in enumerate(ACCURACIES):
        rollback.made(large(version))
        rollback.evaluated(version, {"accuracy": accuracy}, ON_SERVER)
    assert not rollback.is_due
    assert len(caplog.messages) == 1
    assert "the run cannot go back to a model from now on: no room" in caplog.text
