"""Mixing finished chunk updates into one codeword, a tile at a time.

An update of d numbers is cut in `blocks` pieces of L = ceil(d / blocks), the last one short (as if
padded with zeros, without a copy). The codeword of L numbers is

    z[t] = sum over chunks i and blocks k of matrix[i][k] * update_i[k L + t].

A tile stays in the cache while all its terms are added, so each update is read from memory once and
nothing of its size is ever copied. Coefficients are float64 and rounded to the type of the update,
which loses no more than the update has lost already. A client needs the coefficients alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedgc.codes.arrays import Vector
from fedgc.errors import BadVector

TILE: Final = 32_768  # numbers: a few tiles fit in the second-level cache, calls of numpy cost little
Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Coefficients:
    """What one client is told: for each chunk, one coefficient for each block."""

    chunks: tuple[int, ...]
    matrix: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if len(self.chunks) != len(self.matrix):
            raise BadVector(f"{len(self.matrix)} rows of coefficients for {len(self.chunks)} chunks")
        if len(set(map(len, self.matrix))) > 1:
            raise BadVector("rows of coefficients differ in length: each needs one number for each block")


def block_size(size: int, blocks: int) -> int:
    """Return the length of a codeword.

    >>> block_size(10, 4), block_size(0, 4)
    (3, 0)
    """
    return -(-size // blocks)


def encode(
    chunks: Sequence[int], matrix: Rows, updates: Mapping[int, Vector], *, out: Vector | None = None
) -> Vector:
    """Return the codeword of these chunks; `out`, where given, is overwritten.

    >>> encode((7,), ((1.0, 10.0),), {7: np.array([1.0, 2.0, 3.0])}).tolist()
    [31.0, 2.0]
    """
    blocks = _blocks(chunks, matrix)
    held = _checked_updates(chunks, updates)
    length = block_size(held[0].size, blocks)
    codeword = _checked_out(out, length, held[0])
    codeword[...] = 0.0
    _accumulate(held, matrix, codeword)
    return codeword


def fold(row: Sequence[float], piece: Vector, codeword: Vector, offset: int = 0) -> None:
    """Add the piece of one chunk update that starts at `offset` to a codeword in place.

    >>> codeword = np.array([1.0, 1.0])
    >>> fold((1.0, 10.0), np.array([1.0, 2.0, 3.0]), codeword)
    >>> fold((1.0, 10.0), np.array([4.0]), codeword, 3)
    >>> codeword.tolist()
    [32.0, 43.0]
    """
    length = codeword.size
    _checked_updates((0,), {0: piece})
    _checked_out(codeword, length, piece)
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


def _accumulate(held: Sequence[Vector], matrix: Rows, codeword: Vector) -> None:
    """Add all terms tile by tile: a matrix product over the whole blocks, then the short last one."""
    length = codeword.size
    whole = held[0].size // length if length else 0
    heads = [update[: whole * length].reshape(whole, length) for update in held]
    tails = [update[whole * length :] for update in held]
    factors = [np.asarray(row, codeword.dtype) for row in matrix]
    scratch = np.empty(min(TILE, length), codeword.dtype)
    for start in range(0, length, TILE):
        tile = codeword[start : start + TILE]
        for head, tail, factor_b in zip(heads, tails, factors, strict=True):
            product = scratch[: tile.size]
            np.matmul(factor_b[:whole], head[:, start : start + TILE], out=product)
            tile += product
            rest = tail[start : start + TILE]
            if rest.size:
                tile[: rest.size] += factor_b[whole] * rest


def _blocks(chunks: Sequence[int], matrix: Rows) -> int:
    if not chunks:
        raise BadVector("no chunks: a codeword mixes at least 1")
    if len(chunks) != len(matrix):
        raise BadVector(f"{len(matrix)} rows of coefficients for {len(chunks)} chunks")
    lengths = {len(row) for row in matrix}
    if len(lengths) > 1 or 0 in lengths:
        raise BadVector(f"rows of {sorted(lengths)} coefficients: each needs one number for each block")
    return lengths.pop()


def _checked_updates(chunks: Sequence[int], updates: Mapping[int, Vector]) -> list[Vector]:
    missing = [chunk for chunk in chunks if chunk not in updates]
    if missing:
        raise BadVector(f"no update of chunk {missing[0]}: the codeword mixes chunks {list(chunks)[:8]}")
    held = [updates[chunk] for chunk in chunks]
    for chunk, update in zip(chunks, held, strict=True):
        if update.ndim != 1 or update.dtype not in (np.float32, np.float64):
            raise BadVector(
                f"the update of chunk {chunk} is {update.dtype} {update.shape}: "
                "a vector of float32 or float64 is needed"
            )
        if update.size != held[0].size or update.dtype != held[0].dtype:
            raise BadVector(
                f"the update of chunk {chunk} has {update.size} numbers of {update.dtype}, "
                f"that of chunk {chunks[0]} {held[0].size} of {held[0].dtype}"
            )
    return held


def _checked_out(out: Vector | None, length: int, like: Vector) -> Vector:
    if out is None:
        return np.empty(length, like.dtype)
    if out.shape != (length,) or out.dtype != like.dtype:
        raise BadVector(
            f"array for a codeword: saw {out.dtype} {out.shape}: {like.dtype} ({length},) is needed"
        )
    return out
