"""A model as one flat vector: what travels, what is coded, what the server's optimizer sees.

The vector is float32 and holds the trainable parameters in the module's order, then the float buffers that
belong to its state (the running statistics of a normalisation). Not in it, and so the same on all devices
from the start or private to a trajectory: frozen parameters, integer buffers (num_batches_tracked), buffers
that are not saved with the module.

The *update* of a chunk is samples * (start - end), over parameters and buffers alike, where `end` is the
vector after the round's local steps from the common model `start`. So the sum of all updates over the sum
of all samples is the mean step: taken off the model it gives the average of the local models, weighted by
samples (McMahan et al., "Communication-efficient learning of deep networks", 2017); handed to an optimizer
as its gradient it gives the adaptive rules of Reddi et al., "Adaptive federated optimization" (2021).
Buffers are no optimizer's business and simply follow the weighted mean.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgc.errors import BadTask, BadVector
from fedgc.training.devices import onto

BLOCK: Final = 1 << 16  # numbers looked at at a time

Vector = NDArray[np.float32]


class FlatModel:
    """A module whose trained state can be read and written as one vector.

    >>> flat = FlatModel(nn.Linear(2, 1))
    >>> flat.write(np.array([1, 2, 3], dtype=np.float32))
    >>> flat.module.bias.item(), flat.read().tolist(), flat.parameters
    (3.0, [1.0, 2.0, 3.0], 3)
    """

    def __init__(self, module: nn.Module) -> None:
        if not isinstance(module, nn.Module):
            raise BadTask(f"task: model() returned a {type(module).__name__}, needed a torch module")
        saved = set(module.state_dict())
        trained = [(name, each) for name, each in module.named_parameters() if each.requires_grad]
        buffers = list(module.named_buffers())
        sent = [(name, each) for name, each in buffers if name in saved and each.is_floating_point()]
        for name, tensor in trained + sent:
            _check_tensor(name, tensor)
        if not trained:
            raise BadTask("task: the model has no trainable parameter, needed at least one")
        self.module = module
        self.trainable: tuple[Tensor, ...] = tuple(each for _, each in trained)
        self.parameters = sum(each.numel() for each in self.trainable)
        self._tensors = (*self.trainable, *(each for _, each in sent))
        self.size = sum(each.numel() for each in self._tensors)
        names = {name for name, _ in sent}
        self._unsent = tuple(each for name, each in buffers if name not in names)

    def read(self) -> Vector:
        """Return a copy of the state."""
        read: Vector = np.empty(self.size, np.float32)  # numpy asks for large pages: a quarter of the time
        parts = [tensor.detach().reshape(-1) for tensor in self._tensors]
        if parts[0].device.type == "cpu":
            torch.cat(parts, out=torch.from_numpy(read))
        else:
            torch.from_numpy(read).copy_(torch.cat(parts))
        return read

    def write(self, vector: Vector) -> None:
        """Set the state, or raise BadVector and leave it as it was."""
        check_vector(vector, self.size)
        first = 0
        with torch.no_grad():
            for tensor in self._tensors:
                part = vector[first : first + tensor.numel()].reshape(tensor.shape)
                if tensor.device.type == "cpu":  # torch would copy it twice
                    np.copyto(tensor.detach().numpy(), part)
                else:
                    tensor.copy_(onto(torch.tensor(part), tensor.device))
                first += tensor.numel()

    def parts(self, vector: Vector) -> tuple[Tensor, ...]:
        """Return a vector of the parameters alone, cut and shaped as they are, where they are."""
        check_vector(vector, self.parameters)
        flat = onto(torch.tensor(vector), self._tensors[0].device)
        cut = torch.split(flat, [tensor.numel() for tensor in self.trainable])
        return tuple(part.view(tensor.shape) for tensor, part in zip(self.trainable, cut, strict=True))

    def read_unsent(self) -> list[Tensor]:
        """Return copies, on the CPU, of the buffers that are not in the vector."""
        return [tensor.detach().to("cpu", copy=True) for tensor in self._unsent]

    def write_unsent(self, tensors: Sequence[Tensor]) -> None:
        """Set the buffers that are not in the vector."""
        with torch.no_grad():
            for tensor, saved in zip(self._unsent, tensors, strict=True):
                tensor.copy_(saved)


def check_vector(vector: Vector, size: int) -> None:
    """Raise BadVector unless this is a vector of `size` finite float32 numbers."""
    if not isinstance(vector, np.ndarray) or vector.dtype != np.float32 or vector.shape != (size,):
        seen = (
            f"{vector.dtype} of shape {vector.shape}"
            if isinstance(vector, np.ndarray)
            else type(vector).__name__
        )
        raise BadVector(f"saw {seen}, needed float32 of shape ({size},)")
    for first in range(0, size, BLOCK):
        finite = np.isfinite(vector[first : first + BLOCK])
        if not finite.all():
            at = first + int(np.argmin(finite))
            bad = size - int(np.count_nonzero(np.isfinite(vector)))
            raise BadVector(
                f"saw {bad} of {size} numbers not finite, the first {vector[at]} at {at}; needed none"
            )


def _check_tensor(name: str, tensor: Tensor) -> None:
    if nn.parameter.is_lazy(tensor):
        raise BadTask(f"task: {name} of the model has no shape yet, needed a model that is fully built")
    if tensor.dtype != torch.float32:
        raise BadTask(f"task: {name} of the model is {tensor.dtype}, needed torch.float32")
