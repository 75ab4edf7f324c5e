"""Tasks whose model counts: they detect a single wrong sum in a thousand rounds, and the chunk.

Every chunk owns a part of the model. Training a chunk adds one pattern of small integers to its part.

Coded work (`small`, `large`) scales it such that the mean over all chunks adds the pattern once: after v
exact rounds every part is exactly v times the pattern, for any assignment of chunks. A codeword that is added
twice, lost or mixed up changes it.

Local work (`by_client`): every client has a chunk of its own, and each local step adds the pattern once. The
common model tells how many steps of which client were counted. With the variable `STEPS_FOLDER`, a client
writes down each step, with the model before it.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

from fedgc.config import RunConfig
from fedgc.config.fields import Value
from fedgc.errors import BadTask
from fedgc.training.tasks import Task

CHUNKS: Final = 8
SAMPLES: Final = 4
STEPS: Final = 2
SMALL: Final = CHUNKS * 256  # numbers: 8 KiB
LARGE: Final = CHUNKS * 2**16  # 2 MiB
SETTINGS: Final = {
    "work": "coded",
    "chunks": CHUNKS,
    "local_steps": STEPS,
    "learning_rate": CHUNKS / STEPS,
    "blocks": 1,
}
LOCAL_SAMPLES: Final = (8, 12, 16, 20, 24, 28)  # of the clients of local work
STEPS_FOLDER: Final = "FEDGC_COUNTED_STEPS"
STEP: Final = np.dtype([("at", "<f8"), ("firsts", "<f4", (CHUNKS,))])  # when; the first number of each part


class Counter(nn.Module):
    """Numbers that are all zero at first."""

    pattern: torch.Tensor

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(numbers))
        self.register_buffer("pattern", 1.0 + torch.arange(numbers // CHUNKS) % 7, persistent=False)

    def part(self, chunk: int) -> torch.Tensor:
        """Return the numbers of a chunk."""
        length = len(self.pattern)
        return self.counts[chunk * length : (chunk + 1) * length]


def small(_: RunConfig) -> Task:
    """Coded work on a small model."""
    return _task(SMALL)


def large(_: RunConfig) -> Task:
    """Coded work on a model of 2 MiB."""
    return _task(LARGE)


def private(_: RunConfig) -> Task:
    """Every client holds all chunks as private ones: their names are equal, the chunks are different."""
    return replace(_task(SMALL), may_move=False)


def by_client(_: RunConfig, client: Mapping[str, Value]) -> Task:
    """Local work: a client's own setting `part` says which part of the model it trains."""
    part = client.get("part")
    sizes = {} if part is None else {f"part-{part}": LOCAL_SAMPLES[int(part)]}

    def loss(module: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if folder := os.environ.get(STEPS_FOLDER):
            write_step(Path(folder) / f"part-{part}", module)
        return _loss(module, batch)

    return Task(
        model=lambda: Counter(SMALL),
        chunks=sizes,
        load=lambda name: (torch.full((sizes[name],), int(name.removeprefix("part-"))),),
        loss=loss,
    )


def write_step(path: Path, module: nn.Module) -> None:
    """Append a step to a client's file."""
    firsts = _counter(module).counts.detach().reshape(CHUNKS, -1)[:, 0].numpy()
    with path.open("ab") as file:
        file.write(np.array([(time.time(), firsts)], STEP).tobytes())


class OnHalfBase(Counter):
    """Numbers beside a frozen base of a type that numpy lacks, as that of a language model often is."""

    def __init__(self, numbers: int) -> None:
        super().__init__(numbers)
        self.base = nn.Parameter(torch.ones(4, dtype=torch.bfloat16), requires_grad=False)


def on_half_base(_: RunConfig) -> Task:
    """Coded work on a model with a frozen base."""
    return replace(_task(SMALL), model=lambda: OnHalfBase(SMALL))


def _task(numbers: int) -> Task:
    return Task(
        model=lambda: Counter(numbers),
        chunks={f"part-{chunk}": SAMPLES for chunk in range(CHUNKS)},
        load=lambda name: (torch.full((SAMPLES,), int(name.removeprefix("part-"))),),
        loss=_loss,
        evaluate=counted,
        may_move=True,
    )


def _loss(module: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    counter = _counter(module)
    return -(counter.part(int(batch[0][0])) * counter.pattern).sum()


def counted(module: nn.Module) -> dict[str, float]:
    """Return the count of each chunk in the model, and the largest deviation from a chunk's count."""
    counter = _counter(module)
    parts = [counter.part(chunk) / counter.pattern for chunk in range(CHUNKS)]
    off = max(float((part - part[0]).abs().max()) for part in parts)
    return {f"part-{chunk}": float(part[0]) for chunk, part in enumerate(parts)} | {"off": off}


def _counter(module: nn.Module) -> Counter:
    if not isinstance(module, Counter):
        raise BadTask(f"counting: saw a {type(module).__name__}, needed a Counter")
    return module
