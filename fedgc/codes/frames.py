"""Frames: the few columns that a class placement needs.

A frame is a matrix (blocks x columns) of unit columns of which every `blocks` columns should be well
conditioned. The harmonic frame needs no search: points on the moment curve of cosines and sines at
t = 2 pi c / columns, with frequencies 0, 1, 2, ... (odd blocks) or 1/2, 3/2, ... (even blocks, so that
no row is constant). Searched frames (see `tools/search_frames.py`) are better where more than two blocks are
cut; for one and two blocks the harmonic frame is the best there is, since lines in the plane can do
no better than equal angles.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fedgc.codes.arrays import Bool, Float
from fedgc.codes.frame_table import SEARCHED
from fedgc.codes.mixing import mix
from fedgc.errors import BadPlacement


def harmonic_frame(columns: int, blocks: int) -> Float:
    """Return the harmonic frame with unit columns.

    >>> np.round(harmonic_frame(4, 2), 3).tolist()
    [[1.0, 0.707, 0.0, -0.707], [0.0, 0.707, 1.0, 0.707]]
    """
    if not 1 <= blocks <= columns:
        raise BadPlacement(f"{blocks} blocks on {columns} columns: 1 to {columns} are possible")
    angle_c = 2.0 * np.pi * np.arange(columns) / columns
    rows = [np.full(columns, np.sqrt(0.5))] if blocks % 2 else []
    for pair in range(blocks // 2):
        frequency = pair + (1.0 if blocks % 2 else 0.5)
        rows += [np.cos(frequency * angle_c), np.sin(frequency * angle_c)]
    frame = np.stack(rows)
    unit: Float = frame / np.linalg.norm(frame, axis=0)
    return unit


def frame_for(columns: int, blocks: int) -> Float:
    """Return the best frame known here: a searched one where there is one, else the harmonic.

    >>> worst(frame_for(4, 2)).condition < 2.5
    True
    """
    found = SEARCHED.get((columns, blocks))
    return harmonic_frame(columns, blocks) if found is None else np.array(found)


@dataclass(frozen=True, slots=True)
class Worst:
    """The worst figures of a frame over all sets of `blocks` columns, and the medians."""

    condition: float
    amplification: float
    median_condition: float
    median_amplification: float


def worst(frame: Float) -> Worst:
    """Return how bad the worst and the median set of just enough columns is.

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
