"""Dropout with the same masks on every kind of device (CPU, CUDA, ARM).

Torch draws masks from the generator of the compute device, so replicas of a chunk on different hardware would
differ. Inside `portable_dropout`, masks come from SplitMix64 (see `randomness`), computed in integers on the
device. Its key is one draw from torch's CPU generator, which is seeded for each step and restored by
activation checkpointing, so a recomputed forward pass drops the same units.

The context patches `torch.nn.functional`, where torch's layers look the functions up (including unfused
attention). A torch function mode would not do: torch leaves it during backward, where checkpointed forward
passes run again.

Not covered: alpha dropout, fused attention, recurrent layers, scripted modules, and functions that a user
imported by name from `torch.nn.functional`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from fedgc.training.randomness import GAMMA, MIX_1, MIX_2

LEVELS: Final = 1 << 16  # a mask costs 16 bits a unit, so p is rounded to a multiple of 1 / 65536
CHANNELS: Final[Mapping[str, int]] = MappingProxyType(
    {"dropout": 0, "dropout1d": 3, "dropout2d": 4, "dropout3d": 5}
)  # dimensions of a batch if whole channels are dropped; 0: single units


@contextmanager
def portable_dropout() -> Iterator[None]:
    """Use device-independent dropout masks in the block."""
    torchs = {name: getattr(functional, name) for name in CHANNELS}
    for name, dimensions in CHANNELS.items():
        setattr(functional, name, partial(_dropout, torchs[name], dimensions))
    try:
        yield
    finally:
        for name, function in torchs.items():
            setattr(functional, name, function)


def _dropout(
    torchs: Callable[..., Tensor],
    dimensions: int,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Tensor:
    if not (training and 0 < p < 1) or dimensions not in (0, input.dim()):
        return torchs(input, p=p, training=training, inplace=inplace)
    shape = (*input.shape[:2], *(1 for _ in input.shape[2:])) if dimensions else tuple(input.shape)
    factors = mask(shape, p, input.device).to(input.dtype)
    return input.mul_(factors) if inplace else input * factors


def mask(shape: Sequence[int], p: float, device: torch.device) -> Tensor:
    """Return a dropout mask: 0 with probability `p`, else 1 / (1 - p). Draws once from the CPU generator."""
    start = int(torch.randint(-(1 << 63), (1 << 63) - 1, ()))
    dropped = min(max(round(p * LEVELS), 1), LEVELS - 1)
    units = torch.Size(shape).numel()
    bits = _draws(start, -(-units // 4), device).view(torch.int16)[:units]
    kept = bits >= dropped - LEVELS // 2
    return (kept.to(torch.float32) * (LEVELS / (LEVELS - dropped))).view(*shape)


def _draws(start: int, count: int, device: torch.device) -> Tensor:
    """Return `randomness.draws(start, 0, count)` as wrapping signed integers, computed on the device."""
    value = torch.arange(1, count + 1, dtype=torch.int64, device=device)
    value.mul_(_signed(int(GAMMA))).add_(start)
    value ^= (value >> 30) & ((1 << 34) - 1)  # torch shifts the sign in: mask it off
    value.mul_(_signed(int(MIX_1)))
    value ^= (value >> 27) & ((1 << 37) - 1)
    value.mul_(_signed(int(MIX_2)))
    value ^= (value >> 31) & ((1 << 33) - 1)
    return value


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
