"""Inverse-probability weights for data held by one client only (Horvitz and Thompson 1952).

A slow client's own data has no replicas. If the client started every round with the same chunk, its last
chunks would never count. It therefore carries on where it stopped. Over the rounds every chunk then has
the same probability p (finished / held, from the client's history), and weights of 1 / p make the sum
unbiased. A weight is cut at a limit, which trades a small bias for less variance.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from fedgc.codes.placement import Placement
from fedgc.errors import BadSetting

LARGEST_WEIGHT: Final = 4.0


def carry_on(order: Sequence[int], finished: int) -> tuple[int, ...]:
    """Return the next round's order of a client that finished the first chunks of this one.

    >>> carry_on((4, 7, 9), 2), carry_on((4, 7, 9), 3)
    ((9, 4, 7), (4, 7, 9))
    """
    if not 0 <= finished <= len(order):
        raise BadSetting(f"{finished} chunks finished of {len(order)}")
    return (*order[finished:], *order[:finished])


def completion_probability(finished: Sequence[int], load: int) -> float:
    """Return the probability that a chunk of this client is finished in a round, from past rounds.

    Half a chunk is added to both finished and held, so that it is never 0.

    >>> completion_probability([3, 0], 4), completion_probability([], 4)
    (0.4117647058823529, 1.0)
    """
    if load < 1 or any(not 0 <= count <= load for count in finished):
        raise BadSetting(f"finished {list(finished)[:8]} of {load} chunks held: 0 to {load} are possible")
    return (sum(finished) + 0.5) / (load * len(finished) + 0.5)


def inverse_weights(placement: Placement, probability_w: Sequence[float]) -> tuple[float, ...]:
    """Return the weight of each chunk in the sum: 1 / (probability that any of its holders finishes it).

    >>> alone = Placement(2, ((0,), (1,)), (0, 0), (0.25, 0.75))
    >>> inverse_weights(alone, [0.5, 0.1])
    (2.0, 4.0)
    """
    chance_w = np.asarray(probability_w, np.float64)
    if chance_w.shape != (placement.clients_w,) or not ((chance_w > 0) & (chance_w <= 1)).all():
        raise BadSetting(
            f"chances {list(probability_w)[:8]}: one above 0 and up to 1 for each client is needed"
        )
    miss_cn = np.where(placement.holder_cn >= 0, 1.0 - chance_w[placement.holder_cn], 1.0)
    weight_n = np.minimum(1.0 / (1.0 - miss_cn.prod(axis=0)), LARGEST_WEIGHT)
    return tuple(weight_n.tolist())
