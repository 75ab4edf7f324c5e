"""Error feedback for lossy codecs (Karimireddy et al., arXiv 1901.09847), and the name of local work.

The compression error of an update is added to the next update. To know it, the client encodes the update here
with the same random numbers (a function of round, attempt and client) that its link uses.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedgc.codecs import Codec, rounding
from fedgc.training.flat import Vector

LOCAL_TRAJECTORY: Final = -1  # the number of the single trajectory of local work


def trajectory_name(chunks: Mapping[int, str]) -> str:
    """Return the name of the trajectory over these chunks.

    >>> chunk_numbers(trajectory_name({3: "north", 1: "south"}))
    (1, 3)
    """
    return json.dumps(sorted(chunks.items()))


def chunk_numbers(name: str) -> tuple[int, ...]:
    """Return the chunks of the trajectory of this name."""
    return tuple(number for number, _ in json.loads(name))


def chunk_names(name: str) -> tuple[str, ...]:
    """Return the chunk names of the trajectory of this name.

    >>> chunk_names(trajectory_name({3: "north", 1: "south"}))
    ('south', 'north')
    """
    return tuple(chunk for _, chunk in json.loads(name))


@dataclass(frozen=True, slots=True, eq=False)
class Residual:
    """The error-feedback residual before and after the update of this stamp."""

    stamp: tuple[int, int, str]  # round, attempt, client
    before: Vector
    after: Vector


def with_error_feedback(
    update: Vector, codec: Codec, stamp: tuple[int, int, str], last: Residual | None
) -> tuple[Vector, Residual]:
    """Return the update plus the residual, and the next residual.

    With the stamp of `last`, the residual before that update is used, so a repeated request gives the same.
    """
    before = np.zeros_like(update) if last is None else last.before if last.stamp == stamp else last.after
    corrected = update + before
    decoded = codec.decode(codec.encode(corrected, rounding(*stamp)), corrected.size)
    return corrected, Residual(stamp, before, corrected - decoded)
