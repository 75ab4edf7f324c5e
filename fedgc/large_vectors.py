"""Large vectors: read by slices, and received into files so that the system can take back their memory.

The files have no name. A file needs as much room on the disk as the vector has bytes, and all of it is
reserved when the array is made. The room is free again once nothing refers to the array, also if the process
is killed. Where the disk is quick or there is memory left, the array is as quick as memory.
"""

import mmap
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fedgc.errors import EdgeFailed

IN_MEMORY_BYTES: Final = 16 * 2**20  # a smaller array is not worth a file


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


@dataclass(frozen=True, slots=True)
class Scratch:
    """A folder for arrays that are larger than `in_memory_bytes`.

    >>> Scratch().empty(3).shape
    (3,)
    """

    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    in_memory_bytes: int = IN_MEMORY_BYTES

    def empty(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return an array of so many bytes, or raise EdgeFailed if the disk has no room for it."""
        if size_bytes <= self.in_memory_bytes:
            return np.empty(size_bytes, np.uint8)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=self.folder) as file:
                _reserve(file.fileno(), size_bytes)
                return np.frombuffer(mmap.mmap(file.fileno(), size_bytes), np.uint8)
        except OSError as error:
            raise EdgeFailed(
                f"no room for a vector of {size_bytes} bytes in {self.folder}: {error.strerror or error}"
            ) from error


def _reserve(descriptor: int, size_bytes: int) -> None:
    """Reserve room for a whole file: a write to a mapped file on a full disk would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
    else:
        os.ftruncate(descriptor, size_bytes)
