"""Steps in which no record counts for more than a bound: each record's gradient is clipped by itself.

One step moves the model by rate / batch_size * sum over records r of clip(g_r), where clip scales a gradient
down to `limit` in Euclidean norm. To put another record in the place of one moves it by at most
2 * rate * limit / batch_size, so

    limit = reach * batch_size / (2 * rate)

makes that `reach` (Abadi et al., "Deep learning with differential privacy", 2016, clip so; noise is added
once, to the update of a site). The divisor is the batch size that was asked for, not the number of
records that were there, which would tell of one; a record that the stream of batches gives twice counts
once. What leads a step besides (shared momentum) follows from public models.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedgc.errors import TaskFailed


def limit_of(reach: float, batch_size: int, rate: float) -> float:
    """Return the largest norm of one record's gradient.

    >>> limit_of(1.0, 32, 0.5)
    32.0
    """
    return reach * batch_size / (2.0 * rate)


def clipped_gradients(
    trainable: Sequence[Tensor], losses: Sequence[Callable[[], Tensor]], limit: float, batch_size: int
) -> float:
    """Put the clipped gradients, summed and over the batch size, in place; return the mean loss."""
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
