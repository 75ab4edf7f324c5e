"""Test the link benchmark: figures from rows, its plan and apps, and a quick measurement."""

import os
import sys
import time
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

from benchmarks import stock
from benchmarks.link import (
    BLOCKS,
    CLIENTS,
    MANY,
    MODEL_BYTES,
    Parts,
    Plan,
    Watch,
    bench_link,
    figures,
)
from benchmarks.stop import stops_heard_s
from fedgc.errors import EdgeFailed
from fedgc.training.tasks import named
from tests.config_of import config_of

MEGABYTE = 1_000_000


def over(what: str, model: str, *overheads: float) -> list[dict]:
    return [
        {"what": what, "model": model, "clients": CLIENTS, "overhead_s": overhead} for overhead in overheads
    ]


def server(model: str, **sizes: int) -> dict:
    return {"what": "server", "model": model, "clients": MANY, **sizes}


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the module of the bench's models, importable."""
    (tmp_path / "bench_models.py").write_text(stock.MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "bench_models", raising=False)
    return tmp_path


def test_figure_without_data_is_null():
    assert set(figures([]).values()) == {None}
    found = figures(over("session", "tiny", 0.02))
    assert found["session_overhead_s"] == 0.02
    assert [name for name, value in found.items() if value is not None] == ["session_overhead_s"]


def test_overheads_are_medians_and_ratios_use_medians():
    rows = over("session", "tiny", 0.5, 0.02, 0.04) + over("fedavg", "tiny", 8.0, 16.0)
    found = figures(rows)
    assert found["session_overhead_s"] == 0.04
    assert found["fedavg_overhead_s"] == 12.0
    assert found["fedavg_over_session"] == pytest.approx(300.0)


def test_results_of_other_model_or_link_are_not_used():
    rows = over("session", "mb10", 9.0) + over("messages", "tiny", 4.0) + over("fedavg", "mb100", 30.0)
    found = figures(rows)
    assert found["messages_overhead_s"] == 4.0
    assert {found[name] for name in ("session_overhead_s", "fedavg_overhead_s", "fedavg_over_session")} == {
        None
    }


def test_large_model_is_compared_with_stream_of_same_run():
    rows = [*over("session", "mb100", 3.0), {"what": "stream", "seconds": 1.5}]
    assert figures(rows)["session_100mb_over_stream"] == 2.0


def test_peak_memory_is_in_models_above_idle_without_blocks():
    rows = [
        server("tiny", idle_bytes=300 * MEGABYTE, peak_bytes=310 * MEGABYTE),
        server("mb100", idle_bytes=500 * MEGABYTE, peak_bytes=800 * MEGABYTE),
    ]
    assert figures(rows)["peak_models_above_blocks"] == pytest.approx(5.0 - BLOCKS)
    assert figures(rows[1:])["peak_models_above_blocks"] is None


def test_stops_are_reported_in_milliseconds():
    rows = [{"what": "stop", "heard_s": seconds} for seconds in (0.001, 0.002, 0.090)]
    assert figures(rows)["stop_heard_ms"] == pytest.approx(2.0)


@pytest.mark.parametrize("model", MODEL_BYTES)
def test_plan_settings_are_accepted_by_run(model: str):
    config = config_of(Plan("session", model, 3, CLIENTS).settings())
    assert (config.chunks, config.replicas, config.blocks) == (CLIENTS, 1, BLOCKS)
    assert (config.min_clients, config.evaluate_every, config.keep_checkpoints) == (CLIENTS, 0, 0)


@pytest.mark.parametrize("model", MODEL_BYTES)
def test_models_have_claimed_sizes(models: Path, model: str):
    config = config_of({"work": "coded", "task": f"bench_models:{model}", "chunks": CLIENTS})
    task = named(config.task, config)
    assert len(task.sizes()) == CLIENTS
    assert 4 * sum(each.numel() for each in task.model().parameters()) == MODEL_BYTES[model]


