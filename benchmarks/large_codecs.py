"""The frontier of final loss against bytes: codecs for the updates of local work, on a small transformer.

Every arm trains for the same number of local steps from the same models on the same batches; what differs is
how many steps a round has, how updates travel and how the server applies their mean. The settings of each arm
were chosen on another seed. `python -m benchmarks codecs` also times every codec.

    topk_bytes_ratio   bytes of top-k over those of plain float32
    topk_loss_gap      final loss of top-k over that of plain float32, less 1: of the means over seeds
    topk_over_int4     final loss of top-k over that of 4 bits at no fewer bytes
    topk_over_published   the same beside SparseLoCo as published, at no fewer bytes
    topk_over_diloco   the same beside DiLoCo, in float32
"""

import os
import time
import tracemalloc
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, Final

import numpy as np
import torch

from benchmarks.large_training import Clients, Shape, first_model
from benchmarks.report import Report, Value, machine
from benchmarks.sparse_loco import SparseLoCo
from fedgc.codecs import Codec, make_codec, rounding
from fedgc.config import RunConfig
from fedgc.training import ServerOptimizer
from fedgc.training.local_update import Residual, with_error_feedback

SEEDS: Final = (0, 1, 2)
STEPS: Final = 400  # local steps of each client
PACKED: Final = 25_000_000  # numbers of a timed vector: 100 MB
TOP_K: Final = "top-k share=0.25"
TIMED: Final = ("bf16", "int8", "int4", TOP_K, "top-k", "top-k share=0.015625")


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to send updates and to apply their mean."""

    name: str
    codec: str  # of the product, or `published KEPT`
    local_steps: int = 10
    server: tuple[tuple[str, Any], ...] = ()  # settings of its optimizer

    def made(self) -> Codec:
        """Return the codec."""
        name, _, kept = self.codec.partition(" ")
        return SparseLoCo(int(kept)) if name == "published" else make_codec(self.codec)


@dataclass(frozen=True, slots=True)
class Trained:
    """What one run came to: the loss at its end, and the bytes of all updates of one client."""

    loss: float
    up_bytes: int


PLAIN: Final = Arm("float32", "float32")
OURS: Final = Arm("top-k", TOP_K, 40, (("server_learning_rate", 1.3),))
INT4: Final = Arm("int4, no fewer bytes", "int4", 100)
PUBLISHED: Final = Arm("SparseLoCo as published", "published 256", 20)
DILOCO: Final = Arm(
    "DiLoCo", "float32", 10, (("server_optimizer", "nesterov"), ("server_learning_rate", 0.7))
)
ARMS: Final = (PLAIN, OURS, INT4, PUBLISHED, DILOCO)


def train(arm: Arm, seed: int, steps: int = STEPS, shape: Shape | None = None) -> Trained:
    """Train for this many local steps of each client, in rounds of `arm.local_steps`."""
    shape = shape or Shape()
    clients, codec, model = Clients(shape, seed, steps), arm.made(), first_model(shape, seed)
    server = ServerOptimizer(RunConfig(**dict(arm.server)), model.size)
    residuals: dict[int, Residual] = {}
    size = 0
    for number in range(steps // arm.local_steps):
        mean = np.zeros_like(model)
        for client, update in enumerate(clients.train(model, arm.local_steps)):
            stamp = (number, 0, str(client))
            data, residuals[client] = with_error_feedback(update, codec, stamp, residuals.get(client))
            mean += codec.decode(data, model.size) / np.float32(clients.count)
            size += data.nbytes
        model = server.apply(model, mean)
    return Trained(clients.loss(model), size // clients.count)


def bench_codecs(*, quick: bool = False) -> Report:
    """Train every arm with every seed, and time every codec."""
    seeds, steps = (SEEDS[:1], 100) if quick else (SEEDS, STEPS)
    cases = [(arm, seed, steps) for arm in ARMS for seed in seeds]
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1), get_context("spawn"), _one_thread) as pool:
        trained = dict(zip(cases, pool.map(train, *zip(*cases, strict=True)), strict=True))
    means = {
        arm: (
            float(np.mean([trained[arm, seed, steps].loss for seed in seeds])),
            trained[arm, seeds[0], steps].up_bytes,
        )
        for arm in ARMS
    }
    rows = [_row(arm, seed, each) for (arm, seed, _), each in trained.items()]
    times = [_timed(codec, PACKED // (50 if quick else 1)) for codec in TIMED]
    return Report(figures_of(means), [*rows, *times], machine(), seeds)


def figures_of(means: Mapping[Arm, tuple[float, int]]) -> Mapping[str, float]:
    """Return the figures from the mean loss and the bytes of each arm.

    >>> means = {PLAIN: (2.0, 1000), OURS: (2.01, 15), INT4: (2.5, 16), PUBLISHED: (2.2, 20), DILOCO: (2, 9)}
    >>> figures = figures_of(means)
    >>> round(figures["topk_bytes_ratio"], 3), round(figures["topk_loss_gap"], 3)
    (0.015, 0.005)
    """
    (plain, plain_bytes), (loss, up_bytes) = means[PLAIN], means[OURS]
    return {
        "topk_bytes_ratio": up_bytes / plain_bytes,
        "topk_loss_gap": loss / plain - 1,
        "topk_over_int4": loss / means[INT4][0],
        "topk_over_published": loss / means[PUBLISHED][0],
        "topk_over_diloco": loss / means[DILOCO][0],
    }


def lines(report: Report) -> Iterable[str]:
    """Return the arms and the codecs as lines of text."""
    for row in report.rows:
        yield ", ".join(f"{name} {value}" for name, value in row.items())


def _row(arm: Arm, seed: int, trained: Trained) -> Mapping[str, Value]:
    return {
        "arm": arm.name,
        "codec": arm.codec,
        "local_steps": arm.local_steps,
        "seed": seed,
        "loss": round(trained.loss, 4),
        "up_bytes": trained.up_bytes,
    }


def _timed(name: str, size: int) -> Mapping[str, Value]:
    """Return the processor seconds and the peak of memory for packing an update with error feedback."""
    codec, rng = make_codec(name), np.random.default_rng(0)
    update = rng.standard_normal(size, dtype=np.float32)
    _, last = with_error_feedback(update.copy(), codec, (0, 0, "a"), None)
    copies = [update.copy() for _ in range(3)]
    packing = min(_seconds(partial(with_error_feedback, each, codec, (1, 0, "a"), last)) for each in copies)
    data = codec.encode(update, rounding(1, 0, "a"))
    unpacking = min(_seconds(lambda: codec.decode(data, size)) for _ in range(3))
    tracemalloc.start()
    with_error_feedback(update, codec, (1, 0, "a"), last)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    scale = 25e6 / size
    return {
        "packed_by": name,
        "pack_s_per_100mb": round(packing * scale, 3),
        "unpack_s_per_100mb": round(unpacking * scale, 3),
        "peak_over_update": round(peak / update.nbytes, 3),
        "float32_over_codec": round(update.nbytes / data.nbytes, 1),
    }


def _seconds(call: Callable[[], object]) -> float:
    """Return the processor time of this thread, which other processes do not change."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def _one_thread() -> None:
    torch.set_num_threads(1)
