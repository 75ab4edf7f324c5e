"""Counter-based random numbers (SplitMix64: Steele, Lea, Flood, OOPSLA 2014), reproducible on all clients.

Training of a chunk must not depend on the client, its earlier work or a library's version. So nothing here
has state: `key` hashes words (the run's seed, the model version, the chunk, ...) to 64 bits, and `draws` runs
SplitMix64 from that key.

`seeded` seeds the global generators of torch, numpy and Python, which modules, losses and datasets use. Those
of Python and numpy are restored afterwards, because other parts of the process may draw from them; torch's is
not, because every step seeds it. Only one engine may step at a time in a process.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's odd constants
MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
MIX_2: Final = np.uint64(0x94D049BB133111EB)
_restores = False  # whether the generators will be restored by a block around


def key(*words: int | str) -> int:
    """Return 64 bits that depend on all these words and their order.

    >>> key(1, "order", 2) == key(1, "order", 2), key(1, 2) == key(2, 1), key(1) == key("1")
    (True, False, False)
    """
    return int.from_bytes(blake2b(repr(words).encode(), digest_size=8).digest(), "little")


def draws(start: int, first: int, count: int) -> NDArray[np.uint64]:
    """Return numbers `first` to `first + count` of the generator with the key `start`.

    >>> bool((draws(7, 0, 9)[4:] == draws(7, 4, 5)).all())
    True
    """
    value = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    value *= GAMMA
    value += np.uint64(start)
    value ^= value >> np.uint64(30)
    value *= MIX_1
    value ^= value >> np.uint64(27)
    value *= MIX_2
    value ^= value >> np.uint64(31)
    return value


@lru_cache(maxsize=16)  # data injection uses those of several clients in a step
def permutation(start: int, count: int) -> NDArray[np.int64]:
    """Return a random permutation of 0 to count - 1 (read-only, because steps of an epoch share it)."""
    order = np.argsort(draws(start, 0, count), kind="stable")
    order.flags.writeable = False
    return order


def _seed_torch(start: int) -> None:
    # torch.manual_seed does the same, but formats a stack trace each time if CUDA is not in use.
    torch.default_generator.manual_seed(start)
    # torch.cuda.is_initialized has no types.
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(start)
    elif torch.backends.mps.is_available():
        torch.mps.manual_seed(start)


@contextmanager
def restored() -> Iterator[None]:
    """Restore the generators of Python and numpy after the block. It may have many `seeded` blocks."""
    global _restores
    if _restores:
        yield
        return
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002  users' datasets draw from it
    _restores = True
    try:
        yield
    finally:
        _restores = False
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002  users' datasets draw from it


@contextmanager
def seeded(start: int) -> Iterator[None]:
    """Seed the global generators in the block; restore those of Python and numpy afterwards."""
    with restored():
        random.seed(start)
        np.random.seed(start & 0xFFFFFFFF)  # noqa: NPY002  users' datasets draw from it
        _seed_torch(start)
        yield
