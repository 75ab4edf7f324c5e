"""Dropout whose masks are the same on every kind of device.

Torch draws masks from the compute device's own generator, so a CPU, an ARM board and a CUDA card that work
on one chunk would train three different networks and their copies could not be counted as one. Inside
`same_dropout` the functions below take their masks from SplitMix64 (see `chance`), computed on the device
in integers. The generator's start is one draw from torch's CPU generator, which is seeded for the step and
put back by activation checkpointing, so a forward pass that is run again drops the same units.

The context replaces names in `torch.nn.functional` while a step lasts: that is where torch's own layers
look them up, attention in its unfused form included. A torch function mode would be the tidier hook, but
torch leaves it during backward, where a checkpointed forward pass runs again, and its masks would differ.

Not covered, and drawn by torch: alpha dropout, fused attention and recurrent layers, scripted modules, and
names that a user imported out of `torch.nn.functional`.
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
)  # dimensions of a batch whose channels are dropped whole; 0: every unit on its own


@contextmanager
def same_dropout() -> Iterator[None]:
    """Have dropout be the same everywhere for the code inside."""
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
    """Return 0 with probability `p`, else what keeps the mean at 1; one draw of torch's CPU generator."""
    start = int(torch.randint(-(1 << 63), (1 << 63) - 1, ()))
    dropped = min(max(round(p * LEVELS), 1), LEVELS - 1)
    units = torch.Size(shape).numel()
    bits = _draws(start, -(-units // 4), device).view(torch.int16)[:units]
    kept = bits >= dropped - LEVELS // 2
    return (kept.to(torch.float32) * (LEVELS / (LEVELS - dropped))).view(*shape)


def _draws(start: int, count: int, device: torch.device) -> Tensor:
    """Return `chance.draws(start, 0, count)` as wrapping signed integers, made on the device."""
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
