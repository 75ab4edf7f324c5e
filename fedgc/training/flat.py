"""A model as one flat float32 vector, which is sent, coded, and updated by the server's optimizer.

It holds the trainable parameters in the module's order, then the float buffers of its `state_dict` (running
statistics of normalization). It leaves out frozen parameters, integer buffers (num_batches_tracked) and
buffers that are not in the `state_dict`: they are equal on all clients or private to a trajectory. Tensors of
half precision have float32 copies (`float32_copies`), whose values are in the vector.

The *update* of a chunk is samples * (start - end), where `end` is the vector after the round's local steps
from the common model `start`. The sum of all updates over the sum of all samples is the mean update.
Subtracted from the model, it gives the sample-weighted average of the local models (FedAvg: McMahan et al.,
"Communication-efficient learning of deep networks from decentralized data", 2017). As the gradient of an
optimizer, it gives the rules of Reddi et al., "Adaptive federated optimization" (2021). For buffers the mean
update is always subtracted.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgc.errors import BadTask, BadVector
from fedgc.large_vectors import Readable
from fedgc.messages.layout import FLOATS, Layout, TensorSpec
from fedgc.training.devices import to_device
from fedgc.training.float32_copies import HALF, Float32Copies, Steps

BLOCK: Final = 1 << 16  # numbers checked at a time

Vector = NDArray[np.float32]


class FlatModel:
    """A module whose parameters and float buffers can be read and written as one vector.

    >>> flat = FlatModel(nn.Linear(2, 1))
    >>> flat.write(np.array([1, 2, 3], dtype=np.float32))
    >>> flat.module.bias.item(), flat.read().tolist(), flat.parameters
    (3.0, [1.0, 2.0, 3.0], 3)
    """

    def __init__(self, module: nn.Module, private: Sequence[str] = ()) -> None:
        """`private` holds patterns of the names of tensors that are not in the vector."""
        if not isinstance(module, nn.Module):
            raise BadTask(f"task: model() returned a {type(module).__name__}, needed a torch module")
        tensors = exchanged_tensors(module, private)
        for name, tensor in (*tensors.parameters.items(), *tensors.buffers.items()):
            if tensor.dtype != torch.float32 and tensor.dtype not in HALF:
                needed = "torch.float32, torch.bfloat16 or torch.float16"
                raise BadTask(f"task: {name} of the model is {tensor.dtype}, needed {needed}")
        self.module = module
        self.layout = tensors.layout()
        self.trainable: tuple[Tensor, ...] = tuple(tensors.parameters.values())
        self.private: Mapping[str, Tensor] = tensors.private
        self.optimized = (*self.trainable, *(each for each in self.private.values() if each.requires_grad))
        self.parameters = self.layout.parameter_size
        self.exchanged: Mapping[str, Tensor] = {**tensors.parameters, **tensors.buffers}
        self._copies = Float32Copies()
        self.size = self.layout.size
        sent = {*tensors.buffers, *tensors.private}
        buffers = {plain_name(name): each for name, each in module.named_buffers()}
        self.unsent: Mapping[str, Tensor] = {n: each for n, each in buffers.items() if n not in sent}

    def read(self) -> Vector:
        """Return a copy of the vector."""
        read: Vector = np.empty(self.size, np.float32)  # numpy uses large pages: four times as fast
        parts = [self._copies.read(name, tensor).reshape(-1) for name, tensor in self.exchanged.items()]
        if parts[0].device.type == "cpu":
            torch.cat(parts, out=torch.from_numpy(read))
        else:
            torch.from_numpy(read).copy_(torch.cat(parts))
        return read

    def view(self) -> Readable:
        """Return the vector without a copy, if that is possible: it is read from the tensors as they are."""
        tensors = tuple(self.exchanged.values())
        in_place = all(
            each.dtype == torch.float32 and each.device.type == "cpu" and each.is_contiguous()
            for each in tensors
        )
        return FlatView(tensors) if in_place else self.read()

    def write(self, vector: Vector, *, is_finite: bool = False) -> None:
        """Load a vector, which may be known to be finite, or raise BadVector and change nothing."""
        (check_shape if is_finite else check_vector)(vector, self.size)
        first = 0
        with torch.no_grad():
            for name, tensor in self.exchanged.items():
                part = vector[first : first + tensor.numel()].reshape(tensor.shape)
                if tensor.dtype in HALF:
                    self._copies.write(name, tensor, torch.tensor(part))
                elif tensor.device.type == "cpu":  # torch would copy it twice
                    np.copyto(tensor.detach().numpy(), part)
                else:
                    tensor.copy_(to_device(torch.tensor(part), tensor.device))
                first += tensor.numel()

    @torch.no_grad()
    def mix(self, vector: Vector, part: slice, own: float) -> None:
        """Move a part of the model to that of a vector, but for the share `own`."""
        first = 0
        for name, tensor in self.exchanged.items():
            last = first + tensor.numel()
            begin, end = max(first, part.start), min(last, part.stop)
            if begin < end:
                value = self._copies.read(name, tensor)
                flat = value.reshape(-1)
                mine = flat[begin - first : end - first]
                new = to_device(torch.from_numpy(vector[begin:end]), tensor.device)
                mine.copy_(mine * own + new * (1 - own) if own else new)
                if value.dtype != tensor.dtype or flat.data_ptr() != value.data_ptr():
                    tensor.copy_(flat.view_as(tensor))
            first = last

    def parts(self, vector: Vector) -> tuple[Tensor, ...]:
        """Split a vector over the parameters into tensors of their shapes, on their device.

        On the CPU they share its memory.
        """
        check_vector(vector, self.parameters)
        flat = to_device(torch.from_numpy(vector), self.trainable[0].device)
        cut = torch.split(flat, [tensor.numel() for tensor in self.trainable])
        return tuple(part.view(tensor.shape) for tensor, part in zip(self.trainable, cut, strict=True))

    @property
    def is_half(self) -> bool:
        """Whether some of its tensors have half precision."""
        return any(each.dtype in HALF for each in (*self.exchanged.values(), *self.private.values()))

    def stepping(self, optimizer: Steps) -> AbstractContextManager[None]:
        """Let an optimizer step on float32 copies of the parameters of half precision."""
        trained = {
            name: each for name, each in {**self.exchanged, **self.private}.items() if each.requires_grad
        }
        return self._copies.stepping(optimizer, trained)

    @torch.no_grad()
    def subtract(self, parts: Sequence[Tensor], share: float) -> None:
        """Subtract a share of these parts from the parameters."""
        for (name, tensor), part in zip(self.exchanged.items(), parts, strict=False):  # then come buffers
            value = self._copies.read(name, tensor).sub_(part, alpha=share)
            if value.dtype != tensor.dtype:
                tensor.copy_(value)

    def read_private(self) -> dict[str, Tensor]:
        """Return copies, on the CPU, of the private tensors."""
        return {
            name: self._copies.read(name, each).to("cpu", copy=True) for name, each in self.private.items()
        }

    def write_private(self, tensors: Mapping[str, Tensor]) -> None:
        """Load private tensors; those of another name or shape are left out."""
        with torch.no_grad():
            for name, tensor in self.private.items():
                if name in tensors and tensors[name].shape == tensor.shape:
                    self._copies.write(name, tensor, tensors[name])

    def read_unsent(self) -> list[Tensor]:
        """Return CPU copies of the buffers that are not in the vector."""
        return [tensor.detach().to("cpu", copy=True) for tensor in self.unsent.values()]

    def write_unsent(self, tensors: Sequence[Tensor]) -> None:
        """Set the buffers that are not in the vector."""
        with torch.no_grad():
            for tensor, saved in zip(self.unsent.values(), tensors, strict=True):
                tensor.copy_(saved)


class FlatView:
    """Tensors of float32 on the CPU as one vector, which is read from them.

    >>> FlatView([torch.zeros(2, 2), torch.ones(3)])[3:5].tolist()
    [0.0, 1.0]
    """

    dtype = np.dtype(np.float32)

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """`tensors` are contiguous."""
        self._arrays: list[Vector] = [each.detach().numpy().reshape(-1) for each in tensors]
        self._ends = list(accumulate(each.size for each in self._arrays))
        self.size: Final = self._ends[-1]

    def __getitem__(self, part: slice) -> Vector:
        first, last, _ = part.indices(self.size)
        found = [self._tensor(at, first, last) for at in self._between(first, last)]
        return found[0] if len(found) == 1 else np.concatenate(found or [np.empty(0, np.float32)])

    def _between(self, first: int, last: int) -> range:
        """Return the tensors that hold these numbers."""
        return range(
            bisect_right(self._ends, first), bisect_left(self._ends, last) + 1 if last > first else 0
        )

    def _tensor(self, at: int, first: int, last: int) -> Vector:
        begin = self._ends[at] - self._arrays[at].size
        return self._arrays[at][max(0, first - begin) : last - begin]


def check_parts(vector: Readable, size: int) -> None:
    """Raise BadVector unless a vector that is read by parts has `size` finite numbers."""
    if vector.size != size:
        raise BadVector(f"saw {vector.size} numbers, needed {size}")
    for first in range(0, size, BLOCK):
        check_vector(vector[first : first + BLOCK], min(BLOCK, size - first))


def check_vector(vector: Vector, size: int) -> None:
    """Raise BadVector unless this is a vector of `size` finite float32 numbers."""
    check_shape(vector, size)
    for first in range(0, size, BLOCK):
        finite = np.isfinite(vector[first : first + BLOCK])
        if not finite.all():
            at = first + int(np.argmin(finite))
            bad = size - int(np.count_nonzero(np.isfinite(vector)))
            raise BadVector(
                f"saw {bad} of {size} numbers not finite, the first {vector[at]} at {at}; needed none"
            )


def check_shape(vector: Vector, size: int) -> None:
    """Raise BadVector unless this is a vector of `size` float32 numbers."""
    if not isinstance(vector, np.ndarray) or vector.dtype != np.float32 or vector.shape != (size,):
        seen = (
            f"{vector.dtype} of shape {vector.shape}"
            if isinstance(vector, np.ndarray)
            else type(vector).__name__
        )
        raise BadVector(f"saw {seen}, needed float32 of shape ({size},)")


@dataclass(frozen=True, slots=True, eq=False)
class ExchangedTensors:
    """The tensors of a module by what becomes of them; frozen parameters are in none of the groups."""

    parameters: Mapping[str, Tensor]  # trained and exchanged
    buffers: Mapping[str, Tensor]  # of the module's state, exchanged
    private: Mapping[str, Tensor]  # trained, or of the module's state, and kept on the client

    def layout(self) -> Layout:
        """Return the layout of the vector."""
        tensors = (*self.parameters.items(), *self.buffers.items())
        return Layout(
            tuple(
                TensorSpec(name, str(each.dtype).removeprefix("torch."), tuple(each.shape))
                for name, each in tensors
            ),
            len(self.parameters),
        )


def plain_name(name: str) -> str:
    """Return the name that a tensor has without torch.compile, which may wrap any part of a module.

    >>> plain_name("encoder._orig_mod.weight")
    'encoder.weight'
    """
    return name.replace("_orig_mod.", "")


def exchanged_tensors(module: nn.Module, private: Sequence[str] = ()) -> ExchangedTensors:
    """Return the tensors of a module by what becomes of them.

    Args:
        module: The module, without wrappers.
        private: Patterns of the names of tensors that stay on the client, such as `head.*`.

    Raises:
        BadTask: No parameter is left to exchange, a pattern matches nothing or one name of a tied tensor
            that is exchanged, or a tensor has no shape yet or is sparse.

    Example:
        >>> tensors = exchanged_tensors(nn.Linear(2, 1), private=["bias"])
        >>> list(tensors.parameters), list(tensors.private)
        (['weight'], ['bias'])
    """
    saved = set(module.state_dict(keep_vars=True))
    trained = {plain_name(name): each for name, each in module.named_parameters() if each.requires_grad}
    buffers = {
        plain_name(name): each
        for name, each in module.named_buffers()
        if name in saved and each.is_floating_point()
    }
    for name, tensor in (trained | buffers).items():
        if nn.parameter.is_lazy(tensor):
            raise BadTask(f"task: {name} of the model has no shape yet, needed a model that is fully built")
        if str(tensor.dtype).removeprefix("torch.") not in FLOATS:
            raise BadTask(f"task: {name} of the model is {tensor.dtype}, needed one of {', '.join(FLOATS)}")
    frozen = [plain_name(name) for name, each in module.named_parameters() if not each.requires_grad]
    kept = _matched(trained | buffers, private, frozen, _tied(module, trained | buffers))
    parameters = {name: each for name, each in trained.items() if name not in kept}
    if not parameters:
        raise BadTask("task: the model has no trainable parameter to exchange, needed at least one")
    sent = {name: each for name, each in buffers.items() if name not in kept}
    _refuse_sparse(parameters | sent)
    return ExchangedTensors(parameters, sent, kept)


def _refuse_sparse(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided:
            needed = "a dense tensor, or register_buffer(..., persistent=False) for one that is not exchanged"
            raise BadTask(f"task: saw {name} of the model as {tensor.layout}, needed {needed}")


def _tied(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the other names of tied tensors, each with the name that its tensor has among these."""
    names = {id(each): name for name, each in tensors.items()}
    named = (module.named_parameters, module.named_buffers)
    found = ((plain_name(name), each) for of in named for name, each in of(remove_duplicate=False))
    return {name: names[id(each)] for name, each in found if names.get(id(each), name) != name}


def _matched(
    tensors: Mapping[str, Tensor], patterns: Sequence[str], frozen: Sequence[str], tied: Mapping[str, str]
) -> dict[str, Tensor]:
    if isinstance(patterns, str) or not all(isinstance(each, str) for each in patterns):
        raise BadTask(f"private: saw {patterns!r}, needed a list of patterns such as head.*")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in (*tensors, *frozen, *tied)):
            some = ", ".join([*tensors, *frozen][:4])
            raise BadTask(f"private: saw {pattern!r}, which matches no tensor of the model (such as {some})")
    kept = {
        name: each
        for name, each in tensors.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    for name, other in tied.items():
        if other not in kept and any(fnmatchcase(name, pattern) for pattern in patterns):
            raise BadTask(
                f"private: saw a pattern for {name}, which is tied to {other}, needed one for {other} too"
            )
    return kept
