"""Train digits with the Trainer of transformers: by itself, or as a client of a federation."""

import argparse
import tempfile

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from transformers.modeling_outputs import ImageClassifierOutput

import fedgc
from digits import accuracy, digits, network


class Digits(PreTrainedModel):
    """The network as a model of transformers."""

    config_class = PreTrainedConfig
    main_input_name = "pixel_values"

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.network = network()
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Leave the weights as torch has made them."""

    def forward(
        self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None
    ) -> ImageClassifierOutput:
        """Return the logits, and the loss if there are labels."""
        logits = self.network(pixel_values)
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return ImageClassifierOutput(loss=loss, logits=logits)


def collate(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Make a batch with the names that `forward` takes."""
    inputs, labels = zip(*samples, strict=True)
    return {"pixel_values": torch.stack(inputs), "labels": torch.stack(labels)}


def main() -> None:
    """Train, and print the accuracy on the held-out images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default=tempfile.gettempdir(), help="folder of checkpoints")
    given = parser.parse_args()

    torch.manual_seed(given.seed)
    model = Digits(PreTrainedConfig())
    fed = fedgc.join(model)
    trained, held_out = digits(fed.client)
    arguments = TrainingArguments(
        given.output,
        num_train_epochs=given.epochs,
        per_device_train_batch_size=given.batch_size,
        optim="sgd",
        learning_rate=given.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        seed=given.seed,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model,
        arguments,
        data_collator=collate,
        train_dataset=trained,
        callbacks=[fedgc.hf.Callback(fed)],
    )
    trainer.train()
    print(f"accuracy {accuracy(model.network, held_out):.3f}")


if __name__ == "__main__":
    main()
