"""`python -m benchmarks large`: seconds and memory of a round with large models, on real Flower processes.

Three clients do local work on a model of the given size, over sessions. Everything is measured at the default
settings, except that every round is exchanged and no checkpoint is written.

    stream_ratio    by size in GB: a round's time beyond its slowest client's local steps, over that of a
                    plain TLS stream that moves as many bytes between as many processes
    server_models   by size: peak of the ServerApp's memory above its idle one, in models
    client_models   by size: peak of a client's memory above that of training alone, in models
    plentiful_server_models, plentiful_client_models    the same with what they take while memory is plentiful
    overlap_ratio   a round over its training, where a fragment is sent as slowly as clients train
    waits_ratio     the same for clients that wait for the next model
    download_ratio  bytes of a model's difference in 8 bits over those of its numbers in float32

Memory is that which the system cannot take back: mapped files are not counted. Training alone is a process
that does the same steps on the same model without fedgc.
"""

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import large_overlap
from benchmarks.local_run import complete, rounds_of
from benchmarks.memory_watch import MemoryWatch, watched
from benchmarks.report import Report, Value, machine, number
from benchmarks.stock import plain_stream_s
from fedgc.deploy.app_folder import Setting
from fedgc.deploy.local_federation import LocalFederation
from fedgc.errors import BadSetting, EdgeFailed, words_of
from fedgc.sim.owned import end_with_the_parent

Rows = list[dict[str, Value]]
Memory = Mapping[str, Mapping[str, Value]]  # of each model

CLIENTS: Final = 3
FIRST: Final = 1  # practice rounds: pages are touched
ROUNDS: Final = 4
WAIT_S: Final = 1800.0
GIGABYTE: Final = 10**9
QUICK_GB: Final = (0.05,)
PLENTIFUL: Final = "plentiful_"
TINY: Final = "tiny"
SLOW: Final = "slow"  # the model that is sent over slow lines
TINY_BYTES: Final = 4_000_000
STREAMS: Final = 3
MODULE: Final = "large_models"
MODELS: Final = '''"""Models of many layers whose local step costs little beyond its gradient."""

import torch
from torch import nn

from fedgc.training.tasks import Task

SAMPLES, LAYER = 4, 4_000_000


class Weights(nn.Module):
    def __init__(self, numbers):
        super().__init__()
        sizes = [LAYER] * (numbers // LAYER) + [numbers % LAYER] * (numbers % LAYER > 0)
        self.weights = nn.ParameterList([torch.zeros(size) for size in sizes])


def loss(module, batch):
    return sum((each[:1000] - batch[0].mean()).square().mean() for each in module.weights)


def task(numbers):
    return lambda config: Task(
        model=lambda: Weights(numbers),
        chunks={f"chunk-{n}": SAMPLES for n in range(config.chunks)},
        load=lambda name: (torch.ones(SAMPLES),),
        loss=loss,
        may_move=True,
    )


'''
SETTINGS: Final[Mapping[str, Setting]] = {
    "work": "local",
    "local-steps": 1,
    "gate.name": "every",
    "gate.lockstep": "on",
    "links.kind": "session",
    "history.evaluate-every": 0,
    "history.keep-checkpoints": 0,
    "client.threads": 1,
    "min-clients": CLIENTS,
    "data.chunks": CLIENTS,
    "timing.deadline-s": 600.0,
}


