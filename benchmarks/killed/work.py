"""The work in the benchmark of kills, and the file in which one process counts its steps.

It needs torch and numpy alone, as the programs of other frameworks import it.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

CLIENTS: Final = 4
SAMPLES: Final = 8
WIDTH: Final = 16
RATE: Final = 0.01
STEP_S: Final = 0.02
EVERY: Final = 125  # steps between two exchanges


def network() -> nn.Module:
    """Return the model; all copies begin with the same numbers."""
    torch.manual_seed(0)
    return nn.Linear(WIDTH, 1)


def loss(module: nn.Module) -> Tensor:
    """Return the loss of a batch."""
    error: Tensor = module(torch.ones(SAMPLES, WIDTH)).square().mean()
    return error


def paced() -> Iterator[None]:
    """Yield at the start of each step, which takes at least `STEP_S`."""
    while True:
        began = time.monotonic()
        yield
        time.sleep(max(0.0, began + STEP_S - time.monotonic()))


class Counts:
    """The steps of one process: those that it has begun, and those that entered the common model.

    They are in a file, so that a SIGKILL does not lose them, and the server of a framework can write one.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            np.zeros(2, np.int64).tofile(path)
        self._numbers = np.memmap(path, np.int64, "r+", shape=(2,))

    @property
    def begun(self) -> int:
        """Return the steps that were begun."""
        return int(self._numbers[0])

    @property
    def counted(self) -> int:
        """Return the steps that entered the common model."""
        return int(self._numbers[1])

    def begin(self) -> None:
        """Count a step that begins."""
        self._numbers[0] += 1

    def count(self, steps: int) -> None:
        """Count steps that entered the common model."""
        self._numbers[1] += steps
