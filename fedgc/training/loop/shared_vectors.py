"""The memory that a client and its training script share: a few counters and two vectors of the model's size.

The client writes the common model; the script writes the model that it has trained. Counters of 8 bytes are
written by the script alone, so that a step costs the script no system call. The memory is an anonymous file
whose descriptor travels over the local socket.
"""

import fcntl
import mmap
import os
import tempfile
from contextlib import suppress
from typing import Final

import numpy as np

from fedgc.errors import EdgeFailed, text_of
from fedgc.training.flat import Vector

HEADER_BYTES: Final = mmap.PAGESIZE
# Counters of the script, by their place in the header: `counts` holds integers, `sums` floats.
STEPS, LOGGED, GENERATION = range(3)  # the last tells to which command to train the others belong
SECONDS, LOSSES = range(8, 10)


class SharedVectors:
    """One mapping of the shared memory.

    >>> shared = SharedVectors.create(3)
    >>> shared.common[:] = 1.0
    >>> other = SharedVectors(os.dup(shared.descriptor), 3)
    >>> other.common.tolist(), other.trained.tolist()
    ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    """

    def __init__(self, descriptor: int, size: int) -> None:
        """Map the file behind this descriptor, which is owned from now on; vectors have `size` numbers."""
        self.descriptor: Final = descriptor
        try:
            self._map: Final = mmap.mmap(descriptor, total_bytes(size))
        except (OSError, ValueError) as error:
            os.close(descriptor)
            raise EdgeFailed(f"shared memory of {size} numbers: {text_of(error)}") from error
        self.counts: Final = np.frombuffer(self._map, np.int64, 8)
        self.sums: Final = np.frombuffer(self._map, np.float64, 16)  # the first 8 are the counts
        self.common: Final[Vector] = np.frombuffer(self._map, np.float32, size, HEADER_BYTES)
        self.trained: Final[Vector] = np.frombuffer(self._map, np.float32, size, HEADER_BYTES + 4 * size)

    @classmethod
    def create(cls, size: int) -> "SharedVectors":
        """Make new memory, all zeros; raise EdgeFailed if there is no room for it."""
        room = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
        if size < 1 or total_bytes(size) > room:
            raise EdgeFailed(
                f"shared memory: saw a model of {size} numbers, needed 1 to {room // (2 * 4)} on this machine"
            )
        descriptor = _anonymous_file()
        try:
            os.ftruncate(descriptor, total_bytes(size))
            _seal(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise EdgeFailed(f"shared memory of {size} numbers: {text_of(error)}") from error
        return cls(descriptor, size)

    def close(self) -> None:
        """Close the descriptor; the memory is freed with the last array that views it."""
        os.close(self.descriptor)


def total_bytes(size: int) -> int:
    """Return the size of the shared memory for vectors of `size` numbers."""
    return HEADER_BYTES + 2 * 4 * size


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedgc", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:  # macOS has no memfd
        return os.dup(file.fileno())


def _seal(descriptor: int) -> None:
    """Fix the size of the file: if a script could cut it, the kernel would end the client (SIGBUS)."""
    with suppress(AttributeError, OSError):  # a system without seals
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
