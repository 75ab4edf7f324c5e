"""The work of one simulated client: generated data in the shape of FEMNIST, and a network for it.

The network (two convolutions, 1.2 million parameters) is the `simple_cnn` of pfl-research's benchmarks for
FEMNIST (arXiv 2404.06430). A client has 50 samples, as in its benchmark of speed, and does one local epoch in
batches of 10. Every simulator trains this, so that their times differ by what they add.
"""

from typing import Final

import torch
from torch import Tensor, nn

CLASSES: Final = 62
SAMPLES: Final = 50  # of a client
BATCH: Final = 10
RATE: Final = 0.05
WIDTH: Final = 32  # channels of the first convolution


def network(width: int = WIDTH) -> nn.Module:
    """Make the network."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(2 * width * 12 * 12, 4 * width),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(4 * width, CLASSES),
    )


def samples(client: int, count: int = SAMPLES) -> tuple[Tensor, Tensor]:
    """Return the images and labels of a client."""
    chance = torch.Generator().manual_seed(client)
    images = torch.rand(count, 1, 28, 28, generator=chance)
    return images, torch.randint(0, CLASSES, (count,), generator=chance)


def loss(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy."""
    return nn.functional.cross_entropy(module(batch[0]), batch[1])
