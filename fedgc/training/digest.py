"""The digest of a shared chunk: whether two clients that name the same chunk have the same data.

It covers the chunk's name, its number of samples and a few of its rows (the first, the last, and others
evenly spaced between them): other data, another order and other preprocessing show in it, a single changed
row may not. That is the price of joining at once: to read all of a large dataset before the first round
would take longer than the round. Copies that differ later are told apart by their sketches (`copies`).

Rows are read on the CPU, under a seed of their own, so that random transforms come out the same everywhere.
Where a task says how to read a few rows alone (`Task.peek`), no chunk is loaded for it.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fedgc.messages import LONGEST_DIGEST, UNREAD
from fedgc.training.data import samples_of
from fedgc.training.randomness import key, seeded
from fedgc.training.tasks import Task

PROBED: Final = 8  # rows of a chunk that its digest covers


def probed(samples: int) -> tuple[int, ...]:
    """Return the rows that are read.

    >>> probed(3), probed(100)
    ((0, 1, 2), (0, 14, 28, 42, 56, 70, 84, 99))
    """
    count = min(PROBED, samples)
    return tuple(at * (samples - 1) // max(count - 1, 1) for at in range(count))


def content_digest(task: Task, name: str, samples: int) -> str:
    """Return the digest of a chunk, or UNREAD where it cannot be read: training it will say why."""
    cpu = torch.device("cpu")
    rows = probed(samples)
    with seeded(key(name, "digest")):
        try:
            if task.peek is not None:
                few = samples_of(task.peek(name, rows), cpu)
                content = few.batch(np.arange(len(few)))
            else:
                content = samples_of(task.load(name), cpu).batch(np.array(rows))
            hashed = hashlib.sha256(repr((name, samples)).encode())
            _add(hashed, content)
        except Exception:  # the user's code may raise anything
            return UNREAD
    return hashed.hexdigest()[:LONGEST_DIGEST]


def _add(hashed: "hashlib._Hash", content: Any) -> None:  # noqa: ANN401  nested as the dataset nests it
    """Add a batch: what it holds, and how that is nested."""
    if isinstance(content, Tensor):
        hashed.update(repr((str(content.dtype), tuple(content.shape))).encode())
        hashed.update(content.contiguous().flatten().view(torch.uint8).numpy().data)
    elif isinstance(content, Mapping):
        for name in sorted(content, key=str):
            hashed.update(repr(str(name)).encode())
            _add(hashed, content[name])
    elif isinstance(content, list | tuple):
        hashed.update(f"({len(content)}".encode())
        for each in content:
            _add(hashed, each)
    else:
        hashed.update(repr(content).encode())
