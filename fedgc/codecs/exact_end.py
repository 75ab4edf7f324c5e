"""A codec for vectors that end with numbers which travel in float32: the buffers of a model.

Buffers, such as the running variances of batch normalisation, differ from parameters by orders of magnitude.
In one group with them, the rounding step of the group may exceed a variance, which then turns negative, or
parameters beside a large variance are rounded to 0. There are few buffers.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.codecs.checked import encoded, tiles_of
from fedgc.codecs.codec import Bytes, Codec
from fedgc.codecs.make import EXACT, MANY, make_codec
from fedgc.errors import BadVector

NUMBER: Final = np.dtype("<f4")


class ExactEnd(Codec):
    """Encodes the last `exact` numbers of a vector as float32, after those of another codec.

    >>> codec = ExactEnd(make_codec("int8"), 1)
    >>> data = codec.encode(np.float32([1e-3, 4e8]), np.random.default_rng(0))
    >>> codec.decode(data, 2).tolist() == np.float32([1e-3, 4e8]).tolist()
    True
    """

    def __init__(self, codec: Codec, exact: int) -> None:
        self._codec, self._exact = codec, exact
        self.fixed, self.decay = codec.fixed, codec.decay  # type: ignore[misc]  # of the codec, not the class

    def encode(self, vector: NDArray[np.float32], rng: np.random.Generator) -> Bytes:
        """Return the bytes of the other codec, then those of the last numbers."""
        first = self._coded(vector.size)
        end = np.ascontiguousarray(vector[first:], NUMBER).view(np.uint8)
        return np.concatenate([encoded(self._codec, vector[:first], rng), end]) if first else end.copy()

    def decode(self, data: Bytes, size: int) -> NDArray[np.float32]:
        """Return the numbers."""
        vector = np.empty(size, np.float32)
        for first, tile in self.tiles(data, size):
            vector[first : first + tile.size] = tile
        return vector

    def tiles(self, data: Bytes, size: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Return the numbers a tile at a time; raise BadVector where the other codec lacks some."""
        first = self._coded(size)
        border = data.size - NUMBER.itemsize * (size - first)
        if border < 0:
            raise BadVector(f"saw {data.size} bytes, needed 4 for each of the last {size - first} numbers")
        if first:
            yield from tiles_of(self._codec, data[:border], first)
        yield first, data[border:].copy().view(NUMBER)

    def largest(self, size: int) -> int:
        """Return the largest number of bytes of `size` numbers."""
        return self._with_end(self._codec.largest, size)

    def expected(self, size: int) -> int:
        """Return the usual number of bytes of `size` numbers."""
        return self._with_end(self._codec.expected, size)

    def _coded(self, size: int) -> int:
        """Return how many of `size` numbers the other codec encodes."""
        return max(0, size - self._exact)

    def _with_end(self, bytes_of: Callable[[int], int], size: int) -> int:
        first = self._coded(size)
        return (bytes_of(first) if first else 0) + NUMBER.itemsize * (size - first)


def codec_of(wire: str, exact: int) -> Codec:
    """Return the codec of this name for vectors whose last `exact` numbers travel in float32.

    >>> codec_of("int8", 2).largest(1002)
    1012
    """
    codec = make_codec(wire)
    return ExactEnd(codec, exact) if exact and wire != EXACT else codec


@lru_cache(maxsize=256)
def share_of(wire: str, size: int = MANY, exact: int = 0) -> float:
    """Return the usual bytes of `size` numbers by this codec over those of float32; by default of many.

    >>> share_of("float32"), round(share_of("int8"), 3), share_of("int8", 10, exact=2)
    (1.0, 0.251, 0.5)
    """
    return codec_of(wire, exact).expected(size) / (NUMBER.itemsize * size)
