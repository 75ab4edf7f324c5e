"""The models of several clients as one: each tensor has the clients along its first dimension."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from fedgc.errors import BadTask, TaskFailed
from fedgc.messages import LARGEST_AMOUNT
from fedgc.training.cache import Saved
from fedgc.training.devices import to_device
from fedgc.training.flat import Vector
from fedgc.training.sgd import PlainSGD
from fedgc.training.trainer import Trainer, check_gradient, check_number

ELEMENTWISE: Final = (
    PlainSGD, torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam,
    torch.optim.Adamax, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.RMSprop,
)  # fmt: skip
COMMON: Final = frozenset({"step", "mu_product"})  # numbers of an optimizer that count its steps
HOOKS: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")  # of a parameter
STEP_HOOKS: Final = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
OF_VMAP: Final = ("vmap", "Batching rule")  # in its errors
STATE: Final = "state"  # of an optimizer, in what is saved of a client: a dictionary for each parameter

Batch = Any  # what `default_collate` makes: a tensor, or a mapping, list or tuple of these
Optimizer = torch.optim.Optimizer | PlainSGD


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """A client that has left the stack; `losses` is the sum over its steps there."""

    saved: Saved
    private: Mapping[str, Tensor]
    losses: float
    squared_norm: float
    bad_loss: float | None  # the first one that is no usable number


class ModelStack:
    """Models of clients that are at the same step, with one optimizer."""

    def __init__(
        self,
        trainer: Trainer,
        model: Vector,
        saved: Sequence[Saved],
        private: Sequence[Mapping[str, Tensor]],
    ) -> None:
        """Begin at the common model, or where the clients were saved; `private` is of each client."""
        flat, device = trainer.flat, trainer.device
        self._trainer, self._count = trainer, len(private)
        self._model = to_device(torch.tensor(model), device)
        rows = self._model.expand(self._count, -1)
        if saved:
            rows = to_device(torch.from_numpy(np.stack([each.vector for each in saved])), device)
        parts = torch.split(rows, [each.numel() for each in flat.exchanged.values()], dim=1)
        self._tensors = {
            name: part.reshape(self._count, *like.shape).clone(memory_format=torch.contiguous_format)
            for (name, like), part in zip(flat.exchanged.items(), parts, strict=True)
        }
        for name in flat.private:
            self._tensors[name] = torch.stack([each[name] for each in private]).to(device)
        unsent = [each.unsent for each in saved] or [trainer.first_unsent] * self._count
        for name, *own in zip(flat.unsent, *unsent, strict=True):
            self._tensors[name] = torch.stack(own).to(device)
        every = {**flat.exchanged, **flat.private}
        self._optimized = [name for name, each in every.items() if each.requires_grad]
        self._renew(_stacked([each.optimizer[STATE] for each in saved], device) if saved else [])
        self._losses = torch.zeros(self._count, dtype=torch.float64, device=device)
        self._squares, self._bad = torch.zeros_like(self._losses), torch.zeros_like(self._losses)
        self._is_bad = torch.zeros_like(self._losses, dtype=torch.bool)

    @property
    def _weights(self) -> list[Tensor]:
        return [self._tensors[name] for name in self._optimized]

    def _renew(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Make the optimizer for the present tensors, with a state for each parameter or none."""
        for name in self._optimized:
            self._tensors[name] = self._tensors[name].detach().requires_grad_()
        self._optimizer = self._trainer.new_optimizer(self._weights)
        for weight, own in zip(self._weights, state, strict=bool(state)):
            self._optimizer.state[weight] = dict(own)

    def step(self, loss: Callable[[Mapping[str, Tensor], Batch], Tensor], batch: Batch, share: float) -> None:
        """Do one step of each client on its batch, at a share of the full learning rate."""
        weights = self._weights
        for each in weights:
            each.grad = None
        with _batching():
            found = loss(self._tensors, batch)
            found.sum().backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        losses = found.detach().double()
        self._bad = torch.where(self._is_bad, self._bad, losses)
        self._is_bad |= ~(losses.abs() <= LARGEST_AMOUNT)
        self._losses += losses
        if self._trainer.wants_gradient:
            gradients = [each.grad for each in weights[: len(self._trainer.flat.trainable)]]
            squares = [_rows(each).square().sum(1) for each in gradients if each is not None]
            self._squares = torch.stack(squares).sum(0).double()
        for group, rate in zip(self._optimizer.param_groups, self._trainer.rates, strict=True):
            group["lr"] = rate * share
        self._optimizer.step()

    @torch.no_grad()
    def subtract(self, lead: Sequence[Tensor], share: float) -> None:
        """Subtract a share of the lead of shared momentum from each model."""
        for tensor, part in zip(self._weights, lead, strict=False):  # then come private tensors
            tensor.sub_(part, alpha=share)

    @torch.no_grad()
    def leave(self, count: int, lead: Sequence[Tensor], led: float) -> list[Left]:
        """Take the last clients out of the stack; `led` steps of the lead were followed so far."""
        flat, first = self._trainer.flat, self._count - count
        rows = torch.cat([_rows(self._tensors[name][first:]) for name in flat.exchanged], dim=1)
        squares = self._squares[first:]
        if not self._trainer.wants_gradient:
            moved = self._model[: flat.parameters] - rows[:, : flat.parameters]
            if lead:
                moved -= torch.cat([each.reshape(-1) for each in lead]) * led
            squares = torch.linalg.vector_norm(moved, dim=1, dtype=torch.float64).square()
        vectors = _in_main_memory(rows)
        state = [self._optimizer.state.get(each, {}) for each in self._weights]
        figures = [each[first:].tolist() for each in (self._losses, self._bad, self._is_bad)]
        left = []
        for at, (losses, bad, is_bad, square) in enumerate(zip(*figures, squares.tolist(), strict=True)):
            unsent = [self._tensors[name][first + at].to("cpu", copy=True) for name in flat.unsent]
            private = {name: self._tensors[name][first + at].to("cpu", copy=True) for name in flat.private}
            saved = Saved(vectors[at], unsent, {STATE: [_of(each, first + at) for each in state]})
            left.append(Left(saved, private, losses, square, bad if is_bad else None))
        self._keep(first, state)
        return left

    def _keep(self, count: int, state: Sequence[Mapping[str, Any]]) -> None:
        """Keep the first clients alone."""
        self._count = count
        if not count:
            return
        self._tensors = {name: each[:count] for name, each in self._tensors.items()}
        self._losses, self._squares = self._losses[:count], self._squares[:count]
        self._bad, self._is_bad = self._bad[:count], self._is_bad[:count]
        self._renew([_each(own, lambda value: value[:count]) for own in state])


