"""What a training script of the user's own costs: a step, an interrupt, handing a large model in and out.

A client's end of the script (`ScriptLoop`) is driven as the engine drives it, without a server, so that the
figures are of the loop alone.
"""

import json
import shlex
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch

from benchmarks.report import Report, Value, machine
from fedgc.config import RunConfig
from fedgc.messages import Work
from fedgc.training.flat import Vector
from fedgc.training.local_loop import Begin
from fedgc.training.script.connection import ScriptFacts
from fedgc.training.script.script_loop import ScriptLoop

SCRIPT: Final = Path(__file__).with_name("loop_script.py")
CLIENT: Final = "bench"
WAIT_S: Final = 300.0
STEP_S: Final = 0.1  # of the step that the cost of a call is compared with
INTERRUPTED_S: Final = 0.02  # of the steps that are interrupted
GIGABYTE: Final = 250_000_000  # numbers
LARGE: Final = 10_000_000
MOST_STEPS: Final = 10**9
TRIALS: Final = 5

Rows = list[dict[str, Value]]


def bench_loop(*, quick: bool = False, device: str = "cpu") -> Report:
    """Measure a script whose model is on this device; the quick version takes 40 MB for 1 GB."""
    size = LARGE if quick else GIGABYTE
    rows: Rows = []
    small, large = (_step_s(each, device, rows) for each in (1000, LARGE))
    figures = {
        "step_overhead_percent": 100.0 * small / STEP_S,
        "step_ms_10m": 1000.0 * large,
        "take_1gb_over_memcpy": _take_over_memcpy(size, device, rows),
        "interrupt_ms": _interrupt_ms(5 if quick else 20, rows),
        "ddp_sum_error": _ddp_sum_error(rows),
    }
    rows.append({"what": "device", "name": _device_name(device)})
    return Report(figures, rows, machine())


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else device


def _step_s(size: int, device: str, rows: Rows) -> float:
    """Return the median time of a call of `step` for a model of this size."""
    with tempfile.TemporaryDirectory(prefix="fedgc-bench-") as folder:
        out = Path(folder) / "times"
        with _script("steps", "--size", size, "--out", out, "--device", device) as loop:
            _begin(loop, MOST_STEPS)
            _until(out.exists)
            _until(lambda: bool(out.read_text().endswith("]")))
            times: list[float] = json.loads(out.read_text())
    rows.append({"what": "step", "numbers": size, "median_s": statistics.median(times), "most_s": max(times)})
    return statistics.median(times)


def _take_over_memcpy(size: int, device: str, rows: Rows) -> float:
    """Return the time to take a model from a script and to give it the next, over that of two copies."""
    source = np.ones(size, np.float32)
    copies = _two_copies_s(source)
    exchanges = []
    with _script("wait", "--size", size, "--device", device) as loop:
        for trial in range(TRIALS):
            _begin(loop, MOST_STEPS, version=trial, model=source)
            _until(lambda: _advanced(loop) > 0)
            handed = _timed(partial(_handed, loop))
            given = _timed(partial(_given, loop, trial + TRIALS, source))
            exchanges.append(handed + given)
    rows += [
        {"what": "two copies", "numbers": size, "s": statistics.median(copies)},
        {"what": "take and give", "numbers": size, "s": statistics.median(exchanges)},
    ]
    return statistics.median(exchanges) / statistics.median(copies)


def _two_copies_s(source: Vector) -> list[float]:
    target = np.zeros_like(source)

    def copy() -> None:
        np.copyto(target, source)
        np.copyto(source, target)

    return [_timed(copy) for _ in range(TRIALS)]


def _interrupt_ms(count: int, rows: Rows) -> float:
    """Return the longest time from a request to the model being there, beyond one step."""
    beyond = []
    with _script("wait", "--size", 1000, "--step-s", INTERRUPTED_S) as loop:
        for trial in range(count):
            _begin(loop, MOST_STEPS, version=trial)
            _until(lambda: _advanced(loop) > 0)
            time.sleep(0.007 * trial % INTERRUPTED_S)  # at another moment of the step each time
            beyond.append(1000.0 * (_timed(lambda: _handed(loop)) - INTERRUPTED_S))
    rows.append({"what": "interrupt", "median_ms": statistics.median(beyond), "most_ms": max(beyond)})
    return max(0.0, *beyond)


def _ddp_sum_error(rows: Rows) -> float:
    """Return the largest difference between two processes and one, over the largest number."""
    results = []
    for words in (("sum", "--size", 1), ("sum",)):
        launcher = "" if len(words) > 1 else "torchrun --nproc-per-node 2 "
        with _script(*words, launcher=launcher) as loop:
            _begin(loop, 8)
            reached = 0
            end = time.monotonic() + WAIT_S
            while reached < 8 and time.monotonic() < end:
                advance = loop.advance(reached, 8)
                reached += advance.steps if advance else 0
            results.append(_handed(loop).copy())
    one, two = results
    error = float(np.abs(one - two).max() / np.abs(one).max())
    rows.append({"what": "two processes against one", "error": error})
    return error


# ---- the client's end


@contextmanager
def _script(*words: object, launcher: str = "") -> Iterator[ScriptLoop]:
    command = launcher + shlex.join(map(str, (SCRIPT, *words)))
    with tempfile.TemporaryDirectory(prefix="fedgc-bench-") as folder:
        config = RunConfig(script=command, gate="every")
        loop = ScriptLoop(ScriptFacts(config, CLIENT, {}, Path(folder)), time.sleep)
        try:
            _until(lambda: loop.layout is not None)
            yield loop
        finally:
            loop.close(complete=True)


def _begin(loop: ScriptLoop, target: int, version: int = 0, model: Vector | None = None) -> None:
    if model is None:
        model = (
            loop.initial() if version == 0 else np.ones(loop.layout.size if loop.layout else 0, np.float32)
        )
    names = ((0, CLIENT),)
    work = Work(CLIENT, version + 1, version, target, (0,), names, 0, WAIT_S, kind="local")
    loop.begin(Begin(work, (CLIENT,), model, None, None, 0))


def _given(loop: ScriptLoop, version: int, model: Vector) -> None:
    """Give the script a model, until it trains from it."""
    _begin(loop, MOST_STEPS, version, model)
    _until(lambda: _advanced(loop) > 0)


def _advanced(loop: ScriptLoop) -> int:
    advance = loop.advance(0, 1)
    return advance.steps if advance else 0


def _handed(loop: ScriptLoop) -> Vector:
    found: list[Vector] = []

    def is_there() -> bool:
        vector = loop.hand_in()
        found.extend([vector] if vector is not None else [])
        return bool(found)

    _until(is_there)
    return found[0]


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError("the script of the benchmark did not go on")
        time.sleep(0.0005)
