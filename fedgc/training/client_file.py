"""The file in which simulated clients keep their states: one file for all, in extents that serve again.

A simulation has few models in memory and many clients, so what a client keeps lies in a file. Processes that
train read and write it at the same time; the one that owns `Extents` decides where.
"""

import os
from dataclasses import dataclass
from mmap import PROT_READ, mmap
from pathlib import Path
from typing import Final
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from fedgc.errors import system_errors

PAGE: Final = 4096
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Extent:
    """A part of the file: `room` bytes, of which `size` are in use."""

    offset: int
    room: int
    size: int = 0


class Extents:
    """Gives out parts of a file.

    >>> extents = Extents()
    >>> first, second = extents.reserve(5), extents.reserve(5)
    >>> extents.release(first)
    >>> first.room, second.offset, extents.reserve(9) == first
    (4096, 4096, True)
    """

    def __init__(self) -> None:
        self._free: dict[int, list[int]] = {}  # offsets by room
        self._end = 0

    def reserve(self, size: int) -> Extent:
        """Return a part with room for this many bytes."""
        needed = max(PAGE, -(-size // PAGE) * PAGE)
        room = min((room for room, offsets in self._free.items() if offsets and room >= needed), default=0)
        if room:
            return Extent(self._free[room].pop(), room)
        self._end += needed
        return Extent(self._end - needed, needed)

    def release(self, extent: Extent) -> None:
        """Let a part serve again."""
        self._free.setdefault(extent.room, []).append(extent.offset)


class ClientFile:
    """The file, kept open by each process that reads and writes it."""

    def __init__(self, path: Path) -> None:
        """Open the file; make it if there is none."""
        with system_errors(f"training: the states of clients cannot be opened: {path}"):
            self._number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        finalize(self, os.close, self._number)

    def write(self, extent: Extent, *parts: bytes | memoryview) -> Extent:
        """Write these parts one after the other to an extent with room for them; return it with its size."""
        end = extent.offset
        with system_errors("training: the states of clients cannot be written"):
            for part in parts:
                left = memoryview(part).cast("B")
                while left:
                    done = os.pwrite(self._number, left, end)
                    left, end = left[done:], end + done
        return Extent(extent.offset, extent.room, end - extent.offset)

    def read(self, extent: Extent) -> Bytes:
        """Return the bytes of an extent, mapped to memory; they cannot be written to."""
        with system_errors("training: the states of clients cannot be read", kinds=(OSError, ValueError)):
            found = mmap(self._number, extent.size, prot=PROT_READ, offset=extent.offset)
        return np.frombuffer(found, np.uint8)
