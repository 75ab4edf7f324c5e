"""How the numbers of a codeword go over the wire: float32, or fewer bits where the code can bear it.

Noise of relative size e on every codeword becomes e * sqrt(amplification) on the sum, so a short format
is allowed only while that stays under a limit. bf16 is rounded to the nearest even. int8 carries a
float32 scale for each group of numbers and is rounded by chance, up or down with the probabilities
that keep the mean: its steps are coarse, and a bias would add up over workers and rounds.
"""

from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.codes.arrays import Vector
from fedgc.errors import BadSetting, BadVector

GROUP: Final = 1024  # numbers that share one int8 scale: 0.4% of overhead


class Wire(StrEnum):
    """A format of numbers on the wire."""

    FLOAT32 = "float32"
    BF16 = "bf16"
    INT8 = "int8"


# Root mean square error relative to the root mean square of normal numbers.
EPSILON: Final = {Wire.FLOAT32: 2.5e-8, Wire.BF16: 1.7e-3, Wire.INT8: 1.1e-2}
_WIDTH: Final = {Wire.FLOAT32: 4, Wire.BF16: 2, Wire.INT8: 1}


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


def packed_bytes(size: int, wire: Wire) -> int:
    """Return the bytes of a piece of `size` numbers.

    >>> [packed_bytes(1500, wire) for wire in Wire]
    [6000, 3000, 1508]
    """
    scales = -(-size // GROUP) if wire is Wire.INT8 else 0
    return size * _WIDTH[wire] + 4 * scales


def pack(piece: Vector, wire: Wire, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return the bytes of one piece of a codeword; chance rounds int8 only.

    >>> pack(np.array([1.0, -2.0], np.float32), Wire.BF16, np.random.default_rng(0)).tolist()
    [128, 63, 0, 192]
    """
    if piece.ndim != 1 or piece.dtype.kind != "f":
        raise BadVector(f"a piece of {piece.dtype} {piece.shape}: a vector of floats is needed")
    single = np.ascontiguousarray(piece, np.dtype("<f4"))
    if wire is Wire.FLOAT32:
        return single.view(np.uint8)
    if wire is Wire.BF16:
        return _to_bf16(single).view(np.uint8)
    return _to_int8(single, rng)


def unpack(packed: NDArray[np.uint8], wire: Wire, size: int) -> NDArray[np.float32]:
    """Return the numbers of one piece.

    >>> unpack(np.array([128, 63, 0, 192], np.uint8), Wire.BF16, 2).tolist()
    [1.0, -2.0]
    """
    if packed.shape != (packed_bytes(size, wire),) or packed.dtype != np.uint8:
        raise BadVector(
            f"{packed.dtype} {packed.shape} came: {packed_bytes(size, wire)} bytes hold {size} numbers"
        )
    if wire is Wire.FLOAT32:
        return packed.view("<f4")
    if wire is Wire.BF16:
        return (packed.view("<u2").astype("<u4") << 16).view("<f4")
    groups = -(-size // GROUP)
    numbers = packed[4 * groups :].view(np.int8).astype(np.float32)
    numbers *= np.repeat(packed[: 4 * groups].view("<f4"), GROUP)[:size]
    return numbers


def _to_bf16(single: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Drop the lower half of each number, rounded to the nearest, ties to even."""
    bits = single.view("<u4")
    halved = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    # the carry would turn the largest NaN into a number: a NaN keeps its upper half and one set bit
    return np.where(np.isnan(single), bits >> 16 | 0x40, halved).astype("<u2")


def _to_int8(single: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Write the scales of all groups, then the rounded numbers."""
    if not np.isfinite(single).all():
        raise BadVector("NaN or Inf has no int8 form")
    groups = -(-single.size // GROUP)
    packed = np.empty(packed_bytes(single.size, Wire.INT8), np.uint8)
    scales = packed[: 4 * groups].view("<f4")
    levels = packed[4 * groups :].view(np.int8)
    for group in range(groups):
        part = slice(group * GROUP, (group + 1) * GROUP)
        scales[group] = np.abs(single[part]).max() / np.float32(127)
        if scales[group] > 0:
            chance = rng.random(single[part].size, np.float32)
            levels[part] = np.clip(np.floor(single[part] / scales[group] + chance), -127, 127)
        else:
            levels[part] = 0
    return packed
