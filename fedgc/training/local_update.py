"""Local work: one model over all chunks of a client. Its name, its data, its update on few bits.

An update of local work may travel by a codec that loses some of it. What was lost is kept and added to the
next update (error feedback: Karimireddy et al., arXiv 1901.09847). The client encodes here as its link will,
because the random numbers are a function of round, attempt and client.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedgc.codecs import Codec, rounding
from fedgc.training.flat import Vector

WHOLE: Final = -1  # the number under which the one model stands among the trajectories


def title(chunks: Mapping[int, str]) -> str:
    """Return the name of the model over these chunks.

    >>> numbers(title({3: "north", 1: "south"}))
    (1, 3)
    """
    return json.dumps(sorted(chunks.items()))


def numbers(of: str) -> tuple[int, ...]:
    """Return the chunks of the model of this title."""
    return tuple(number for number, _ in json.loads(of))


def names(of: str) -> tuple[str, ...]:
    """Return the names of the chunks of the model of this title.

    >>> names(title({3: "north", 1: "south"}))
    ('south', 'north')
    """
    return tuple(name for _, name in json.loads(of))


@dataclass(frozen=True, slots=True, eq=False)
class Rest:
    """What rounding had cost before the update of this stamp, and what it has cost with it."""

    stamp: tuple[int, int, str]  # round, attempt, client
    before: Vector
    after: Vector


def with_rest(
    update: Vector, codec: Codec, stamp: tuple[int, int, str], last: Rest | None
) -> tuple[Vector, Rest]:
    """Return an update with what rounding has cost so far in it, and the rest that the next one will find.

    The same update asked for again is the same again.
    """
    before = np.zeros_like(update) if last is None else last.before if last.stamp == stamp else last.after
    whole = update + before
    rounded = codec.decode(codec.encode(whole, rounding(*stamp)), whole.size)
    return whole, Rest(stamp, before, whole - rounded)
