"""Train digits with the Trainer of Lightning: by itself, or as a client of a federation."""

import argparse

import torch
from pytorch_lightning import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader

import fedgc
from digits import accuracy, digits, network


class Digits(LightningModule):
    """The network with its loss and optimizer."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.network = network()
        self.learning_rate = learning_rate

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


def main() -> None:
    """Train, and print the accuracy on the held-out images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    seed_everything(given.seed)
    model = Digits(given.learning_rate)
    fed = fedgc.join(model)
    trained, held_out = digits(fed.client)
    trainer = Trainer(
        max_epochs=given.epochs,
        log_every_n_steps=10,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[fedgc.lightning.Callback(fed)],
    )
    trainer.fit(model, DataLoader(trained, given.batch_size, shuffle=True))
    print(f"accuracy {accuracy(model.network, held_out):.3f}")


if __name__ == "__main__":
    main()
