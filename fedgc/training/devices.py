"""The compute device: its choice by the setting `client.device`, precision, determinism, transfers."""

from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch
from torch import Tensor

from fedgc.config import AUTO, RunConfig
from fedgc.errors import BadSetting

GPU_SHARE: Final = "gpu-share"  # of a client's own settings, from the policy of its site


def build() -> str:
    """Return the version and thread count of torch, after a first computation."""
    torch.ones(2).sum().item()
    return f"{torch.__version__}, {torch.get_num_threads()} threads"


def choose(name: str) -> torch.device:
    """Return the device called `name`; auto picks cuda, then mps, then cpu."""
    if name == AUTO:
        return torch.device(_best())
    device = torch.device(name)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise BadSetting(f"setting client.device: saw {name!r}, but this machine has no MPS device")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise BadSetting(f"setting client.device: saw {name!r}, but this machine has {count} CUDA devices")
    return device


def limit_memory(share: float) -> None:
    """Let this process take at most this share of the memory of each GPU."""
    if share < 1 and torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            torch.cuda.set_per_process_memory_fraction(share, number)


def _best() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def autocast(device: torch.device, config: RunConfig) -> AbstractContextManager[object]:
    """Return the context for computing the loss: autocast to bf16 if the settings ask for it.

    With float32, autocast is disabled, so that a caller's own context cannot change the result.
    """
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.precision == "bf16")


def deterministic_cudnn(device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which cuDNN is deterministic and computes in float32, without TF32."""
    if device.type != "cuda":
        return nullcontext()
    flags: AbstractContextManager[object] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
    return flags


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on the device; copies to CUDA use pinned memory and are asynchronous."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