class StackLoss(nn.Module):
    """The losses of a stack, one for each client."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self._module, self._trainer = trainer.flat.module, trainer

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss of one client."""
        before = dict(self._module.named_buffers())
        loss = self._trainer.autocast_loss(self._module, batch)
        check_number(loss)
        for name, buffer in self._module.named_buffers():
            if buffer is not before.get(name):
                raise TaskFailed(f"stack: saw the buffer {name} assigned, needed it changed in place")
        return loss.reshape(())

    def of(self, tensors: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Return the losses of all clients; the tensors are by their names in the task's module."""
        self._trainer.training_module()
        named = {f"_module.{name}": each for name, each in tensors.items()}
        with _embedding_with_padding():
            losses: Tensor = vmap(self._one, randomness="different")(named, batch)
        check_gradient(losses)
        return losses

    def _one(self, named: Mapping[str, Tensor], batch: Batch) -> Tensor:
        loss: Tensor = functional_call(self, dict(named), (batch,))
        return loss


@contextmanager
def _batching() -> Iterator[None]:
    """Say what a stack needs where torch cannot batch the loss."""
    try:
        yield
    except RuntimeError as error:
        if not any(each in str(error) for each in OF_VMAP):
            raise
        seen = str(error).strip().split(". ")[0].rstrip(".")
        raise TaskFailed(f"saw {seen}; needed a loss that torch.func.vmap can batch, or no stack") from error


@contextmanager
def _embedding_with_padding() -> Iterator[None]:
    """Give the row of padding no gradient: under vmap, torch leaves it out in the first model alone."""
    torchs = functional.embedding

    def embedding(
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        *others: Any,  # noqa: ANN401  they are passed on
        **named: Any,  # noqa: ANN401  the same
    ) -> Tensor:
        found = torchs(input, weight, None, *others, **named)
        if padding_idx is None:
            return found
        return torch.where((input == padding_idx % len(weight))[..., None], found.detach(), found)

    functional.embedding = embedding
    try:
        yield
    finally:
        functional.embedding = torchs


def check_stacks(trainer: Trainer) -> None:
    """Raise BadTask for a task whose clients a stack would train differently."""
    flat = trainer.flat
    if flat.is_half:
        raise BadTask("stack: saw half precision in the model, needed float32")
    for name, each in flat.module.named_parameters():
        if any(getattr(each, hooks) for hooks in HOOKS):
            raise BadTask(f"stack: saw a hook of the parameter {name}, needed none")
    made = trainer.new_optimizer(flat.optimized)
    if type(made) not in ELEMENTWISE:
        needed = ", ".join(each.__name__ for each in ELEMENTWISE[1:])
        raise BadTask(f"stack: saw the optimizer {type(made).__name__}, needed one of {needed}")
    if any(getattr(made, hooks, None) for hooks in STEP_HOOKS):
        raise BadTask("stack: saw a hook of the optimizer's step, needed none")
    if any(group.get(kind) for group in made.param_groups for kind in ("fused", "capturable")):
        raise BadTask("stack: saw an optimizer with fused or capturable = True, needed False")
    several = [each.detach().expand(2, *each.shape) for each in flat.optimized]
    if _groups(made, flat.optimized) != _groups(trainer.new_optimizer(several), several):
        raise BadTask("stack: optimizer() divides parameters by their shapes, needed by something else")


def _groups(optimizer: Optimizer, parameters: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Return the groups of an optimizer, with the numbers of their parameters."""
    numbers = {id(each): at for at, each in enumerate(parameters)}
    return [
        {**group, "params": [numbers.get(id(each), -1) for each in group["params"]]}
        for group in optimizer.param_groups
    ]


def _rows(tensor: Tensor) -> Tensor:
    """Return a tensor with a row for each client."""
    return tensor.reshape(len(tensor), tensor[0].numel())


def _in_main_memory(rows: Tensor) -> NDArray[np.float32]:
    """Return the rows in main memory; pinned memory is several times as fast as other."""
    if rows.is_cuda:
        return torch.empty(rows.shape, pin_memory=True).copy_(rows).numpy()
    return rows.cpu().numpy()


def _each(own: Mapping[str, Any], take: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Take a part of each tensor that has the clients along its first dimension."""
    return {
        name: take(value) if isinstance(value, Tensor) and name not in COMMON else value
        for name, value in own.items()
    }


def _of(own: Mapping[str, Any], at: int) -> dict[str, Any]:
    """Return a copy of one client's part of the state of a parameter."""
    found = _each(own, lambda value: value[at])
    return {
        name: value.to("cpu", copy=True) if isinstance(value, Tensor) else value
        for name, value in found.items()
    }


def _stacked(states: Sequence[Sequence[Mapping[str, Any]]], device: torch.device) -> list[dict[str, Any]]:
    """Return the state of each parameter, from those of each client."""
    return [
        {
            name: torch.stack([each[name] for each in own]).to(device)
            if isinstance(value, Tensor) and name not in COMMON
            else value
            for name, value in own[0].items()
        }
        for own in zip(*states, strict=True)
    ]
