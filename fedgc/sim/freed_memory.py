"""Freed memory that a process keeps, since each training step needs as much again.

glibc returns large blocks to the system when they are freed. Each page of the next block is then a page
fault: an eighth of the time of the local steps of a small CNN (`python -m benchmarks simulation`).
"""

import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_LARGEST_BLOCK: Final = 1 << 30
_NEVER_TRIM: Final = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, in blocks up to a gigabyte; return whether its C library can."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # macOS, musl
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK) and mallopt(_TRIM_THRESHOLD, _NEVER_TRIM))
