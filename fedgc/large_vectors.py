"""Large vectors: read by slices, and received into memory or, where it is short, into files.

Writing a mapped file costs a disk what the vector has bytes, sooner or later, so an array is in memory while
`LEFT_ARRAYS` more of its size stay available. Otherwise it is in a file, whose memory the system can take
back.

The files have no name. A file needs as much room as the vector has bytes, and all of it is reserved when the
array is made. The room serves the next array once nothing refers to this one, and is free when the process
has ended, however it did.
"""

import math
import mmap
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fedgc.errors import EdgeFailed, system_errors

TILE: Final = 1 << 15  # numbers: the tiles of some vectors stay in the cache
SUMMED: Final = 1 << 13  # numbers summed in single precision; BLAS sums so few in one thread
MEASURED: Final = 8 * SUMMED  # numbers measured at a time
THREADED: Final = 1 << 22  # numbers of a vector that is worth threads
MOST_THREADS: Final = 8  # then memory is the limit
MOST_SPARE: Final = 4
IN_MEMORY_BYTES: Final = 16 * 2**20  # a smaller array is not worth a file
LARGEST_BYTES: Final = (1 << 63) - 1  # that the system can be asked for
LEFT_ARRAYS: Final = 3  # of the same size, for which memory is left when an array takes memory


Difference = Callable[[slice, NDArray[np.float32]], NDArray[np.float32]]


class Readable(Protocol):
    """A vector that is read by slices: an array, or one that is computed as it is read."""

    @property
    def size(self) -> int:
        """How many numbers it has."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Their type."""

    def __getitem__(self, part: slice, /) -> NDArray[Any]:
        """Return a part, of step 1; do not write to it."""


def in_tiles(size: int, act: Callable[[slice], None]) -> None:
    """Call a function for each tile of a vector; of a large vector for several at once, in threads.

    The tiles are always the same, so the result does not depend on the number of threads.

    >>> vector = np.arange(3.0)
    >>> in_tiles(3, lambda tile: np.negative(vector[tile], out=vector[tile]))
    >>> vector.tolist()
    [-0.0, -1.0, -2.0]
    """
    tiles = [slice(first, min(first + TILE, size)) for first in range(0, size, TILE)]
    threads = min(os.cpu_count() or 1, MOST_THREADS) if size >= THREADED else 1
    if threads == 1:
        for tile in tiles:
            act(tile)
        return

    def act_on(first: int) -> None:
        for tile in tiles[first::threads]:
            act(tile)

    with ThreadPoolExecutor(threads) as pool:
        for each in [pool.submit(act_on, first) for first in range(threads)]:
            each.result()


def squared_length(difference: Difference, size: int) -> float:
    """Return the squared length of a vector, whose tiles `difference` computes, if need be into an array.

    `SUMMED` numbers at a time are summed in single precision, so few that the rounding is that of a few
    numbers, and their sums in double precision. Where they are too long for single precision, they are summed
    in double.
    """
    room, total = np.empty(min(MEASURED, size), np.float32), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, size, MEASURED):
            part = slice(first, min(first + MEASURED, size))
            values = difference(part, room[: part.stop - first])
            whole = values.size - values.size % SUMMED
            rows = values[:whole].reshape(-1, SUMMED)
            squared = float(np.vecdot(rows, rows).sum(dtype=np.float64)) + float(
                values[whole:] @ values[whole:]
            )
            total += squared if math.isfinite(squared) else _squared(values)
    return total


def _squared(values: NDArray[np.float32]) -> float:
    wide = values.astype(np.float64)
    return float(wide @ wide)


class Scratch:
    """Makes arrays that are larger than `in_memory_bytes`: in memory while that is plentiful, else in files.

    The rooms of a few arrays that are done with serve again: their pages are there already.

    >>> Scratch().empty(3).shape
    (3,)
    """

    def __init__(
        self,
        folder: Path | None = None,
        in_memory_bytes: int = IN_MEMORY_BYTES,
        available: Callable[[], int | None] = lambda: None,
    ) -> None:
        """By default the folder is that of temporary files, and it is not known how much memory there is."""
        self.folder: Final = folder or Path(tempfile.gettempdir())
        self._in_memory_bytes = in_memory_bytes
        self._available = available
        self._spare: deque[mmap.mmap] = deque(maxlen=MOST_SPARE)

    def empty(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return an array of so many bytes, or raise EdgeFailed if there is no room for it."""
        if size_bytes <= self._in_memory_bytes:
            return np.empty(size_bytes, np.uint8)
        mapped = self._spare_of(size_bytes) or self._new(size_bytes)
        array = np.frombuffer(mapped, np.uint8)
        weakref.finalize(array, self._spare.append, mapped).atexit = False  # views keep the array
        return array

    def _spare_of(self, size_bytes: int) -> mmap.mmap | None:
        """Take a spare room; those of another size are given up."""
        while self._spare:
            with suppress(IndexError):  # another thread was quicker
                if len(mapped := self._spare.pop()) == size_bytes:
                    return mapped
        return None

    def _new(self, size_bytes: int) -> mmap.mmap:
        descriptor = self.file(size_bytes)
        try:
            return mmap.mmap(descriptor, size_bytes)
        finally:
            os.close(descriptor)

    def file(self, size_bytes: int, *, is_small: bool = False) -> int:
        """Return the descriptor of a new file without a name, with all of its room.

        A small one is in memory in any case. A write to a mapped file on a full disk would kill the process.

        Raises:
            EdgeFailed: There is no room for it.
        """
        if size_bytes > LARGEST_BYTES:
            raise EdgeFailed(f"no room for a vector of {size_bytes} bytes, needed at most {LARGEST_BYTES}")
        in_memory = self._in_memory(size_bytes) if is_small or self._has_memory(size_bytes) else None
        return self._in_file(size_bytes) if in_memory is None else in_memory

    def _has_memory(self, size_bytes: int) -> bool:
        return (self._available() or 0) >= (1 + LEFT_ARRAYS) * size_bytes

    def _in_memory(self, size_bytes: int) -> int | None:
        """Reserve memory, all at once, so that what is available stays true; return None if it is short."""
        if hasattr(os, "memfd_create"):
            with suppress(OSError):
                return _reserved(os.memfd_create("fedgc"), size_bytes)
        return None

    def _in_file(self, size_bytes: int) -> int:
        with system_errors(f"no room for a vector of {size_bytes} bytes in {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=self.folder) as file:
                return _reserved(os.dup(file.fileno()), size_bytes)


def _reserved(descriptor: int, size_bytes: int) -> int:
    """Reserve the room of a new file, and return its descriptor."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size_bytes)
        else:
            os.ftruncate(descriptor, size_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