def sizes_of(text: str) -> tuple[float, ...]:
    """Return the sizes in GB of a list.

    >>> sizes_of(".1,1")
    (0.1, 1.0)
    """
    try:
        sizes = tuple(float(each) for each in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or not all(0.001 <= each <= 1000 for each in sizes):
        raise BadSetting(f"--model-gb: saw {text!r}, needed sizes of 0.001 to 1000, such as .1,1")
    return sizes


def bench_large(sizes_gb: Sequence[float], rounds: int = ROUNDS) -> Report:
    """Measure models of these sizes, the smallest first."""
    rows: Rows = [{"what": "load", "load_1m": os.getloadavg()[0]}]
    with tempfile.TemporaryDirectory(prefix="fedgc-bench-") as name:
        folder = Path(name)
        made = {TINY: TINY_BYTES} | {_named(each): int(each * GIGABYTE) for each in sorted(sizes_gb)}
        slow = {SLOW: large_overlap.SIZE_BYTES}
        (folder / f"{MODULE}.py").write_text(_models(made | slow))
        environment = {
            "FEDGC_DB": str(folder / "fedgc.db"),
            "XDG_STATE_HOME": str(folder / "state"),
            "PYTHONPATH": os.pathsep.join(filter(None, [name, os.environ.get("PYTHONPATH", "")])),
        }
        with LocalFederation(CLIENTS, folder=folder / "federation", environment=environment) as federation:
            for model, size_bytes in made.items():
                try:
                    rows += _measured(federation, folder, model, size_bytes, rounds)
                except EdgeFailed as error:
                    rows.append({"what": "failed", "model": model, "reason": words_of(error)})
        try:
            rows += large_overlap.bench_overlap(folder, f"{MODULE}:{_attribute(SLOW)}", environment)
        except EdgeFailed as error:
            rows.append({"what": "failed", "model": SLOW, "reason": words_of(error)})
    return Report({**figures(rows), **large_overlap.figures(rows)}, rows, machine())


def _named(size_gb: float) -> str:
    return f"{size_gb:g}"


def _models(made: Mapping[str, int]) -> str:
    lines = [f"{_attribute(model)} = task({size // 4})\n" for model, size in made.items()]
    return MODELS + "".join(lines)


def _attribute(model: str) -> str:
    return f"model_{model}".replace(".", "_")


# ---- one size


def _measured(federation: LocalFederation, folder: Path, model: str, size_bytes: int, rounds: int) -> Rows:
    own: dict[str, Setting] = {"run": model, "task": f"{MODULE}:{_attribute(model)}"}
    settings = {**SETTINGS, **own, "rounds": rounds + FIRST + 1}
    before = _streams(model, size_bytes)
    run = federation.submit(settings)
    nodes = list(federation.nodes)
    finders = {"server": partial(_pid, federation, "superlink", b"flwr-serverapp")} | {
        node: partial(_pid, federation, node, b"flwr-clientapp") for node in nodes
    }
    with watched(finders) as watch:
        complete(federation, run, model, WAIT_S)
    found = _rounds(folder / "fedgc.db", model)
    alone = _alone_bytes(folder, model)
    return [*before, *found, _memory(watch, nodes, model, size_bytes, alone), *_streams(model, size_bytes)]


def _pid(federation: LocalFederation, name: str, program: bytes) -> int | None:
    for pid in federation.pids(name):
        try:
            if program in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        except OSError:  # it has ended
            continue
    return None


def _rounds(database: Path, model: str) -> Rows:
    rows: Rows = []
    for this, seconds, of_clients in rounds_of(database, model, FIRST):
        work_s = max((row.busy_s for row in of_clients if row.counted), default=0.0)
        rows.append(
            {
                "what": "round",
                "model": model,
                "outcome": this.row.outcome,
                "exchange_s": seconds - work_s,
                "work_s": work_s,
                "collecting_s": this.row.collecting_s,
                "up_bytes": this.up_bytes,
                "down_bytes": this.down_bytes,
            }
        )
    return rows


def _memory(
    watch: MemoryWatch, nodes: Sequence[str], model: str, size_bytes: int, alone: int
) -> dict[str, Value]:
    return {
        "what": "memory",
        "model": model,
        "size_bytes": size_bytes,
        "server_bytes": watch.own.get("server", 0),
        "client_bytes": max(watch.own.get(node, 0) for node in nodes),
        "plentiful_server_bytes": watch.peak.get("server", 0),
        "plentiful_client_bytes": max(watch.peak.get(node, 0) for node in nodes),
        "alone_bytes": alone,
    }


def _streams(model: str, size_bytes: int) -> Rows:
    """Return the times of plain streams, measured before and after the rounds: the machine may be busy."""
    if model == TINY:
        return []
    count = STREAMS if size_bytes < GIGABYTE else 1
    times = [plain_stream_s(size_bytes, size_bytes, CLIENTS, WAIT_S) for _ in range(count)]
    return [{"what": "stream", "model": model, "bytes": size_bytes, "seconds": seconds} for seconds in times]


# ---- training alone


def _alone_bytes(folder: Path, model: str) -> int:
    """Return the peak memory of a process that trains this model without fedgc."""
    context = get_context("spawn")
    over = context.Event()
    process = context.Process(target=_train, args=(str(folder), model, over), daemon=True)
    with watched({"alone": lambda: process.pid}) as watch:
        process.start()
        over.wait(WAIT_S)
    process.kill()
    process.join()
    return watch.peak["alone"]


def _train(folder: str, model: str, over: Any) -> None:  # noqa: ANN401  an event of multiprocessing
    end_with_the_parent()
    sys.path.insert(0, folder)
    import importlib

    import torch

    from fedgc.config import RunConfig

    torch.set_num_threads(1)
    task = getattr(importlib.import_module(MODULE), _attribute(model))(RunConfig())
    module = task.model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        task.loss(module, task.load("chunk-0")).backward()
        optimizer.step()
    time.sleep(0.1)
    over.set()


# ---- figures


def figures(rows: Sequence[Mapping[str, Value]]) -> dict[str, Mapping[str, float | None]]:
    """Return the named figures by size in GB, None where a size was not measured."""
    memory = {str(row["model"]): row for row in rows if row["what"] == "memory"}
    models = dict.fromkeys(str(row["model"]) for row in rows if row.get("model", TINY) not in (TINY, SLOW))
    return {
        "stream_ratio": {model: _stream_ratio(rows, model) for model in models},
        "server_models": {model: _server_models(memory, model) for model in models},
        "client_models": {model: _client_models(memory, model) for model in models},
        "plentiful_server_models": {model: _server_models(memory, model, PLENTIFUL) for model in models},
        "plentiful_client_models": {model: _client_models(memory, model, PLENTIFUL) for model in models},
    }


def _stream_ratio(rows: Sequence[Mapping[str, Value]], model: str) -> float | None:
    of_model = [row for row in rows if row.get("model") == model]
    exchanges = [number(row["exchange_s"]) for row in of_model if row["what"] == "round"]
    streams = [number(row["seconds"]) for row in of_model if row["what"] == "stream"]
    return median(exchanges) / median(streams) if exchanges and streams else None


def _server_models(memory: Memory, model: str, of: str = "") -> float | None:
    return _above(memory, model, f"{of}server_bytes")


def _client_models(memory: Memory, model: str, of: str = "") -> float | None:
    client, alone = _above(memory, model, f"{of}client_bytes"), _above(memory, model, "alone_bytes")
    return None if client is None or alone is None else client - alone


def _above(memory: Memory, model: str, name: str) -> float | None:
    """Return the memory above that of the tiny model's run, in models."""
    if not {TINY, model} <= memory.keys():
        return None
    above = number(memory[model][name]) - number(memory[TINY][name])
    return above / number(memory[model]["size_bytes"])
