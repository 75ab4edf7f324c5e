"""Shared momentum (FedCM: Xu et al., arXiv 2106.10874): each local step includes the last common step.

    step = alpha * own + (1 - alpha) * common,    common = (earlier model - model) / local steps between them

For SGD this is FedCM, v = alpha * g + (1 - alpha) * Delta. FedCM mixes gradients; fedgc mixes steps, so that
it works with any optimizer: Adam would rescale a common *gradient*. A step is proportional to the learning
rate, so the optimizer runs at alpha times the rate.

A client computes the common step from the model and the one that it had before, without extra traffic or
state. These are consecutive, unless its updates come late: then the step is a mean over the models between.
Without an earlier model (as for the first one), a client does alpha * own alone. The common step is stored
for the full learning rate and scaled by the schedule, as the own steps are.

A client follows the common step for at most as many local steps as it was measured over. After a short gap
between exchanges the common step is long; followed through a much longer gap, it would lead all clients past
the minimum, and gates that choose uneven gaps would lose by it.
"""

import math
from collections.abc import Mapping

import numpy as np

from fedgc.config import RunConfig
from fedgc.large_vectors import MEASURED, Readable, squared_length
from fedgc.messages import Work
from fedgc.training.flat import Vector


def squared_distance(start: Vector, now: Readable, step: Vector | None = None, led: float = 0.0) -> float:
    """Return the squared distance between two models, without the part of `led` steps of the lead `step`.

    `now` may have more numbers than `start`. All clients share the lead, so only the remainder differs. It is
    computed tile by tile.

    >>> squared_distance(np.float32([3, 4]), np.float32([0, 0]))
    25.0
    >>> squared_distance(np.float32([3, 4]), np.float32([0, 0]), np.float32([1, 2]), led=2.0)
    1.0
    """
    led_room = np.empty(min(MEASURED, start.size), np.float32) if step is not None and led else None

    def difference(part: slice, room: Vector) -> Vector:
        np.subtract(start[part], now[part], out=room)
        if step is not None and led_room is not None:
            room -= np.multiply(step[part], np.float32(led), out=led_room[: room.size])
        return room

    return squared_length(difference, start.size)


def led_share(share: float, reached: int, common_steps: float) -> float:
    """Return the share of the lead in the local step after `reached` ones; `share` is the learning rate's.

    The lead is followed for as many steps as it was measured over.

    >>> led_share(0.5, 7, 8.0), led_share(0.5, 8, 8.0)
    (0.5, 0.0)
    """
    return share if reached < math.ceil(common_steps) else 0.0


def lead_of(
    config: RunConfig, models: Mapping[int, Vector], work: Work, parameters: int, out: Vector | None = None
) -> Vector | None:
    """Return the lead, (1 - alpha) * common, for steps from the model of this work, or None.

    It is None without shared momentum or without the model before. It covers the parameters, not the buffers,
    at the full learning rate. `out` is an earlier lead, which is overwritten.
    """
    first_step, common_steps = work.first_step, work.common_steps
    before, model = models.get(work.before), models.get(work.version)
    if config.alpha == 1.0 or not common_steps or before is None or model is None:
        return None
    shares = [
        config.rate_share(step) for step in range(max(0, first_step - math.ceil(common_steps)), first_step)
    ]
    share = sum(shares) / len(shares) if shares else 1.0
    if share <= 0.0:
        return None
    step: Vector = np.empty(parameters, np.float32) if out is None else out
    factor = np.float32((1.0 - config.alpha) / common_steps / share)
    for first in range(0, parameters, MEASURED):  # both while the numbers are in the cache
        part = slice(first, min(first + MEASURED, parameters))
        np.subtract(before[part], model[part], out=step[part])
        step[part] *= factor
    return step
