"""The digest of a model's frozen parameters, by which the server checks that all clients have the same base.

An update of an adapter means nothing on another base. Frozen parameters never travel, so each client hashes
its own: the names, types, shapes and bytes of all parameters without gradients, in the module's order.
Quantized weights are hashed as they are stored. A SHA-256 takes about 1 s for 1 GB; parameters are hashed in
several threads, and no copy of the model is made.
"""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from typing import Any, Final

import torch
from torch import Tensor, nn

from fedgc.errors import BadTask
from fedgc.processes.available import available_cores
from fedgc.training.flat import plain_name

MOST_THREADS: Final = 8
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
    frozen = {plain_name(name): each for name, each in module.named_parameters() if not each.requires_grad}
    bound = [name for name in frozen if not any(fnmatchcase(name, pattern) for pattern in private)]
    for name in bound:
        if nn.parameter.is_lazy(frozen[name]) or frozen[name].is_meta:
            raise BadTask(f"the frozen parameter {name} has no data yet, needed a model that is loaded")
    if not bound:
        return ""
    if any(hasattr(frozen[name], "full_tensor") for name in bound):  # all ranks gather them, one by one
        parts = [_hashed(name, _whole(frozen[name])) for name in bound]
    else:
        with ThreadPoolExecutor(min(MOST_THREADS, available_cores())) as threads:
            parts = list(threads.map(lambda name: _hashed(name, frozen[name]), bound))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _whole(tensor: Any) -> Tensor:  # noqa: ANN401  it may be a DTensor
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def _hashed(name: str, tensor: Tensor) -> bytes:
    """Return the digest of one parameter."""
    hashed = hashlib.sha256(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
    for piece in _pieces(tensor.detach()):
        hashed.update(piece)  # without the interpreter's lock
    return hashed.digest()


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    """Return the bytes of a tensor, in pieces if it is on a device."""
    data = tensor.contiguous().flatten().view(torch.uint8)
    for piece in torch.split(data, PIECE_BYTES):
        yield piece.cpu().numpy().data
