"""Schedule-free SGD (Defazio et al., "The road less scheduled", arXiv 2405.15682) as an optimizer of torch.

    z' = z - rate * gradient(y)
    x' = (1 - 1/t) x + 1/t z'
    y' = (1 - momentum) z' + momentum x'

Gradients are taken at y, and x, the average of all z, is the model to use. There is no schedule of rates, so
it is good at any time, not only at the end of a run of known length.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class ScheduleFreeSGD(torch.optim.Optimizer):
    """Steps the parameters, which are y; keeps z. x follows from both (`average`)."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    # torch's own optimizers return a loss for a closure; this one takes none
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002  (torch has overloads)
        """Do one step."""
        for group in self.param_groups:
            for y in group["params"]:
                if y.grad is not None:
                    _step(y, y.grad, self.state[y], group["lr"], group["momentum"])


def _step(y: Tensor, gradient: Tensor, state: dict[str, Any], rate: float, momentum: float) -> None:
    if not state:
        state["step"], state["z"] = torch.zeros(()), y.clone()
    state["step"] += 1
    share, z = 1.0 / float(state["step"]), state["z"]
    y.lerp_(z, share)  # x' and y', in terms of y, z and the gradient
    y.add_(gradient, alpha=rate * (momentum * (1.0 - share) - 1.0))
    z.sub_(gradient, alpha=rate)


def average(y: Tensor, z: Tensor, momentum: float) -> Tensor:
    """Return x.

    >>> average(torch.tensor([0.9]), torch.tensor([0.0]), 0.9)
    tensor([1.])
    """
    return y.lerp(z, 1.0 - 1.0 / momentum)
