"""Digits that are divided over four sites, each of which has most images of some digits.

Each site is a client whose own setting `site` is its number; or several clients, each with a part of the data
(`part=1/2`). The data of a client are private: no other client has them. The examples `windows`, `spot`,
`consortium` and `plugs` train this task.

With the variable FEDGC_EXAMPLE_STEPS, a client adds a byte to a file of its own for each step.
An example can compare what was done with what was counted.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedgc

SITES = 4
HELD_OUT = 5  # every fifth image
OWN = 0.6  # of the images of a digit, so many are at the site that has most of them
STEPS = "FEDGC_EXAMPLE_STEPS"


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Return all images and their labels."""
    inputs, labels = load_digits(return_X_y=True)
    return torch.tensor(inputs / 16).float(), torch.tensor(labels).long()


def rows_of(site: int, labels: torch.Tensor) -> torch.Tensor:
    """Return the rows that a site trains on."""
    draws = torch.rand(len(labels), 2, generator=torch.Generator().manual_seed(0))
    at_home = draws[:, 0] < OWN
    home = torch.where(at_home, labels % SITES, (draws[:, 1] * SITES).long())
    trained = torch.arange(len(labels)) % HELD_OUT != 0
    return torch.nonzero((home == site) & trained).flatten()


def network() -> nn.Module:
    """Make the network."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def task(_: fedgc.RunConfig, client: Mapping[str, object]) -> fedgc.Task:
    """Return the task of one site; of the server, which has no data to train on."""
    inputs, labels = images()
    chunks: dict[str, torch.Tensor] = {}
    if "site" in client:
        part, parts = map(int, str(client.get("part", "1/1")).split("/"))
        rows = rows_of(int(str(client["site"])), labels)[part - 1 :: parts]
        chunks[f"site-{client['site']}" + (f"-{part}" if parts > 1 else "")] = rows

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if folder := os.environ.get(STEPS):
            with (Path(folder) / str(client.get("site"))).open("ab") as file:
                file.write(b".")
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(model: nn.Module) -> dict[str, float]:
        held_out = slice(None, None, HELD_OUT)
        found = model(inputs[held_out]).argmax(dim=1) == labels[held_out]
        return {"accuracy": float(found.float().mean())}

    return fedgc.Task(
        model=network,
        chunks={name: len(rows) for name, rows in chunks.items()},
        load=lambda name: (inputs[chunks[name]], labels[chunks[name]]),
        loss=loss,
        evaluate=evaluate,
    )
