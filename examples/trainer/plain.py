"""Train digits with a plain loop of torch: by itself, or as a client of a federation."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader

import fedgc
from digits import accuracy, digits, network


def main() -> None:
    """Train, and print the accuracy on the held-out images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    torch.manual_seed(given.seed)
    model = network()
    fed = fedgc.join(model)
    trained, held_out = digits(fed.client)
    loader = DataLoader(trained, given.batch_size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=given.learning_rate)
    for _ in range(given.epochs):
        for inputs, labels in fed.steps(loader):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            fed.log(loss=loss)
    print(f"accuracy {accuracy(model, held_out):.3f}")


if __name__ == "__main__":
    main()