def test_quickstart_does_one_local_step(models: Path, monkeypatch: pytest.MonkeyPatch):
    """Flower's client is run as it is written, without Flower's processes."""
    (models / "quickstart").mkdir()
    (models / "quickstart" / "__init__.py").write_text("")
    (models / "quickstart" / "client_app.py").write_text(stock.CLIENT)
    threads = torch.get_num_threads()
    client = import_module("quickstart.client_app")
    torch.set_num_threads(threads)
    monkeypatch.setattr(client, "Message", lambda content, reply_to: content)
    first = ArrayRecord(import_module("bench_models").Weights(1_000).state_dict())
    context = SimpleNamespace(run_config={"size": "tiny"})
    content = client.train(SimpleNamespace(content={"arrays": first}), context)
    trained = content["arrays"].to_torch_state_dict()["weights"].numpy()
    np.testing.assert_allclose(trained, 2 * 0.1 / 1_000, rtol=1e-6)
    assert content["metrics"]["num-examples"] == 4
    assert content["metrics"]["work_s"] > 0


def test_quickstart_is_separate_flower_app():
    values = {"size": "tiny", "rounds": 2, "clients": 4, "out": "times.json"}
    app = tomllib.loads(stock.PROJECT.format(flower="flwr", **values))["tool"]["flwr"]["app"]
    assert app["config"] == values
    compile(stock.SERVER, "server_app", "exec")
    assert "fedgc" not in stock.SERVER + stock.CLIENT


def test_bare_stream_time_grows_with_size_and_leaves_no_process():
    began = time.monotonic()
    assert 0 < stock.plain_stream_s(3 * MEGABYTE, 1_000, 2) < time.monotonic() - began


def test_busy_client_receives_requested_number_of_stops(models: Path):
    heard = stops_heard_s(models, 2)
    assert len(heard) == 2
    assert all(0 < seconds < 60 for seconds in heard)


def test_failed_part_gives_reason_and_other_parts_are_measured():
    now = [0.0]
    parts = Parts(lambda: now[0], 100.0)

    def fails(_: float) -> list:
        raise EdgeFailed("it broke\nand more of that")

    def hangs(left_s: float) -> list:
        now[0] += left_s
        return over("session", "mb10", left_s)

    parts.add("broken", fails)
    parts.add("whole", lambda left_s: over("session", "tiny", left_s), keep_s=60.0)
    parts.add("long", hangs, keep_s=60.0)
    parts.add("late", lambda left_s: over("session", "mb100", left_s), keep_s=60.0)
    parts.add("kept back for", lambda left_s: over("fedavg", "tiny", left_s))
    assert [row["part"] for row in parts.rows if row["what"] == "failed"] == ["broken", "late"]
    assert [row["reason"] for row in parts.rows if row["what"] == "failed"] == [
        "it broke and more of that",
        "no time was left",
    ]
    found = figures(parts.rows)
    assert (found["session_overhead_s"], found["fedavg_overhead_s"]) == (40.0, 60.0)
    assert found["session_100mb_over_stream"] is None


def test_missing_server_gives_no_measurement():
    class Nobody:
        def pids(self, _: str) -> tuple[int, ...]:
            return (os.getpid(),)  # a process, but no ServerApp

    watch = Watch()
    watch.look(Nobody(), 1)
    assert (watch.idle_bytes, watch.peak_bytes, watch.cpu_s) == (0, 0, 0.0)


@pytest.mark.slow
def test_quick_benchmark_gives_figures_of_smallest_model():
    report = bench_link(quick=True)
    for name in ("session_overhead_s", "fedavg_overhead_s", "fedavg_over_session", "stop_heard_ms"):
        assert report.figures[name] > 0
    assert report.figures["peak_models_above_blocks"] is None
    assert {row["what"] for row in report.rows} == {"load", "session", "server", "fedavg", "stop"}
