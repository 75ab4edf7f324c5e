"""Worst-case condition and noise amplification of a frame, over all sets of `blocks` columns."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fedgc.codes.arrays import Bool, Float
from fedgc.codes.mixing import mix


@dataclass(frozen=True, slots=True)
class Worst:
    """The worst and the median figures of a frame over all sets of `blocks` columns."""

    condition: float
    amplification: float
    median_condition: float
    median_amplification: float


def worst(frame: Float) -> Worst:
    """Return the condition and amplification of the worst and the median set of `blocks` columns.

    >>> worst(np.eye(2)).condition
    1.0
    """
    solved = mix(frame, just_enough(frame.shape[1], len(frame)).astype(np.float64))
    return Worst(
        float(solved.condition_p.max()),
        float(solved.amplification_p.max()),
        float(np.median(solved.condition_p)),
        float(np.median(solved.amplification_p)),
    )


def just_enough(columns: int, blocks: int) -> Bool:
    """Return every set of `blocks` columns as a row of a mask.

    >>> just_enough(3, 2).astype(int).tolist()
    [[1, 1, 0], [1, 0, 1], [0, 1, 1]]
    """
    members = np.array(list(combinations(range(columns), blocks)))
    mask = np.zeros((len(members), columns), np.bool_)
    np.put_along_axis(mask, members, values=True, axis=1)
    return mask
