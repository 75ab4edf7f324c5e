"""Fine-tune a small language model with LoRA (Hu et al. 2021): only the adapter travels.

python train.py                          # trains by itself
fedgc run --script train.py --clients 3  # each client trains on another package of Python's standard library
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from transformers import LlamaConfig, LlamaForCausalLM

import fedgc

BASE_PACKAGES = ("json", "http", "logging")  # what the base model is trained on
CLIENT_PACKAGES = ("asyncio", "email", "unittest", "importlib", "multiprocessing", "xml", "tkinter", "ctypes")
LENGTH = 64  # bytes of a sequence
HELD_OUT = 128  # sequences of each client


class Source(Dataset):
    """The source text of a package, as sequences of bytes."""

    def __init__(self, text: bytes) -> None:
        size = len(text) // LENGTH * LENGTH
        self.sequences = torch.tensor(list(text[:size])).view(-1, LENGTH)

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, at: int) -> torch.Tensor:
        return self.sequences[at]


def source_of(package: str) -> bytes:
    """Return the source text of a package of the standard library."""
    files = sorted((Path(sysconfig.get_path("stdlib")) / package).rglob("*.py"))
    return b"".join(file.read_bytes() for file in files)


def data_of(client: int) -> tuple[Dataset, torch.Tensor]:
    """Return the sequences of a client for training, and those held out."""
    data = Source(source_of(CLIENT_PACKAGES[client % len(CLIENT_PACKAGES)]))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    return Subset(data, order[HELD_OUT:].tolist()), data.sequences[order[:HELD_OUT]]


def loss_of(model: nn.Module, sequences: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of the next byte."""
    return model(input_ids=sequences, labels=sequences).loss


def held_out_loss(model: nn.Module, sequences: torch.Tensor) -> float:
    """Return the loss of a model that is not being trained."""
    with torch.no_grad():
        return float(loss_of(model.eval(), sequences))


def train_base(model: nn.Module, steps: int) -> None:
    """Train all weights for a short time, in the same way on all clients."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = Source(b"".join(source_of(package) for package in BASE_PACKAGES))
    order = torch.randperm(len(data))
    for step in range(steps):
        batch = data.sequences[order[torch.arange(16 * step, 16 * step + 16) % len(data)]]
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def base_model(folder: str, steps: int) -> nn.Module:
    """Return the base model: from a folder, or trained here from a fixed seed."""
    if folder and Path(folder).is_dir():
        return LlamaForCausalLM.from_pretrained(folder)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    train_base(model, steps)
    if folder:
        model.save_pretrained(folder)
    return model


def main() -> None:
    """Train with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default="", help="folder of the base model; made if it is not there")
    parser.add_argument("--base-steps", type=int, default=150)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--device", default="cpu", help="where the adapter is trained, such as cuda")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    torch.set_num_threads(1)  # the same sums in the same order, so that all clients train the same base
    base = base_model(given.base, given.base_steps)
    base = base.to(given.device)
    torch.manual_seed(given.seed)
    adapter = LoraConfig(r=given.rank, lora_alpha=2 * given.rank, target_modules="all-linear")
    model = get_peft_model(base, adapter)

    held_out: list[torch.Tensor] = []
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=given.lr)
    fed = fedgc.join(
        model,
        validate=lambda model: {"loss": held_out_loss(model, held_out[0])},
        optimizer=optimizer,
    )
    client = int(str(fed.client.get("name", "client-0")).rpartition("-")[2])
    training, sequences = data_of(client)
    held_out.append(sequences.to(given.device))
    print(f"client {client}: loss {held_out_loss(model, held_out[0]):.3f} with the base alone")
    model.train()
    for batch in fed.steps(DataLoader(training, given.batch_size, shuffle=True)):
        loss = loss_of(model, batch.to(given.device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        fed.log(loss=loss)
    print(f"client {client}: loss {held_out_loss(model, held_out[0]):.3f} with its adapter")


if __name__ == "__main__":
    main()
