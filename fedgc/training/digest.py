"""The content digest of a shared chunk, by which the server checks that replicas hold the same data.

It covers the chunk's name, its sample count and a few evenly spaced rows. It detects other data, another
order or other preprocessing, but not every changed row: reading a whole dataset would delay the first round.
Replicas that differ in training are detected by their sketches.

Rows are read on the CPU under a fixed seed, so that random transforms give the same result on all clients.
With `Task.peek`, only these rows are read.
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


def probed(samples: int, most: int = PROBED) -> tuple[int, ...]:
    """Return the rows that the digest covers: at most so many, evenly spaced.

    >>> probed(3), probed(100)
    ((0, 1, 2), (0, 14, 28, 42, 56, 70, 84, 99))
    """
    count = min(most, samples)
    return tuple(at * (samples - 1) // max(count - 1, 1) for at in range(count))


def content_digest(task: Task, name: str, samples: int) -> str:
    """Return the digest of a chunk, or UNREAD if it cannot be read; training then reports the error."""
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
    """Hash a batch, including its structure."""
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
