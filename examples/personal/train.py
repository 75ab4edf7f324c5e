"""Personal layers: a body that all clients train together, and a head of each client's own.

python train.py                     # trains by itself
fedgc run --script "train.py --private head.*" --clients 3 --set rounds=15
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedgc

CLIENTS = 3


class Digits(nn.Module):
    """A body with batch normalization, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the scores of the digits."""
        return self.head(self.body(inputs))


def data_of(client: int) -> tuple[TensorDataset, TensorDataset]:
    """Return the digits of a client for training and validation.

    Each client names the digits in its own way: its labels are shifted by 3 times its number. So one head
    cannot serve all of them, while the same features do.
    """
    inputs, labels = (torch.tensor(each) for each in load_digits(return_X_y=True))
    inputs, labels = inputs[client::CLIENTS].float() / 16, (labels[client::CLIENTS] + 3 * client) % 10
    split = len(inputs) * 3 // 4
    return TensorDataset(inputs[:split], labels[:split]), TensorDataset(inputs[split:], labels[split:])


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Return the share of the digits that the model names as this client does."""
    inputs, labels = data.tensors
    return float((model(inputs).argmax(dim=1) == labels).float().mean())


def main() -> None:
    """Train with the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--private", nargs="*", default=[], help="tensors that stay on the client")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    model = Digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr, momentum=0.9)
    validation: list[TensorDataset] = []
    fed = fedgc.join(
        model,
        private=given.private,
        validate=lambda model: {"accuracy": accuracy(model, validation[0])},
    )
    client = int(str(fed.client.get("name", "client-0"))[-1])
    training, held_out = data_of(client)
    validation.append(held_out)
    for inputs, labels in fed.steps(DataLoader(training, given.batch_size, shuffle=True, drop_last=True)):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        fed.log(loss=loss)
    model.eval()
    print(f"client {client}: accuracy on its own data {accuracy(model, held_out):.3f}")


if __name__ == "__main__":
    main()
