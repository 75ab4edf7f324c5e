"""Sums of clipped gradients, one for each record (DP-SGD: Abadi et al., arXiv 1607.00133).

    sum over the records r of a batch of  min(1, clip / |g_r|) g_r,  |g_r| the norm over all parameters

The gradients are those of `torch.func`: `vmap` of the gradient of the task's loss on a batch of one record. A
record whose gradient is not finite counts nothing, since a failure would tell of it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree

from fedgc.errors import BadTask, TaskFailed, words_of

Loss = Callable[[nn.Module, Any], Tensor]
MOST_NUMBERS: Final = 1 << 26  # of gradients in memory at a time


class RecordGradients:
    """Computes the sum of clipped gradients of the records of a batch."""

    def __init__(self, module: nn.Module, loss: Loss, clip: float) -> None:
        """`clip` is the largest norm with which a record counts.

        Raises:
            BadTask: The module has a layer that mixes the records of a batch.
        """
        for name, layer in module.named_modules():
            if isinstance(layer, _BatchNorm):
                raise BadTask(
                    f"task: saw {name or 'the model'}, a {type(layer).__name__}, which mixes the records of "
                    "a batch; needed GroupNorm or LayerNorm with privacy.unit = record"
                )
        self._loss = _Loss(module, loss)
        self._trained: Final[Mapping[str, Tensor]] = {
            name: each for name, each in self._loss.named_parameters() if each.requires_grad
        }
        self._clip = clip
        self._size = sum(each.numel() for each in self._trained.values())
        self._gradients = vmap(grad(self._loss_of_record), in_dims=(None, 0), randomness="different")

    def add(self, batch: Any) -> None:  # noqa: ANN401  nested as the task's data are
        """Set each parameter's `grad` to the sum over the records of a batch."""
        sums = {name: torch.zeros_like(each) for name, each in self._trained.items()}
        leaves, form = _pytree.tree_flatten(batch)
        if not all(isinstance(each, Tensor) and each.dim() for each in leaves):
            raise TaskFailed(
                "saw a batch with other things than tensors, needed tensors with privacy.unit = record"
            )
        columns = [each.unsqueeze(1) for each in leaves]  # of each record, a batch of one
        at_once = max(1, MOST_NUMBERS // max(1, self._size))
        parameters = {name: each.detach() for name, each in self._trained.items()}
        for first in range(0, len(columns[0]), at_once):
            part = _pytree.tree_unflatten([each[first : first + at_once] for each in columns], form)
            found = self._of(parameters, part)
            self._clip_into(sums, found)
        for name, each in self._trained.items():
            each.grad = sums[name]

    def _of(self, parameters: Mapping[str, Tensor], part: Any) -> Mapping[str, Tensor]:  # noqa: ANN401
        try:
            found: Mapping[str, Tensor] = self._gradients(parameters, part)
        except Exception as error:  # the user's code may raise anything
            raise TaskFailed(
                f"loss() cannot be computed for single records ({words_of(error)}), "
                "needed one of torch's operations without branches on values, with privacy.unit = record"
            ) from error
        return found

    def _clip_into(self, sums: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
        flat = {name: each.flatten(1) for name, each in found.items()}
        norms = torch.stack([torch.linalg.vector_norm(each, dim=1) for each in flat.values()]).norm(dim=0)
        finite = norms.isfinite()
        factors = torch.where(finite, (self._clip / norms).clamp(max=1.0), 0.0)
        for name, each in flat.items():
            counted = each if finite.all() else torch.where(finite[:, None], each, 0.0)
            sums[name].add_((factors @ counted).view_as(sums[name]))

    def _loss_of_record(self, parameters: Mapping[str, Tensor], record: Any) -> Tensor:  # noqa: ANN401
        found: Tensor = functional_call(self._loss, dict(parameters), (record,))
        return found.reshape(())


class _Loss(nn.Module):
    """The task's loss as a module, whose parameters `functional_call` replaces."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module, self._of = module, loss

    def forward(self, batch: Any) -> Tensor:  # noqa: ANN401  the task's own
        return self._of(self.module, batch)
