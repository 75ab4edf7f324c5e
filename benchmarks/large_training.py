"""A small transformer on bytes, trained by eight clients at once: the scene of the frontier of codecs.

Each client trains on another package of Python's standard library, with an AdamW of its own whose state it
keeps between rounds. Updates, codecs, error feedback and the server's optimizer are the product's own; what
stands in for the fleet is one batch of models, stacked along the first dimension.
"""

import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

PACKAGES: Final = ("asyncio", "email", "unittest", "importlib", "multiprocessing", "xml", "tkinter", "ctypes")
LENGTH: Final = 48  # bytes of a sequence
HELD_OUT: Final = 64  # sequences of each client
HEADS: Final = 4
Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of the transformer, and of a local step."""

    width: int = 32
    layers: int = 2
    batch: int = 4
    rate: float = 5e-3


def _shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    d = shape.width
    layers = {
        f"{layer}.{name}": size
        for layer in range(shape.layers)
        for name, size in (
            ("norm1", (d,)),
            ("attend", (d, 3 * d)),
            ("join", (d, d)),
            ("norm2", (d,)),
            ("widen", (d, 4 * d)),
            ("narrow", (4 * d, d)),
        )
    }
    return {"bytes": (256, d), "places": (LENGTH, d), **layers, "norm": (d,), "head": (d, 256)}


def first_model(shape: Shape, seed: int) -> Vector:
    """Return the vector of a new model."""
    rng = np.random.default_rng([seed, 1])
    parts = [
        np.ones(size)
        if "norm" in name
        else rng.normal(size=size).ravel() * (size[0] ** -0.5 if "." in name else 0.05)
        for name, size in _shapes(shape).items()
    ]
    return np.concatenate(parts).astype(np.float32)


def _loss(parts: Mapping[str, Tensor], shape: Shape, sequences: Tensor) -> Tensor:
    """Return the cross-entropy of the next byte, of a single model."""
    x = parts["bytes"][sequences[:, :-1]] + parts["places"][: LENGTH - 1]
    batch, length, width = x.shape
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    for layer in range(shape.layers):
        own = {
            name: parts[f"{layer}.{name}"] for name in ("norm1", "attend", "join", "norm2", "widen", "narrow")
        }
        normed = functional.rms_norm(x, (width,)) * own["norm1"]
        q, k, v = (
            each.reshape(batch, length, HEADS, -1).transpose(1, 2)
            for each in (normed @ own["attend"]).chunk(3, dim=-1)
        )
        weights = (
            (q @ k.transpose(2, 3) * (width / HEADS) ** -0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        )
        x = x + (weights @ v).transpose(1, 2).reshape(batch, length, width) @ own["join"]
        normed = functional.rms_norm(x, (width,)) * own["norm2"]
        x = x + functional.gelu(normed @ own["widen"]) @ own["narrow"]
    logits = (functional.rms_norm(x, (width,)) * parts["norm"]) @ parts["head"]
    return functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())


@cache
def sequences_of(package: str) -> tuple[Tensor, Tensor]:
    """Return the sequences of a package for training, and those held out."""
    files = sorted((Path(sysconfig.get_path("stdlib")) / package).rglob("*.py"))
    text = b"".join(file.read_bytes() for file in files)
    every = torch.tensor(list(text[: len(text) // LENGTH * LENGTH])).view(-1, LENGTH)
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))
    return every[order[HELD_OUT:]], every[order[:HELD_OUT]]


class Clients:
    """Eight clients that train as one batch of models."""

    def __init__(self, shape: Shape, seed: int, steps: int) -> None:
        """Prepare this many local steps, over which the learning rate falls to 0 as a half cosine."""
        self._shape, self._seed, self._step = shape, seed, 0
        self._sizes = _shapes(shape)
        self.count: Final = len(PACKAGES)
        self._parts = {
            name: torch.zeros(self.count, *size, requires_grad=True) for name, size in self._sizes.items()
        }
        self._optimizer = torch.optim.AdamW(self._parts.values(), lr=shape.rate, betas=(0.9, 0.95))
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, steps)

    def train(self, model: Vector, steps: int) -> list[Vector]:
        """Train from the common model; return each client's update."""
        with torch.no_grad():
            for part, each in zip(self._parts.values(), self._cut(model), strict=True):
                part.copy_(each.expand_as(part))
        each_loss = torch.func.vmap(lambda parts, batch: _loss(parts, self._shape, batch))
        for _ in range(steps):
            # torch has no types for `backward` of what vmap returns
            each_loss(self._parts, self._batches()).sum().backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            self._schedule.step()
        flat = torch.cat([part.detach().flatten(1) for part in self._parts.values()], dim=1).numpy()
        return [model - end for end in flat]

    def loss(self, model: Vector) -> float:
        """Return the mean loss of a model on what all clients hold out."""
        parts = dict(zip(self._sizes, self._cut(model), strict=True))
        with torch.no_grad():
            held_out = torch.cat([sequences_of(each)[1] for each in PACKAGES])
            return float(_loss(parts, self._shape, held_out))

    def _cut(self, model: Vector) -> list[Tensor]:
        ends = np.cumsum([int(np.prod(size)) for size in self._sizes.values()])[:-1]
        return [
            torch.from_numpy(part).reshape(size)
            for part, size in zip(np.split(model, ends), self._sizes.values(), strict=True)
        ]

    def _batches(self) -> Tensor:
        self._step += 1
        rng = np.random.default_rng([self._seed, 2, self._step])
        data = [sequences_of(each)[0] for each in PACKAGES]
        return torch.stack([each[rng.integers(0, len(each), self._shape.batch)] for each in data])
