"""A task whose model counts: it detects a single wrong sum in a thousand rounds, and the chunk.

Every chunk owns a part of the model. Training a chunk adds one pattern of small integers to its part, scaled
such that the mean over all chunks adds the pattern once: after v exact rounds every part is exactly v times
the pattern, for any assignment of chunks. A codeword that is added twice, lost or mixed up changes it."""

from dataclasses import replace

import torch
from torch import nn

from fedgc.config import RunConfig
from fedgc.training.tasks import Task

CHUNKS = 8
SAMPLES = 4
STEPS = 2
SMALL, LARGE = CHUNKS * 256, CHUNKS * 2**16  # numbers: 8 KiB, 2 MiB
SETTINGS = {
    "work": "coded",
    "chunks": CHUNKS,
    "local_steps": STEPS,
    "learning_rate": CHUNKS / STEPS,
    "blocks": 1,
}


class Counter(nn.Module):
    """Numbers that are all zero at first."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(numbers))
        self.register_buffer("pattern", 1.0 + torch.arange(numbers // CHUNKS) % 7, persistent=False)

    def part(self, chunk: int) -> torch.Tensor:
        length = len(self.pattern)
        return self.counts[chunk * length : (chunk + 1) * length]


def small(_: RunConfig) -> Task:
    return _task(SMALL)


def large(_: RunConfig) -> Task:
    return _task(LARGE)


def private(_: RunConfig) -> Task:
    """Every client holds all chunks as private ones: their names are equal, the chunks are different."""
    return replace(_task(SMALL), may_move=False)


class OnHalfBase(Counter):
    """Numbers beside a frozen base of a type that numpy lacks, as that of a language model often is."""

    def __init__(self, numbers: int) -> None:
        super().__init__(numbers)
        self.base = nn.Parameter(torch.ones(4, dtype=torch.bfloat16), requires_grad=False)


def on_half_base(_: RunConfig) -> Task:
    return replace(_task(SMALL), model=lambda: OnHalfBase(SMALL))


def _task(numbers: int) -> Task:
    return Task(
        model=lambda: Counter(numbers),
        chunks={f"part-{chunk}": SAMPLES for chunk in range(CHUNKS)},
        load=lambda name: (torch.full((SAMPLES,), int(name.removeprefix("part-"))),),
        loss=lambda module, batch: -(module.part(int(batch[0][0])) * module.pattern).sum(),
        evaluate=counted,
        may_move=True,
    )


def counted(module: Counter) -> dict[str, float]:
    """Return the count of each chunk in the model, and the largest deviation from a chunk's count."""
    parts = [module.part(chunk) / module.pattern for chunk in range(CHUNKS)]
    off = max(float((part - part[0]).abs().max()) for part in parts)
    return {f"part-{chunk}": float(part[0]) for chunk, part in enumerate(parts)} | {"off": off}
