"""Plain SGD, the default optimizer of local steps; bit-identical to torch's SGD without momentum.

torch's SGD imports torch's compiler at first use: a second and 100 MB on every client. This class has the
part of the optimizer interface that the trainer uses.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class PlainSGD:
    """SGD without momentum: subtracts the gradient times the rate. It has no state."""

    def __init__(self, parameters: Sequence[Tensor], rate: float) -> None:
        self.param_groups: list[dict[str, Any]] = [{"lr": rate, "params": list(parameters)}]
        self.state: dict[Tensor, Any] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Update each parameter that has a gradient."""
        rate = self.param_groups[0]["lr"]
        for each in self.param_groups[0]["params"]:
            if each.grad is not None:
                each.add_(each.grad, alpha=-rate)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, which is empty."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state, which is empty."""
