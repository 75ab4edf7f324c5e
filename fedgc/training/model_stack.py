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
Change = Callable[[Sequence[Tensor]], None]  # replaces the gradients of these weights, before a step


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """A client that has left the stack; `losses` is the sum over its steps there."""

    saved: Saved
    private: Mapping[str, Tensor]
    losses: float
    squared_norm: float
    bad_loss: float | None  # the first one that is no usable number


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Where a client begins in a stack: the common model, or what it has saved since."""

    model: Vector
    saved: Saved | None
    private: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class ClientRows:
    """What clients of a stack have after a step; each tensor has them along its first dimension."""

    tensors: Mapping[str, Tensor]
    state: Sequence[Mapping[str, Any]]  # of the optimizer, for each parameter
    losses: Tensor
    squares: Tensor
    bad: Tensor  # the first loss that is no usable number, if `is_bad`
    is_bad: Tensor
    origin: Tensor  # the numbers of their common models

    def part(self, take: Callable[[Tensor], Tensor]) -> "ClientRows":
        """Return the same, with a part or a copy of each tensor."""
        figures = (self.losses, self.squares, self.bad, self.is_bad, self.origin)
        return ClientRows(
            {name: take(each.detach()) for name, each in self.tensors.items()},
            [_each(own, take) for own in self.state],
            *map(take, figures),
        )

    @property
    def nbytes(self) -> int:
        """The bytes of the models and of the state of the optimizer."""
        state = (value for own in self.state for value in own.values() if isinstance(value, Tensor))
        return sum(each.nbytes for each in (*self.tensors.values(), *state))


class ModelStack:
    """Models of clients that do their steps together, with one optimizer."""

    def __init__(self, trainer: Trainer, starts: Sequence[Start]) -> None:
        """Begin where the clients do: all anew or all where they were saved, if the optimizer has a state."""
        flat, device = trainer.flat, trainer.device
        self._trainer, self._count = trainer, len(starts)
        models = {id(each.model): each.model for each in starts}
        self._models = to_device(torch.from_numpy(np.stack([*models.values()])), device)
        numbers = {of: number for number, of in enumerate(models)}
        self._origin = torch.tensor([numbers[id(each.model)] for each in starts], device=device)
        rows = self._rows_of(starts)
        parts = torch.split(rows, [each.numel() for each in flat.exchanged.values()], dim=1)
        self._tensors = {
            name: part.reshape(self._count, *like.shape).clone(memory_format=torch.contiguous_format)
            for (name, like), part in zip(flat.exchanged.items(), parts, strict=True)
        }
        for name in flat.private:
            self._tensors[name] = torch.stack([each.private[name] for each in starts]).to(device)
        unsent = [trainer.first_unsent if each.saved is None else each.saved.unsent for each in starts]
        for name, *own in zip(flat.unsent, *unsent, strict=True):
            self._tensors[name] = torch.stack(own).to(device)
        every = {**flat.exchanged, **flat.private}
        self._optimized = [name for name, each in every.items() if each.requires_grad]
        states = [each.saved.optimizer[STATE] for each in starts if each.saved and each.saved.optimizer]
        self._renew(_stacked(states, device))
        self._losses = torch.zeros(self._count, dtype=torch.float64, device=device)
        self._squares, self._bad = torch.zeros_like(self._losses), torch.zeros_like(self._losses)
        self._is_bad = torch.zeros_like(self._losses, dtype=torch.bool)

    def _rows_of(self, starts: Sequence[Start]) -> Tensor:
        """Return the vectors at which clients begin."""
        if len(self._models) == 1 and not any(each.saved for each in starts):
            return self._models[0].expand(self._count, -1)
        vectors = [each.model if each.saved is None else each.saved.vector for each in starts]
        return to_device(torch.from_numpy(np.stack(vectors)), self._trainer.device)

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

    def step(
        self,
        loss: Callable[[Mapping[str, Tensor], Batch], Tensor],
        batch: Batch,
        share: float,
        change: Change | None = None,
    ) -> None:
        """Do one step of each client on its batch, at a share of the full learning rate."""
        weights = self._weights
        with _batching():
            found = loss(self._tensors, batch)
            gradients = torch.autograd.grad(found.sum(), weights, allow_unused=True)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        if change is not None:
            change(weights)
        losses = found.detach().double()
        self._bad = torch.where(self._is_bad, self._bad, losses)
        self._is_bad |= ~(losses.abs() <= LARGEST_AMOUNT)
        self._losses += losses
        if self._trainer.wants_gradient:
            given = [each.grad for each in weights[: len(self._trainer.flat.trainable)]]
            squares = [_rows(each).square().sum(1) for each in given if each is not None]
            self._squares = torch.stack(squares).sum(0).double()
        for group, rate in zip(self._optimizer.param_groups, self._trainer.rates, strict=True):
            group["lr"] = rate * share
        self._optimizer.step()

    @torch.no_grad()
    def subtract(self, lead: Sequence[Tensor], shares: Sequence[float]) -> None:
        """Subtract a share of the lead of shared momentum from each model."""
        each = self._numbers(shares)
        for tensor, part in zip(self._weights, lead, strict=False):  # then come private tensors
            _rows(tensor).addr_(each, part.reshape(-1), alpha=-1)

    @property
    def rows(self) -> ClientRows:
        """What the clients have now; later steps change it."""
        state = [self._optimizer.state.get(each, {}) for each in self._weights]
        figures = self._losses, self._squares, self._bad, self._is_bad, self._origin
        return ClientRows(self._tensors, state if any(state) else (), *figures)

    def _numbers(self, each: Sequence[float]) -> Tensor:
        return to_device(torch.tensor(each, dtype=torch.float32), self._trainer.device)

    def leave(self, count: int, lead: Sequence[Tensor], led: Sequence[float]) -> list[Left]:
        """Take the last clients out of the stack; they have followed `led` steps of the lead so far."""
        rows, self._count = self.rows, self._count - count
        left = self.left(rows.part(lambda each: each[self._count :]), lead, led)
        if self._count:
            self._keep(rows.part(lambda each: each[: self._count]))
        return left

    @torch.no_grad()
    def left(self, rows: ClientRows, lead: Sequence[Tensor], led: Sequence[float]) -> list[Left]:
        """Return what these clients have, each on its own."""
        flat = self._trainer.flat
        models = torch.cat([_rows(rows.tensors[name]) for name in flat.exchanged], dim=1)
        squares = rows.squares
        if not self._trainer.wants_gradient:
            starts = self._models if len(self._models) == 1 else self._models[rows.origin]
            moved = starts[:, : flat.parameters] - models[:, : flat.parameters]
            if lead:
                moved.addr_(self._numbers(led), torch.cat([each.reshape(-1) for each in lead]), alpha=-1)
            squares = torch.linalg.vector_norm(moved, dim=1, dtype=torch.float64).square()
        vectors = _in_main_memory(models)
        figures = [each.tolist() for each in (rows.losses, rows.bad, rows.is_bad, squares)]
        left = []
        for at, (losses, bad, is_bad, square) in enumerate(zip(*figures, strict=True)):
            unsent = [rows.tensors[name][at].to("cpu", copy=True) for name in flat.unsent]
            private = {name: rows.tensors[name][at].to("cpu", copy=True) for name in flat.private}
            optimizer = {STATE: [_of(each, at) for each in rows.state]} if rows.state else {}
            saved = Saved(vectors[at], unsent, optimizer)
            left.append(Left(saved, private, losses, square, bad if is_bad else None))
        return left

    def _keep(self, rows: ClientRows) -> None:
        """Keep these clients alone."""
        self._tensors = dict(rows.tensors)
        self._losses, self._squares, self._origin = rows.losses, rows.squares, rows.origin
        self._bad, self._is_bad = rows.bad, rows.is_bad
        self._renew(rows.state)


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
