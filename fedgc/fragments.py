"""Parts of the model that are exchanged in turn (Streaming DiLoCo: Douillard et al., arXiv 2501.18512).

The round that starts from model `version` exchanges one fragment, and leaves the others as they are. So each
fragment is exchanged once in as many synced rounds as there are fragments, and an exchange takes a fraction
of the bytes.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

TILE: Final = 1 << 15  # numbers at a time

Vector = NDArray[np.float32]


def fragment_number(version: int, fragments: int, size: int) -> int:
    """Return the number of the fragment that the round from this model exchanges.

    >>> [fragment_number(version, 3, 8) for version in range(4)]
    [0, 1, 2, 0]
    """
    return version % max(1, min(fragments, size))


def fragment_of(version: int, fragments: int, size: int) -> slice:
    """Return the part of a vector of `size` numbers that the round from this model exchanges.

    >>> [fragment_of(version, 3, 8) for version in range(3)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
    """
    at, count = fragment_number(version, fragments, size), max(1, min(fragments, size))
    return slice(size * at // count, size * (at + 1) // count)


def numbers_of(part: slice) -> int:
    """Return how many numbers a fragment has."""
    return int(part.stop - part.start)


def buffers_in(part: slice, size: int, buffers: int) -> int:
    """Return how many numbers of a fragment belong to buffers, the last of a vector of `size` numbers.

    >>> [buffers_in(fragment_of(version, 3, 8), 8, 4) for version in range(3)]
    [0, 1, 3]
    """
    return max(0, int(part.stop) - max(int(part.start), size - buffers))


def borders_of(fragments: int, size: int) -> tuple[int, ...]:
    """Return where each fragment begins.

    >>> borders_of(3, 8)
    (0, 2, 5)
    """
    return tuple(fragment_of(at, fragments, size).start for at in range(max(1, min(fragments, size))))


def largest_fragment(fragments: int, size: int) -> int:
    """Return how many numbers the largest fragment has.

    >>> largest_fragment(3, 8)
    3
    """
    return -(-size // max(1, min(fragments, size)))


def mix(vector: Vector, model: Vector, part: slice, own: float) -> None:
    """Move a part of a vector to that of a model, but for the share `own`; in place.

    >>> vector = np.float32([1, 2, 3])
    >>> mix(vector, np.float32([5, 6, 7]), slice(1, 3), 0.5)
    >>> vector.tolist()
    [1.0, 4.0, 5.0]
    """
    room: NDArray[Any] = np.empty(min(TILE, part.stop - part.start), np.float32)
    for first in range(part.start, part.stop, TILE):
        tile = slice(first, min(first + TILE, part.stop))
        if own:
            vector[tile] *= np.float32(own)
            vector[tile] += np.multiply(model[tile], np.float32(1 - own), out=room[: tile.stop - first])
        else:
            vector[tile] = model[tile]
