"""Per-record gradient clipping (DP-SGD: Abadi et al., "Deep learning with differential privacy", 2016).

A step moves the model by rate / batch_size * sum over records r of clip(g_r), where clip scales a gradient
down to norm `limit`. Replacing one record changes the step by at most 2 * rate * limit / batch_size, so

    limit = bound * batch_size / (2 * rate)

gives a sensitivity of `bound`. Noise is added once, to the update of a site. The divisor is the configured
batch size, because the actual number of records would reveal one. A record that occurs twice in a batch
counts once. The lead of shared momentum depends on public models only.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedgc.errors import TaskFailed


def limit_of(bound: float, batch_size: int, rate: float) -> float:
    """Return the largest norm of one record's gradient.

    >>> limit_of(1.0, 32, 0.5)
    32.0
    """
    return bound * batch_size / (2.0 * rate)


def clipped_gradients(
    trainable: Sequence[Tensor], losses: Sequence[Callable[[], Tensor]], limit: float, batch_size: int
) -> float:
    """Set each parameter's `grad` to the sum of clipped gradients / batch size; return the mean loss."""
    sums = [torch.zeros_like(each) for each in trainable]
    total = 0.0
    for loss_of in losses:
        loss = loss_of()
        gradients = torch.autograd.grad(loss, list(trainable), allow_unused=True)
        there = [each for each in gradients if each is not None]
        norm = math.sqrt(sum(float(each.double().square().sum()) for each in there))
        if not math.isfinite(norm):
            raise TaskFailed("a record's gradient is not finite, needed one that can be clipped")
        factor = min(1.0, limit / norm) if norm else 1.0
        for into, gradient in zip(sums, gradients, strict=True):
            if gradient is not None:
                into.add_(gradient, alpha=factor)
        total += float(loss.detach())
    for tensor, summed in zip(trainable, sums, strict=True):
        tensor.grad = summed.div_(batch_size)
    return total / max(1, len(losses))
