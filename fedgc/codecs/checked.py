"""What a codec returns, checked: a codec of another package may return anything."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from fedgc.codecs.codec import Bytes, Codec
from fedgc.errors import BadVector
from fedgc.guards import guarded
from fedgc.plugins import returned


@contextmanager
def naming(wire: str, what: str) -> Iterator[None]:
    """Name the codec, and the vector, in anything that goes wrong.

    >>> with naming("wavelet", "the update of north"):
    ...     raise BadVector("saw 3 numbers, needed 4")
    Traceback (most recent call last):
        ...
    fedgc.errors.BadVector: codec wavelet (the update of north): saw 3 numbers, needed 4
    """
    try:
        with guarded(f"codec {wire}", what):
            yield
    except BadVector as error:
        raise BadVector(f"codec {wire} ({what}): {error}") from error


def sizes_of(codec: Codec, numbers: int) -> range:
    """Return how many bytes a vector of so many numbers can have."""
    largest = codec.largest(numbers)
    return range(largest if codec.fixed else 1, largest + 1)


def needed(sizes: range) -> str:
    """Return these sizes in words.

    >>> needed(range(1, 9)), needed(range(8, 9))
    ('1 to 8', '8')
    """
    return f"{sizes.start} to {sizes.stop - 1}" if len(sizes) != 1 else str(sizes.start)


def encoded(codec: Codec, vector: NDArray[np.float32], rng: np.random.Generator) -> Bytes:
    """Return the bytes of a vector; raise BadVector if they are not as many as `largest` says."""
    data = codec.encode(vector, rng)
    if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 1):
        raise BadVector(f"encode returned {returned(data)}, needed a one-dimensional array of uint8")
    sizes = sizes_of(codec, vector.size)
    if data.size not in sizes:
        seen = f"encode returned {data.size} bytes for {vector.size} numbers"
        raise BadVector(f"{seen}, needed {needed(sizes)}, as `largest` says")
    return np.ascontiguousarray(data)


def tiles_of(codec: Codec, data: Bytes, size: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield the decoded numbers a tile at a time; raise BadVector unless they are `size` float32 numbers."""
    reached = 0
    for first, tile in codec.tiles(data, size):
        if not (isinstance(tile, np.ndarray) and tile.dtype == np.float32 and tile.ndim == 1):
            raise BadVector(f"decode returned {returned(tile)}, needed float32 of shape ({size},)")
        reached += tile.size
        if first != reached - tile.size or reached > size:
            break
        yield first, tile
    if reached != size:
        raise BadVector(f"decode returned {reached} numbers, needed {size}")
