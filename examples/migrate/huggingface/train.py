"""A script of the Trainer of transformers."""

import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset
from transformers import PreTrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from transformers.modeling_outputs import ImageClassifierOutput


class Digits(PreTrainedModel):
    """A classifier of images as a model of transformers."""

    config_class = PreTrainedConfig

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.post_init()

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> ImageClassifierOutput:
        """Return the scores and the loss."""
        logits = self.layers(pixel_values)
        return ImageClassifierOutput(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


def collate(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Make a batch."""
    inputs, labels = zip(*samples, strict=True)
    return {"pixel_values": torch.stack(inputs), "labels": torch.stack(labels)}


inputs, labels = (torch.tensor(each) for each in load_digits(return_X_y=True))
inputs = inputs.float() / 16


def accuracy(model: nn.Module) -> float:
    """Return the share of the held-out images that the model names right."""
    return float((model.layers(inputs[::5]).argmax(dim=1) == labels[::5]).float().mean())


model = Digits(PreTrainedConfig())
rows = [row for row in range(len(labels)) if row % 5]
arguments = TrainingArguments(
    tempfile.gettempdir(),
    num_train_epochs=8,
    per_device_train_batch_size=32,
    optim="sgd",
    learning_rate=0.2,
    lr_scheduler_type="constant",
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(
    model,
    arguments,
    data_collator=collate,
    train_dataset=TensorDataset(inputs[rows], labels[rows]),
)
trainer.train()
print(f"accuracy {accuracy(model):.3f}")
