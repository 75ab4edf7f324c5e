"""A hospital's work for other frameworks, from files in a folder, and the marks that their servers write.

It needs torch and numpy alone: NVFlare is in a Python of its own, without fedgc. The folder has the model
(`model.pt`), the samples and the pace of each site (`site-0.npz`), and the held-out images (`test.npz`), each
with its weight in the accuracy on the slow site's data.
"""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from examples.hospitals.rivals import MARKS

STEPS: Final = 4  # of a round: the best length for FedAvg that waits, in the comparison
RATE: Final = 0.4  # tuned there
BATCH: Final = 32

State = Mapping[str, Tensor]


def network(folder: Path) -> nn.Module:
    """Return the model before the first round."""
    module: nn.Module = torch.load(folder / "model.pt", weights_only=False)  # fedgc has just written it
    return module


def _table(path: Path) -> Mapping[str, NDArray[np.float64]]:
    with np.load(path) as found:
        return dict(found)


class Hospital:
    """One site with its samples; a step takes at least its pace, as in fedgc's clients."""

    def __init__(self, folder: Path, site: int) -> None:
        torch.set_num_threads(1)
        table = _table(folder / f"site-{site}.npz")
        self._inputs, self._labels = torch.from_numpy(table["inputs"]), torch.from_numpy(table["labels"])
        self._site = site
        self._pace_s = float(table["pace_s"])
        self._module = network(folder)

    @property
    def samples(self) -> int:
        """Return how many samples it has."""
        return len(self._labels)

    def train(self, state: State, round_number: int) -> State:
        """Return the parameters after the local steps of a round."""
        self._module.load_state_dict(state)
        optimizer = torch.optim.SGD(self._module.parameters(), lr=RATE)
        for rows in self._batches(round_number):
            began = time.monotonic()
            optimizer.zero_grad()
            loss = functional.cross_entropy(self._module(self._inputs[rows]), self._labels[rows])
            loss.backward()
            optimizer.step()
            time.sleep(max(0.0, began + self._pace_s - time.monotonic()))
        return self._module.state_dict()

    def _batches(self, round_number: int) -> Iterator[NDArray[np.int64]]:
        rng = np.random.default_rng([round_number, self._site])
        for _ in range(STEPS):
            yield rng.choice(self.samples, min(BATCH, self.samples), replace=False)


class Marks:
    """What a server writes: when the first round began, and the accuracy after each round."""

    def __init__(self, folder: Path) -> None:
        table = _table(folder / "test.npz")
        self._inputs = torch.from_numpy(table["inputs"])
        self._labels, self._weights = table["labels"], table["weights"]
        self._module = network(folder)
        self._path = folder / MARKS

    def begin(self) -> None:
        """Mark the start of the first round."""
        self._write({"round": 0})

    def add(self, round_number: int, state: State | Mapping[str, NDArray[np.float32]]) -> None:
        """Evaluate the model of a round, and mark that."""
        self._module.load_state_dict({name: torch.as_tensor(each) for name, each in state.items()})
        with torch.no_grad():
            right = self._module(self._inputs).argmax(dim=1).numpy() == self._labels
        slow = float(right @ self._weights)
        self._write({"round": round_number, "accuracy": float(right.mean()), "slow_site": slow})

    def _write(self, mark: Mapping[str, float]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({**mark, "at": time.time()}) + "\n")
