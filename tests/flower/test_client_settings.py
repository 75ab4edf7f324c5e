"""Test what a client refuses before it trains."""

from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from fedgc import Task
from fedgc.errors import BadSetting, NotAllowed
from fedgc.flower.client import _client


def test_codec_that_client_lacks_is_refused_before_training():
    context = Context(1, 2, {"name": "north"}, RecordDict(), {"links.codec": "wavelet share=0.1"})
    says = "client north: setting links.codec: saw 'wavelet', needed one of bf16, float32, int4, int8, top-k"
    with pytest.raises(BadSetting, match=says), _client(context, None, "ward@1"):
        pass


def test_budget_for_no_step_is_refused_before_training(tmp_path: Path):
    inputs = torch.zeros(200, 2)
    task = Task(
        lambda: torch.nn.Linear(2, 1),
        {"ward": 200},
        lambda _: inputs,
        lambda model, batch: model(batch).sum(),
    )
    node = {"cache": str(tmp_path), "identity": str(tmp_path / "key")}
    config = {"privacy.unit": "record", "privacy.epsilon": 2.5, "privacy.noise": 1.0}
    with _client(Context(1, 2, node, RecordDict(), config), task, "ward@1") as client:
        files = client.cache("ward")
        says = (
            "records is spent: with one more step epsilon would be 3.08, needed at most 2.5 .privacy.epsilon"
        )
        with pytest.raises(NotAllowed, match=says):
            client.engine(files, lambda _: False)


def test_setting_of_task_named_site_makes_no_gateway(tmp_path: Path):
    node = {"site": 2, "cache": str(tmp_path), "identity": str(tmp_path / "key")}
    context = Context(1, 2, node, RecordDict(), {"task": "examples.sites:task", "work": "local"})
    with _client(context, None, "ward@1") as client:
        assert client.task is not None
        assert list(client.task.chunks) == ["site-2"]


def test_command_that_fleet_would_not_start_is_refused():
    """The policy of a gateway took the run's script for the owner's own."""
    node = {"site-fleet": "ward", "script": "train.py"}
    context = Context(1, 2, node, RecordDict(), {"script": "other.py", "work": "local"})
    with (
        pytest.raises(BadSetting, match="node config site-fleet: saw script beside it"),
        _client(context, None, "ward@1"),
    ):
        pass
