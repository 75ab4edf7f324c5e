"""Shared momentum: every local step is led by the step that all clients took together last.

    step = alpha * own + (1 - alpha) * common,     common = (model before - model) / local steps between them

which for SGD is FedCM (Xu et al., arXiv 2106.10874), v = alpha * g + (1 - alpha) * Delta. There gradients are
mixed; here it is the steps, so that it means the same under any optimizer: Adam's own step is scaled by its
past gradients, and a common *gradient* fed to it would be scaled away. An optimizer's step is proportional to
its learning rate, so own steps are taken at alpha times the rate, and nothing of the optimizer need be known.

A client knows the common step from two consecutive models: no byte, and no state that could be lost. One
that has not seen the model before goes by alpha * own alone, as all do from the first model. The common step
is kept as of the full learning rate: under a schedule it shrinks as the own steps do.
"""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from fedgc.config import RunConfig
from fedgc.training.flat import Vector

BLOCK: Final = 1 << 16


def squared_way(start: Vector, now: Vector, step: Vector | None = None, led: float = 0.0) -> float:
    """Return the squared length of a way, without what `led` steps of a lead did of it.

    That is what tells clients apart; the rest they have in common. It is walked a block at a time.

    >>> squared_way(np.float32([3, 4]), np.float32([0, 0]))
    25.0
    >>> squared_way(np.float32([3, 4]), np.float32([0, 0]), np.float32([1, 2]), led=2.0)
    1.0
    """
    total = 0.0
    for first in range(0, start.size, BLOCK):
        piece = slice(first, first + BLOCK)
        way = start[piece].astype(np.float64) - now[piece]
        if step is not None:
            way -= led * step[piece]
        total += float(np.square(way, out=way).sum())
    return total


def lead_of(
    config: RunConfig, models: Mapping[int, Vector], version: int, parameters: int, steps: tuple[int, float]
) -> Vector | None:
    """Return (1 - alpha) * common from model `version` on; None without momentum, or the model before.

    It is of the parameters alone, since buffers follow the data, and as of the full learning rate.
    `steps` are those of `Work`: local steps of the run before this model, and those since the one before.
    """
    first_step, common_steps = steps
    before, model = models.get(version - 1), models.get(version)
    if config.alpha == 1.0 or not common_steps or before is None or model is None:
        return None
    shares = [
        config.rate_share(step) for step in range(max(0, first_step - math.ceil(common_steps)), first_step)
    ]
    share = sum(shares) / len(shares) if shares else 1.0
    if share <= 0.0:
        return None
    step: Vector = np.subtract(before[:parameters], model[:parameters])
    step *= np.float32((1.0 - config.alpha) / common_steps / share)
    return step
