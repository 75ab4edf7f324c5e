"""The shipped codecs: float32, bf16, and 8 or 4 bits with a scale for each group of numbers."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgc.codecs.codec import Bytes, Codec
from fedgc.codecs.formats import Wire, pack, packed_bytes, unpack, unpacked_tiles


class _Format(Codec):
    """The base of the codecs that use the formats of codewords."""

    wire: ClassVar[Wire]

    def encode(self, vector: NDArray[np.float32], rng: np.random.Generator) -> Bytes:
        """Return the packed numbers."""
        return pack(vector, self.wire, rng)

    def decode(self, data: Bytes, size: int) -> NDArray[np.float32]:
        """Return the numbers."""
        return unpack(data, self.wire, size)

    def tiles(self, data: Bytes, size: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Return the numbers a tile at a time."""
        return unpacked_tiles(data, self.wire, size)

    def largest(self, size: int) -> int:
        """Return the bytes of `size` numbers."""
        return packed_bytes(size, self.wire)


class Float32(_Format):
    """Sends every number unchanged."""

    summary = "4 bytes a number, exact"
    wire = Wire.FLOAT32


class BF16(_Format):
    """Drops the lower half of every number."""

    summary = "2 bytes a number"
    wire = Wire.BF16


class Int8(_Format):
    """Rounds every number at random to one of 255 levels of its group."""

    summary = "1 byte a number"
    wire = Wire.INT8


class Int4(_Format):
    """Rounds every number at random to one of 15 levels of its group."""

    summary = "half a byte a number"
    wire = Wire.INT4
