"""Test FedGC with the arguments of Flower's strategies, and its one-line refusals."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping

from fedgc import FedGC, RunConfig
from fedgc.errors import TaskFailed, Unusable
from fedgc.flower.evaluate_fn import AppEvaluation
from fedgc.flower.sink import Sink
from fedgc.flower.strategy import _result, _vector_of
from fedgc.training import CommonModel
from tests.six_chunks import TASK

GRID = SimpleNamespace(run=SimpleNamespace(run_id=7, override_config={}))


def test_strategy_without_task_has_stock_clients():
    assert FedGC().config.client_app == "stock"
    assert FedGC(TASK).config.client_app == "fedgc"
    assert FedGC(None, RunConfig(rounds=9)).config.rounds == 9


@pytest.mark.parametrize(
    ("strategy", "arguments", "says"),
    [
        (
            FedGC(TASK, sink=Sink()),
            {"train_config": ConfigRecord()},
            "saw train_config, needed none with fedgc's",
        ),
        (
            FedGC(sink=Sink()),
            {"evaluate_config": {"a": 1}},
            "evaluate_config={'a': 1}, needed a ConfigRecord",
        ),
        (FedGC(sink=Sink()), {}, "saw no task; only stock clients with initial arrays can do without"),
        (
            FedGC(sink=Sink()),
            {"initial_arrays": [np.zeros(3)]},
            "saw initial_arrays of list, needed an ArrayRecord",
        ),
        (FedGC(sink=Sink()), {"num_rounds": 0}, "setting rounds: saw 0, needed at least 1"),
        (FedGC(sink=Sink()), {"timeout": -1}, "setting timing.deadline-s: saw -1.0, needed above 0"),
        (
            FedGC(TASK, sink=Sink()),
            {"initial_arrays": ArrayRecord([np.zeros(3)])},
            "initial arrays: Error.* in loading state_dict",
        ),
    ],
)
def test_unusable_argument_is_refused(strategy, arguments, says):
    with pytest.raises(Unusable, match=says):
        strategy.start(GRID, **arguments)


def test_addresses_of_deployment_hold_for_serverapp_of_ones_own(monkeypatch):
    monkeypatch.setenv("FEDGC_BIND", "0.0.0.0:9443")
    monkeypatch.setenv("FEDGC_ADVERTISE", "fl.example.org:9443")
    used = FedGC(TASK, RunConfig(), Sink())._settings(GRID, None, None)
    assert (used.bind, used.advertise) == ("0.0.0.0:9443", "fl.example.org:9443")


class WithHooks(FedGC):
    """A strategy whose author expects Flower's calls."""

    def configure_train(self, *_, **__):
        return []

    aggregate_evaluate = configure_train


def test_methods_for_one_round_that_would_not_be_called_are_refused():
    says = "^WithHooks: saw configure_train, aggregate_evaluate of its own, needed none: FedGC calls no"
    with pytest.raises(Unusable, match=says):
        WithHooks(sink=Sink()).start(GRID, ArrayRecord([np.zeros(3)]))


def test_strategy_around_fedgc_is_named_as_unusable():
    around = DifferentialPrivacyClientSideFixedClipping(FedGC(sink=Sink()), 1.0, 1.0, 2)
    with pytest.raises(Unusable, match="saw a call for one round, as by a strategy around it"):
        around.configure_train(1, ArrayRecord([np.zeros(3)]), ConfigRecord(), GRID)


def test_initial_arrays_become_first_model():
    common = CommonModel(TASK, RunConfig())
    state = {
        name: torch.full_like(each, 0.5) for name, each in common.module(common.first()).state_dict().items()
    }
    vector = _vector_of(common, ArrayRecord(state))
    assert set(vector[: common.parameters].tolist()) == {0.5}


def test_evaluate_fn_gives_numbers_or_clear_error():
    def of(evaluate_fn, round_: int = 1):
        return AppEvaluation(evaluate_fn, logging.getLogger("test"))(round_, None)

    assert of(lambda number, _: MetricRecord({"accuracy": 0.5, "round": number}), 3) == {
        "accuracy": 0.5,
        "round": 3.0,
    }
    assert of(lambda *_: None) == {}
    with pytest.raises(TaskFailed, match="evaluate_fn returned a dict, needed a MetricRecord or None"):
        of(lambda *_: {})
    with pytest.raises(TaskFailed, match="evaluate_fn raised ZeroDivisionError: division by zero"):
        of(lambda *_: 1 / 0)


def test_result_has_records_of_evaluate_fn_with_lists(caplog: pytest.LogCaptureFixture):
    record = MetricRecord({"accuracy": 0.5, "right": 7, "per-class": [0.25, 0.75]})
    evaluation = AppEvaluation(lambda *_: record, logging.getLogger("test"))
    assert [evaluation(number, None) for number in (1, 2)] == [{"accuracy": 0.5, "right": 7.0}] * 2
    assert [each for each in caplog.messages if "lists" in each] == [
        "round 1: saw lists as metrics of evaluate_fn (per-class), needed single numbers: "
        "only the result has them"
    ]
    common = SimpleNamespace(state=lambda vector: {})
    figures = {"accuracy": 0.5, "right": 7.0}
    driver = SimpleNamespace(common=common, average=None, figures=({1: figures, 2: {"accuracy": 0.4}}, {}))
    metrics = _result(driver, evaluation).evaluate_metrics_serverapp
    assert (dict(metrics[1]), dict(metrics[2])) == (dict(record), {"accuracy": 0.4})
