"""The data, the network and the accuracy that all scripts of this folder share."""

from collections.abc import Mapping

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset, random_split

CLIENTS = 3  # each has one of so many parts of the training images


def digits(client: Mapping[str, object] | None = None) -> tuple[Dataset, Dataset]:
    """Return the training images and the held-out ones; a client gets its own part of the former."""
    images, labels = load_digits(return_X_y=True)
    everything = TensorDataset(torch.tensor(images / 16).float(), torch.tensor(labels).long())
    trained, held_out = random_split(everything, [0.8, 0.2], torch.Generator().manual_seed(0))
    if client:
        number = int(str(client.get("name", "client-0")).rpartition("-")[2])
        trained = Subset(trained, range(number % CLIENTS, len(trained), CLIENTS))
    return trained, held_out


def network() -> nn.Module:
    """Make the network: a small CNN for rows of 64 gray values."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module, held_out: Dataset) -> float:
    """Return the share of the held-out images that the network names right."""
    inputs, labels = (torch.stack(column) for column in zip(*held_out, strict=True))
    device = next(model.parameters()).device
    return float((model(inputs.to(device)).argmax(dim=1).cpu() == labels).float().mean())
