"""Arrays in shared memory, which are handed to another process by the descriptor of their file.

A file has no name, and is free once neither process refers to its array, however these end.
"""

import mmap
import os
import weakref
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedgc.large_vectors import IN_MEMORY_BYTES, Scratch

Numbers = NDArray[Any]
Form = tuple[str, int]  # the type of an array's numbers, and how many it has

_AT_ONCE: Final = getattr(mmap, "MAP_POPULATE", 0)  # map all pages of an array in one call


class SharedArrays(Scratch):
    """Makes arrays that another process can map: in memory while that is plentiful, else in files.

    >>> arrays = SharedArrays()
    >>> array = arrays.copy_of(np.arange(3))
    >>> mapped(arrays.descriptor_of(array), *form_of(array)).tolist()
    [0, 1, 2]
    """

    def __init__(self, *given: Any, **named: Any) -> None:  # noqa: ANN401  those of Scratch
        super().__init__(*given, **named)
        self._descriptors: dict[int, int] = {}  # by the address of an array's first byte

    def empty(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return an array of so many bytes, or raise EdgeFailed if there is no room for it."""
        room_bytes = max(1, size_bytes)
        descriptor = self.file(room_bytes, is_small=size_bytes <= IN_MEMORY_BYTES)
        room = mmap.mmap(descriptor, room_bytes, mmap.MAP_SHARED | _AT_ONCE)
        array = np.frombuffer(room, np.uint8, size_bytes)
        address = _address(array)
        self._descriptors[address] = descriptor
        weakref.finalize(array, self._forget, address).atexit = False  # views keep the array
        return array

    def copy_of(self, vector: Numbers) -> Numbers:
        """Return a copy of a vector that can be handed on."""
        array: Numbers = self.empty(vector.nbytes).view(vector.dtype)
        array[:] = vector
        return array

    def descriptor_of(self, vector: Numbers) -> int:
        """Return a new descriptor of the file of an array, or of a copy of one that was made elsewhere."""
        held = self._descriptors.get(_address(vector))
        if held is not None and vector.flags.c_contiguous:
            return os.dup(held)
        return self.descriptor_of(self.copy_of(vector))

    def _forget(self, address: int) -> None:
        with suppress(OSError):
            os.close(self._descriptors.pop(address))


def form_of(vector: Numbers) -> Form:
    """Return the form of an array."""
    return vector.dtype.str, vector.size


def mapped(descriptor: int, kind: str, size: int) -> Numbers:
    """Return the array in a file of another process, and close the descriptor."""
    try:
        room = mmap.mmap(descriptor, 0, mmap.MAP_SHARED | _AT_ONCE)
    finally:
        os.close(descriptor)
    return np.frombuffer(room, kind, size)


def _address(array: Numbers) -> int:
    return int(array.__array_interface__["data"][0])
