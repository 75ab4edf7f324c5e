"""The digest of a model's frozen parameters, by which the server checks that all clients have the same base.

An update of an adapter means nothing on another base. Frozen parameters never travel, so each client hashes
its own: the names, types, shapes and bytes of all parameters without gradients, in the module's order.
Quantized weights are hashed as they are stored. A SHA-256 takes about 1 s for 1 GB; no copy of the model is
made.
"""

import hashlib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

import torch
from torch import Tensor, nn

from fedgc.errors import BadTask

PIECE_BYTES: Final = 1 << 26  # copied from a device at a time


def frozen_digest(module: nn.Module, private: Sequence[str] = ()) -> str:
    """Return the digest of the frozen parameters; empty without any.

    Args:
        module: The module, without wrappers. If it is sharded, all ranks make this call.
        private: Patterns of names of tensors that are a client's own: they may differ.

    Raises:
        BadTask: A parameter has no data yet.

    Example:
        >>> module = nn.Linear(2, 1)
        >>> frozen_digest(module), len(frozen_digest(module.requires_grad_(False)))
        ('', 64)
    """
    hashed, seen = hashlib.sha256(), False
    for name, tensor in module.named_parameters():
        if tensor.requires_grad or any(fnmatchcase(name, pattern) for pattern in private):
            continue
        if nn.parameter.is_lazy(tensor) or tensor.is_meta:
            raise BadTask(f"the frozen parameter {name} has no data yet, needed a model that is loaded")
        seen = True
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        hashed.update(repr((name, str(whole.dtype), tuple(whole.shape))).encode())
        for piece in _pieces(whole.detach()):
            hashed.update(piece)
    return hashed.hexdigest() if seen else ""


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    """Return the bytes of a tensor, in pieces if it is on a device."""
    data = tensor.contiguous().flatten().view(torch.uint8)
    for piece in torch.split(data, PIECE_BYTES):
        yield piece.cpu().numpy().data
