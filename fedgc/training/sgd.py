"""Plain gradient descent: what trains where a task brings no optimizer of its own.

Bit for bit what torch's SGD without momentum does. That one has torch's compiler imported by the first
parameters it sees: a second of one core and a hundred megabytes, on every device and at every session's
start, for a subtraction. Of torch's optimizers it has what the trainer asks of either.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Descent:
    """Subtracts the gradient times the rate; it remembers nothing between two steps."""

    def __init__(self, parameters: Sequence[Tensor], rate: float) -> None:
        self._parameters = tuple(parameters)
        self.param_groups: list[dict[str, Any]] = [{"lr": rate}]

    @torch.no_grad()
    def step(self) -> None:
        """Go down, where there is a gradient."""
        rate = self.param_groups[0]["lr"]
        for each in self._parameters:
            if each.grad is not None:
                each.add_(each.grad, alpha=-rate)

    def state_dict(self) -> dict[str, Any]:
        """Return what a trajectory that is set aside must keep."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what was kept: nothing."""
