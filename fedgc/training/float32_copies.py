"""Float32 copies of half-precision tensors, so that small changes are not lost by rounding.

A bfloat16 number has 8 significant bits: a change below 1/512 of a weight leaves it as it is, and training
stalls. As in mixed-precision training (Micikevicius et al., "Mixed precision training", 2018), the optimizer
steps on a float32 copy of each half-precision tensor, and the tensor is the copy, rounded. Where something
else changes a tensor, the copy becomes the tensor, plus what rounding had taken from the copy; nothing if the
rounded copy was no number, as after a failed step. So vectors hold more than the tensors: a common model is
kept in full, whatever a client's precision.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

import torch
from torch import Tensor

HALF: Final = frozenset({torch.bfloat16, torch.float16})


class Steps(Protocol):
    """The part of an optimizer that is used here: its groups of parameters, and their state."""

    param_groups: list[dict[str, Any]]

    @property
    def state(self) -> Any:  # noqa: ANN401  a dict that torch declares as a defaultdict
        """The state by parameter."""


class Float32Copies:
    """The float32 copies of a module's tensors, by name.

    >>> copies, weight = Float32Copies(), torch.ones(1, dtype=torch.bfloat16)
    >>> copies.write("weight", weight, torch.tensor([1.001]))
    >>> round(weight.item(), 4), round(copies.read("weight", weight).item(), 4)
    (1.0, 1.001)
    >>> _ = weight.add_(0.5)
    >>> round(copies.read("weight", weight).item(), 4)
    1.501
    """

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}
        self._optimizer: Steps | None = None  # that is stepping
        self._stepping: list[tuple[Tensor, Tensor]] = []  # tensors and their copies

    @torch.no_grad()
    def read(self, name: str, tensor: Tensor) -> Tensor:
        """Return the value of a tensor: its copy, with what has changed the tensor since; else itself."""
        if tensor.dtype not in HALF:
            return tensor.detach()
        now = tensor.detach().float()
        copy = self._copies.get(name)
        if copy is None or copy.shape != now.shape:
            self._copies[name] = now
            return now
        if copy.device != now.device:
            self._copies[name] = copy = copy.to(now.device)
        lost = copy.sub_(copy.to(tensor.dtype).float())  # by rounding
        return lost.nan_to_num_(0.0, 0.0, 0.0).add_(now)

    @torch.no_grad()
    def write(self, name: str, tensor: Tensor, value: Tensor) -> None:
        """Set a tensor, and its copy."""
        if tensor.dtype in HALF:
            self._copies[name] = value.detach().to(tensor.device, torch.float32, copy=True)
        tensor.copy_(value)

    def remember(self, name: str, value: Tensor) -> None:
        """Set the copy of a tensor that is set elsewhere."""
        self._copies[name] = value.detach().to(torch.float32, copy=True)

    @contextmanager
    def stepping(self, optimizer: Steps, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Let an optimizer work on the copies of these tensors."""
        self.begin_step(optimizer, tensors)
        try:
            yield
        finally:
            self.end_step()

    def begin_step(self, optimizer: Steps, tensors: Mapping[str, Tensor]) -> None:
        """Put the copies, with gradients and state in float32, in the place of the tensors."""
        self.end_step()  # of a step that has failed
        held = {id(each) for group in optimizer.param_groups for each in group["params"]}
        half = {name: each for name, each in tensors.items() if each.dtype in HALF and id(each) in held}
        self._stepping = [(each, self.read(name, each)) for name, each in half.items()]
        self._optimizer = optimizer
        for tensor, copy in self._stepping:
            copy.grad = None if tensor.grad is None else tensor.grad.float()
        _replace(optimizer, self._stepping)

    @torch.no_grad()
    def end_step(self) -> None:
        """Put the tensors back, with the rounded values of their copies."""
        optimizer, stepping = self._optimizer, self._stepping
        self._optimizer, self._stepping = None, []
        if optimizer is not None:
            _replace(optimizer, [(copy, tensor) for tensor, copy in stepping])
        for tensor, copy in stepping:
            copy.grad = None
            tensor.copy_(copy)


def _replace(optimizer: Steps, pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Put each second tensor into an optimizer in the place of the first."""
    new = {id(old): each for old, each in pairs}
    for group in optimizer.param_groups:
        group["params"][:] = [new.get(id(each), each) for each in group["params"]]  # LBFGS keeps the list,
    state = optimizer.state
    for old, each in pairs:
        if old in state:  # and the state, while it calls the closure
            state[each] = kept = state.pop(old)
            kept.update({name: _float32(value) for name, value in kept.items()})


def _float32(value: Any) -> Any:  # noqa: ANN401  any entry of an optimizer's state
    """Return an entry of a state, in float32 where torch has loaded it in the precision of its parameter."""
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value
