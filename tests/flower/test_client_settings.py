"""Test what a client refuses before it trains."""

from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from fedgc.errors import BadSetting
from fedgc.flower.client import _client


def test_codec_that_client_lacks_is_refused_before_training():
    context = Context(1, 2, {"name": "north"}, RecordDict(), {"links.codec": "wavelet share=0.1"})
    says = "client north: setting links.codec: saw 'wavelet', needed one of bf16, float32, int4, int8, top-k"
    with pytest.raises(BadSetting, match=says), _client(context, None, "ward@1"):
        pass


def test_setting_of_task_named_site_makes_no_gateway(tmp_path: Path):
    node = {"site": 2, "cache": str(tmp_path), "identity": str(tmp_path / "key")}
    context = Context(1, 2, node, RecordDict(), {"task": "examples.sites:task", "work": "local"})
    with _client(context, None, "ward@1") as client:
        assert client.task is not None
        assert list(client.task.chunks) == ["site-2"]
