"""Number formats on the wire: float32, bf16, int8 and int4, and the rule that selects one for codewords.

Noise of relative size e on every codeword becomes e * sqrt(amplification) on the sum, so a short format
is allowed only while that stays under a limit. bf16 is rounded to nearest even. int8 and int4 have a float32
scale for each group of numbers and use unbiased stochastic rounding, since a bias would add up over clients
and rounds. int4 is only for the updates of local work, whose clients use error feedback.
"""

import zlib
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedgc.errors import BadSetting, BadVector

GROUP: Final = 1024  # numbers per scale: 0.4% of overhead at 8 bits
Vector = np.ndarray[Any, np.dtype[Any]]  # of floats
TILE: Final = 32 * GROUP  # numbers rounded at a time: bounded scratch, within the second-level cache


class Wire(StrEnum):
    """A format of numbers on the wire."""

    FLOAT32 = "float32"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"


# Root mean square error relative to the root mean square of normally distributed numbers. That of float32 is
# of its sums: 3e-8 to 1.1e-7 were measured. That of int8 is larger where few numbers are: 0.015 for an update
# of a small perceptron, 0.037 for Student's t with 3 degrees of freedom, 0.1 for one such number in a group.
EPSILON: Final = {Wire.FLOAT32: 1e-7, Wire.BF16: 1.7e-3, Wire.INT8: 1.1e-2, Wire.INT4: 0.2}
CODED: Final = (Wire.FLOAT32, Wire.BF16, Wire.INT8)  # the formats of codewords
_BITS: Final = {Wire.FLOAT32: 32, Wire.BF16: 16, Wire.INT8: 8, Wire.INT4: 4}
_TOP: Final = {Wire.INT8: 127, Wire.INT4: 7}  # the largest level


def shortest_wire(amplification: float, error_limit: float) -> Wire:
    """Return the shortest format that keeps the relative error of the sum under the limit.

    >>> shortest_wire(4.0, 0.1), shortest_wire(4.0, 0.01), shortest_wire(4.0, 1e-6)
    (<Wire.INT8: 'int8'>, <Wire.BF16: 'bf16'>, <Wire.FLOAT32: 'float32'>)
    """
    for wire in (Wire.INT8, Wire.BF16, Wire.FLOAT32):
        if EPSILON[wire] * amplification**0.5 <= error_limit:
            return wire
    least = EPSILON[Wire.FLOAT32] * amplification**0.5
    raise BadSetting(
        f"error limit {error_limit}: at amplification {amplification:.3g} float32 leaves {least:.1e}"
    )


def shapes(most_blocks: int, *, short: bool) -> tuple[tuple[Wire, int], ...]:
    """Return formats and numbers of blocks, shortest codewords first; among equals, the more exact first.

    >>> [f"{wire}/{blocks}" for wire, blocks in shapes(2, short=True)]
    ['int8/2', 'bf16/2', 'int8/1', 'float32/2', 'bf16/1', 'float32/1']
    >>> [f"{wire}/{blocks}" for wire, blocks in shapes(3, short=False)]
    ['float32/3', 'float32/2', 'float32/1']
    """
    wires = CODED if short else (Wire.FLOAT32,)
    every = ((wire, blocks) for blocks in range(most_blocks, 0, -1) for wire in wires)
    return tuple(
        sorted(every, key=lambda shape: (packed_bytes(GROUP, shape[0]) / shape[1], EPSILON[shape[0]]))
    )


