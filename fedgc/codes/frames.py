"""Frames: the columns of the code for a class placement.

A frame is a matrix (blocks x columns) of unit columns. Every set of `blocks` columns should be well
conditioned. The harmonic frame takes points on the moment curve of cosines and sines at
t = 2 pi c / columns, with frequencies 0, 1, 2, ... (odd blocks) or 1/2, 3/2, ... (even blocks, so that
no row is constant). For one and two blocks it is optimal: equal angles are the best spacing of lines in
the plane. For more blocks, searched frames (see `tools/search_frames.py`) are better.
"""

import numpy as np

from fedgc.codes.arrays import Float
from fedgc.codes.frame_table import SEARCHED
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
    """Return the best known frame: a searched one if there is one, else the harmonic one.

    >>> frame_for(8, 4).shape
    (4, 8)
    """
    found = SEARCHED.get((columns, blocks))
    return harmonic_frame(columns, blocks) if found is None else np.array(found)
