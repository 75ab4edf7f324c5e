"""Encoding: mix finished chunk updates into one codeword, tile by tile.

An update of d numbers is cut into `blocks` pieces of L = ceil(d / blocks); the last one is shorter and
counts as padded with zeros. The codeword of L numbers is

    z[t] = sum over chunks i and blocks k of matrix[i][k] * update_i[k L + t].

An update is never copied. Coefficients are float64, rounded to the type of the update. A client needs only
the coefficients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedgc.codes.arrays import Vector
from fedgc.errors import BadVector

TILE: Final = 32_768  # numbers: a few tiles fit in the second-level cache, calls of numpy cost little


@dataclass(frozen=True, slots=True)
class Coefficients:
    """What the server sends a client: for each chunk, one coefficient for each block."""

    chunks: tuple[int, ...]
    matrix: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if len(self.chunks) != len(self.matrix):
            raise BadVector(f"{len(self.matrix)} rows of coefficients for {len(self.chunks)} chunks")
        if len(set(map(len, self.matrix))) > 1:
            raise BadVector("rows of coefficients differ in length: each needs one number for each block")

    def at(self, places: Sequence[int]) -> "Coefficients":
        """Return the rows at these places, with their chunks."""
        return Coefficients(
            tuple(self.chunks[place] for place in places), tuple(self.matrix[place] for place in places)
        )


def block_size(size: int, blocks: int) -> int:
    """Return the length of a codeword.

    >>> block_size(10, 4), block_size(0, 4)
    (3, 0)
    """
    return -(-size // blocks)


def fold(row: Sequence[float], piece: Vector, codeword: Vector, offset: int = 0) -> None:
    """Add the piece of one chunk update that starts at `offset` to a codeword in place.

    >>> codeword = np.array([1.0, 1.0])
    >>> fold((1.0, 10.0), np.array([1.0, 2.0, 3.0]), codeword)
    >>> fold((1.0, 10.0), np.array([4.0]), codeword, 3)
    >>> codeword.tolist()
    [32.0, 43.0]
    """
    length = codeword.size
    if piece.ndim != 1 or piece.dtype not in (np.float32, np.float64):
        raise BadVector(f"an update is {piece.dtype} {piece.shape}: a vector of float32 or float64 is needed")
    if codeword.dtype != piece.dtype:
        raise BadVector(f"array for a codeword: saw {codeword.dtype}: {piece.dtype} is needed")
    if not 0 <= offset <= offset + piece.size <= len(row) * length:
        raise BadVector(
            f"numbers {offset} to {offset + piece.size} of an update: "
            f"{len(row)} blocks of {length} are too short for them"
        )
    at = 0
    while at < piece.size:
        block, place = divmod(offset + at, length)
        part = piece[at : at + min(TILE, length - place)]
        codeword[place : place + part.size] += codeword.dtype.type(row[block]) * part
        at += part.size