def packed_bytes(size: int, wire: Wire) -> int:
    """Return the bytes of a piece of `size` numbers.

    >>> [packed_bytes(1501, wire) for wire in Wire]
    [6004, 3002, 1509, 759]
    """
    return 4 * _groups(size, wire) + -(-size * _BITS[wire] // 8)


def _groups(size: int, wire: Wire) -> int:
    return -(-size // GROUP) if wire in _TOP else 0


def rounding(number: int, attempt: int, client: str) -> np.random.Generator:
    """Return the generator for stochastic rounding, seeded by round, attempt and client.

    A process that restarts sends the same bytes and can resume in the middle of them.
    """
    return np.random.default_rng([number, attempt, zlib.crc32(client.encode())])


def pack(piece: Vector, wire: Wire, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return the bytes of one piece of a codeword; only int8 and int4 use the generator.

    >>> pack(np.array([1.0, -2.0], np.float32), Wire.BF16, np.random.default_rng(0)).tolist()
    [128, 63, 0, 192]
    """
    if piece.ndim != 1 or piece.dtype.kind != "f":
        raise BadVector(f"a piece of {piece.dtype} {piece.shape}: a vector of floats is needed")
    single = np.ascontiguousarray(piece, np.dtype("<f4"))
    if wire is Wire.FLOAT32:
        return single.view(np.uint8)
    if wire is Wire.BF16:
        halved = np.empty(single.size, "<u2")
        for at in range(0, single.size, TILE):
            halved[at : at + TILE] = to_bf16(single[at : at + TILE])
        return halved.view(np.uint8)
    return _to_levels(single, wire, rng)


def unpack(packed: NDArray[np.uint8], wire: Wire, size: int) -> NDArray[np.float32]:
    """Return the numbers of one piece.

    >>> unpack(np.array([128, 63, 0, 192], np.uint8), Wire.BF16, 2).tolist()
    [1.0, -2.0]
    """
    if wire is Wire.FLOAT32:
        _check_bytes(packed, wire, size)
        return packed.view("<f4")
    numbers = np.empty(size, np.float32)
    for _ in _tiles(packed, wire, size, lambda first, end: numbers[first:end]):
        pass
    return numbers


def unpacked_tiles(
    packed: NDArray[np.uint8], wire: Wire, size: int
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Return the numbers of one piece, `TILE` at a time, with the position of the first of each tile.

    A tile is overwritten by the next one.
    """
    room = np.empty(min(TILE, size), np.float32)
    return _tiles(packed, wire, size, lambda first, end: room[: end - first])


def _tiles(
    packed: NDArray[np.uint8], wire: Wire, size: int, room: Callable[[int, int], NDArray[np.float32]]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Write each tile where `room` says, and return it."""
    _check_bytes(packed, wire, size)
    halves = np.empty(2 * min(TILE, size), np.int8)
    scales = packed[: 4 * _groups(size, wire)].view("<f4")
    for first in range(0, size, TILE):
        tile = room(first, min(first + TILE, size))
        at = scales.nbytes + first * _BITS[wire] // 8
        data = packed[at : at + -(-tile.size * _BITS[wire] // 8)]
        if wire is Wire.FLOAT32:
            tile[...] = data.view("<f4")
        elif wire is Wire.BF16:
            np.left_shift(data.view("<u2"), 16, out=tile.view("<u4"), dtype="<u4")
        else:
            _from_levels(data, wire, tile, halves)
            _scale(tile, scales[first // GROUP :])
        yield first, tile


def _check_bytes(packed: NDArray[np.uint8], wire: Wire, size: int) -> None:
    if packed.shape != (packed_bytes(size, wire),) or packed.dtype != np.uint8:
        raise BadVector(
            f"{packed.dtype} {packed.shape} came: {packed_bytes(size, wire)} bytes hold {size} numbers"
        )


def to_bf16(single: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Drop the lower half of each number, rounded to the nearest, ties to even."""
    bits = single.view("<u4")
    halved = bits >> 16
    halved &= 1
    halved += 0x7FFF
    halved += bits
    halved >>= 16
    # the carry would turn the largest NaN into a number: a NaN keeps its upper half and one set bit
    if (odd := np.isnan(single)).any():
        halved[odd] = bits[odd] >> 16 | 0x40
    return halved.astype("<u2")


def _to_levels(single: NDArray[np.float32], wire: Wire, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Write the scales of all groups, then the rounded numbers."""
    groups, top = _groups(single.size, wire), _TOP[wire]
    packed = np.empty(packed_bytes(single.size, wire), np.uint8)
    scales = packed[: 4 * groups].view("<f4")
    room = min(TILE, -(-single.size // GROUP) * GROUP)
    padded, scratch, levels = np.empty(room, np.float32), np.empty(room, np.float32), np.empty(room, np.int8)
    for first in range(0, single.size, TILE):
        part = single[first : first + TILE]
        count = -(-part.size // GROUP)
        rows, absolute = (each[: count * GROUP].reshape(count, GROUP) for each in (padded, scratch))
        padded[: part.size], padded[part.size :] = part, 0
        scale = np.abs(rows, out=absolute).max(axis=1)
        if not np.isfinite(scale).all():
            raise BadVector(f"NaN or Inf has no {wire} form")
        scale /= np.float32(top)
        scales[first // GROUP : first // GROUP + count] = scale
        scale[scale == 0] = 1
        rows /= scale[:, None]
        numbers = padded[: part.size]
        numbers += _noise(rng, scratch[: part.size])
        np.clip(np.floor(numbers, out=numbers), -top, top, out=numbers)
        levels[: part.size] = numbers
        folded = _folded(levels[: part.size], wire)
        at = 4 * groups + first * _BITS[wire] // 8
        packed[at : at + folded.size] = folded
    return packed


def _noise(rng: np.random.Generator, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Fill `numbers` with noise between 0 and 1, in steps of 2^-16: a quarter of the time of `rng.random`."""
    words = rng.bit_generator.random_raw(-(-numbers.size // 4)).view(np.uint16)
    numbers[...] = words[: numbers.size]
    numbers += np.float32(0.5)
    numbers *= np.float32(2.0**-16)
    return numbers


def _folded(levels: NDArray[np.int8], wire: Wire) -> NDArray[np.uint8]:
    """Pack two 4-bit levels into a byte, the first in its lower half."""
    if wire is Wire.INT8:
        return levels.view(np.uint8)
    halves = np.zeros(levels.size + levels.size % 2, np.uint8)
    halves[: levels.size] = levels.view(np.uint8) & 0x0F
    pairs = halves.view("<u2")
    folded: NDArray[np.uint8] = (pairs | pairs >> 4).astype(np.uint8)
    return folded


def _from_levels(
    data: NDArray[np.uint8], wire: Wire, numbers: NDArray[np.float32], halves: NDArray[np.int8]
) -> None:
    """Write the levels in `data` into `numbers`; `halves` is room for twice as many."""
    if wire is Wire.INT8:
        numbers[...] = data.view(np.int8)
        return
    np.left_shift(data, 4, out=halves[: 2 * data.size : 2].view(np.uint8))
    halves[1 : 2 * data.size : 2] = data.view(np.int8)
    signed = np.right_shift(halves[: 2 * data.size], 4, out=halves[: 2 * data.size])  # restores the sign
    numbers[...] = signed[: numbers.size]


def _scale(numbers: NDArray[np.float32], scales: NDArray[np.float32]) -> None:
    """Multiply each group by its scale, in place."""
    whole = numbers.size // GROUP
    rows = numbers[: whole * GROUP].reshape(whole, GROUP)
    rows *= scales[:whole, None]
    if numbers.size > whole * GROUP:
        numbers[whole * GROUP :] *= scales[whole]
