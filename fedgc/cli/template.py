"""The files that `fedgc new` writes.

NAME and PACKAGE are placeholders for the name that the user chose, FLOWER for the supported range of flwr.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_MANIFEST: Final = """\
[project]
name = "NAME"
version = "0.1.0"
description = "Trained with fedgc"
requires-python = ">=3.11"
dependencies = ["fedgc", "FLOWER", "torch"]

[tool.flwr.app]
publisher = "me"
fab-include = ["PACKAGE/*.py"]

[tool.flwr.app.components]
serverapp = "PACKAGE.server_app:app"
clientapp = "PACKAGE.client_app:app"

# The settings of a run. `fedgc config --all` lists them; `fedgc run --set name=value` changes one.
[tool.flwr.app.config]
task = "PACKAGE.task:task"
rounds = 20
local-steps = 16
batch-size = 32
learning-rate = 0.1
data.chunks = 8
"""

_TASK: Final = '''\
"""What is trained: your model, your data, your loss. Nothing here knows of rounds or of Flower.

Three places to change: `DATASET`, `network`, `loss`. What is written here trains handwritten digits that
come with fedgc, so that everything runs before anything is changed.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

from fedgc import RunConfig, Task, over
from fedgc.training.tasks.digits import read

digits = read()
DATASET = TensorDataset(torch.from_numpy(digits.inputs).flatten(1), torch.from_numpy(digits.labels))
TRAINED, HELD_OUT = random_split(DATASET, [0.8, 0.2], torch.Generator().manual_seed(0))


def network() -> nn.Module:
    """Make the model; every client makes the same one."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the mean loss over a batch."""
    inputs, truth = batch
    return nn.functional.cross_entropy(model(inputs), truth)


def evaluate(model: nn.Module) -> dict[str, float]:
    """Measure the model; this runs on the server, without gradients."""
    device = next(model.parameters()).device
    inputs, truth = (torch.stack(column).to(device) for column in zip(*HELD_OUT, strict=True))
    return {"accuracy": float((model(inputs).argmax(dim=1) == truth).float().mean())}


def task(config: RunConfig) -> Task:
    """Say what is trained; `config` holds the settings of the run."""
    return over(TRAINED, config, model=network, loss=loss, evaluate=evaluate)
'''

_SERVER: Final = '''\
"""The ServerApp that Flower starts; the setting `task` names what is trained."""

from fedgc import server_app

app = server_app()
'''

_CLIENT: Final = '''\
"""The ClientApp that Flower starts on every client; the setting `task` names what is trained."""

from fedgc import client_app

app = client_app()
'''

_TEST: Final = '''\
"""The task by itself, and then on real clients of this machine."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch

from fedgc import RunConfig
from PACKAGE.task import loss, network, task

ROOT = Path(__file__).parents[1]


class TestTask(unittest.TestCase):
    """Run it by `make test`."""

    def test_chunk_is_reproducible(self):
        """Replicas of a chunk on different clients must be equal."""
        made = task(RunConfig(chunks=4))
        for name, samples in made.sizes().items():
            once, again = made.load(name), made.load(name)
            self.assertEqual(len(once), samples)
            for one, other in zip(once[0], again[0], strict=True):
                self.assertTrue(torch.equal(one, other))

    def test_loss_decreases(self):
        """A plain loop over one chunk is enough to see it."""
        torch.manual_seed(0)
        made, model = task(RunConfig(chunks=4)), network()
        chunk = made.load(next(iter(made.sizes())))
        batch = tuple(torch.stack(column) for column in zip(*chunk, strict=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = loss(model, batch).item()
        for _ in range(20):
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
        self.assertLess(loss(model, batch).item(), before)

    def test_three_rounds_on_two_clients(self):
        """A SuperLink and two SuperNodes on this machine, with a store of their own."""
        with tempfile.TemporaryDirectory() as state:
            apart = {**os.environ, "FEDGC_DB": f"{state}/fedgc.db", "XDG_STATE_HOME": state}
            words = ["run", "--clients", "2", "--set", "rounds=3"]
            said = subprocess.run(
                [sys.executable, "-m", "fedgc.cli", *words],
                cwd=ROOT,
                env=apart,
                capture_output=True,
                text=True,
                timeout=300,
            )
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
        self.assertIn("round 3: synced", said.stdout)


if __name__ == "__main__":
    unittest.main()
'''

_MAKEFILE: Final = """\
# The interpreter that wrote this app is named in .python; elsewhere it is python3, or PYTHON=...
PYTHON ?= $(shell cat .python 2>/dev/null || echo python3)
export FLWR_TELEMETRY_ENABLED := 0

.PHONY: test run

test:
\t"$(PYTHON)" -m unittest discover --start-directory tests --top-level-directory . --verbose

run:
\t"$(PYTHON)" -m fedgc.cli run
"""

_README: Final = """\
# NAME

| | |
|---|---|
| `make test` | the task by itself, then three rounds on two clients of this machine |
| `make run` | train on four clients of this machine; `fedgc run --set rounds=50` changes a setting |
| `fedgc run --superlink hospital` | train on the clients of a SuperLink in Flower's configuration |
| `fedgc model export NAME.safetensors` | the model, for use without fedgc |

Change `PACKAGE/task.py`: the dataset, the model, the loss. Settings stand in `pyproject.toml`.
Every client needs fedgc and what `PACKAGE/task.py` imports; the app itself travels to it.
"""

FILES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "pyproject.toml": _MANIFEST,
        "PACKAGE/__init__.py": '"""A task for fedgc, and the two apps that Flower starts."""\n',
        "PACKAGE/task.py": _TASK,
        "PACKAGE/server_app.py": _SERVER,
        "PACKAGE/client_app.py": _CLIENT,
        "tests/__init__.py": "",
        "tests/test_task.py": _TEST,
        "Makefile": _MAKEFILE,
        "README.md": _README,
        ".gitignore": "__pycache__/\n.python\n*.fab\n",
    }
)
