"""Lets the optimizers of a script step on float32 copies of its half-precision parameters.

Hooks on all optimizers of the process serve any loop: one of the user's own, and those of trainers.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from fedgc.training.float32_copies import HALF, Float32Copies


def step_in_float32(
    copies: Float32Copies, tensors: Callable[[], Mapping[str, Tensor]]
) -> tuple[RemovableHandle, ...]:
    """Register the hooks, and return their handles.

    Args:
        copies: The copies of the tensors.
        tensors: Returns the module's present parameters by name.
    """

    def before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        if not _steps_on_half(optimizer):
            return None
        changed = _with_closure(args, kwargs, lambda closure: around(optimizer, closure))
        copies.begin_step(optimizer, tensors())
        return changed

    def around(optimizer: Optimizer, closure: Callable[[], Any]) -> Any:  # noqa: ANN401  what it returns
        """Compute the loss and its gradients, as the user's closure does, on the module's own tensors."""
        copies.end_step()
        loss = closure()
        copies.begin_step(optimizer, tensors())
        return loss

    def after(_optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        copies.end_step()

    return register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)


def _steps_on_half(optimizer: Optimizer) -> bool:
    """Whether an optimizer has a parameter of half precision; a trainer may convert the model late."""
    return any(each.dtype in HALF for group in optimizer.param_groups for each in group["params"])


def _with_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], wrap: Callable[[Callable[[], Any]], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of a step with its closure wrapped; None if it has none."""
    given = args[1] if len(args) > 1 else kwargs.get("closure")
    if given is None:
        return None
    if len(args) > 1:
        return (args[0], lambda: wrap(given), *args[2:]), kwargs
    return args, {**kwargs, "closure": lambda: wrap(given)}
