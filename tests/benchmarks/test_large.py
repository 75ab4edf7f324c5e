"""Test the benchmark of large models: figures from rows, sizes, its models, and the watch of memory."""

import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import large_overlap
from benchmarks.large import MODULE, TINY, _attribute, _models, figures, sizes_of
from benchmarks.memory_watch import MemoryWatch, resident_bytes, watched
from fedgc.config import RunConfig
from fedgc.errors import BadSetting

MEGABYTE = 1_000_000


def memory(model: str, size: int, **bytes_: int) -> dict:
    return {"what": "memory", "model": model, "size_bytes": size * MEGABYTE} | {
        f"{name}_bytes": MEGABYTE * each for name, each in bytes_.items()
    }


def test_figures_count_models_above_tiny_run():
    rows = [
        memory(TINY, 4, server=200, client=220, alone=210, plentiful_server=210, plentiful_client=220),
        memory("0.1", 100, server=450, client=720, alone=410, plentiful_server=660, plentiful_client=820),
        {"what": "round", "model": "0.1", "exchange_s": 3.0},
        {"what": "round", "model": "0.1", "exchange_s": 5.0},
        {"what": "round", "model": TINY, "exchange_s": 99.0},
        {"what": "stream", "model": "0.1", "seconds": 2.0},
    ]
    assert figures(rows) == {
        "stream_ratio": {"0.1": 2.0},
        "server_models": {"0.1": 2.5},
        "client_models": {"0.1": 3.0},
        "plentiful_server_models": {"0.1": 4.5},
        "plentiful_client_models": {"0.1": 4.0},
    }


def test_figure_of_failed_size_is_null():
    rows = [{"what": "failed", "model": "4", "reason": "no room"}]
    assert figures(rows) == {
        "stream_ratio": {"4": None},
        "server_models": {"4": None},
        "client_models": {"4": None},
        "plentiful_server_models": {"4": None},
        "plentiful_client_models": {"4": None},
    }


def test_figures_compare_slow_lines_with_training():
    sizes = {"up_bytes": 18_000_000, "down_bytes": 4_600_000}
    rows = [
        {"what": "overlap", "arm": arm, "round_s": seconds, **sizes}
        for arm, times in (("fragments", (4.2, 4.4, 9.0)), ("waits", (8.8, 8.4, 8.0)))
        for seconds in times
    ]
    found = large_overlap.figures(rows)
    assert {name: round(value, 3) for name, value in found.items()} == {
        "overlap_ratio": 1.1, "waits_ratio": 2.1, "download_ratio": 0.256,
    }  # fmt: skip
    assert set(large_overlap.figures([]).values()) == {None}


@pytest.mark.parametrize("text", ["", "x", "0", "1,,2", "nan", "-1"])
def test_bad_sizes_are_refused(text: str):
    with pytest.raises(BadSetting, match=r"--model-gb: saw .*needed sizes of 0.001 to 1000"):
        sizes_of(text)


def test_model_of_benchmark_has_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / f"{MODULE}.py").write_text(_models({"0.05": 50_000_000}))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    task = getattr(import_module(MODULE), _attribute("0.05"))(RunConfig())
    assert sum(4 * each.numel() for each in task.model().parameters()) == 50_000_000


def test_watch_sees_peak_and_no_mapped_files(tmp_path: Path):
    (tmp_path / "file").write_bytes(bytes(40 * MEGABYTE))
    program = (
        "import mmap, sys; file = open('file', 'r+b'); held = mmap.mmap(file.fileno(), 0);"
        "sum(held[::4096]); room = bytearray(b'x' * 20_000_000); print('x', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        with watched({"it": lambda: process.pid}) as watch:
            while "it" not in watch.peak:
                time.sleep(0.01)
        process.stdin.close()
    assert 20 * MEGABYTE <= watch.peak["it"] < 45 * MEGABYTE


def test_ended_process_has_no_memory():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert resident_bytes(ended.pid) == 0
    watch = MemoryWatch()
    watch.look({"it": lambda: ended.pid})
    assert watch.peak == {}
