"""The stop rule and what steers towards it: who works on what, and how many copies are best.

One codeword has d / blocks numbers, and `blocks` copies of every chunk are needed. Going on from b to
b + 1 copies saves upload time B / b - B / (b + 1), B being the time of a full upload; it costs the wait
for the next copies. While work runs, a chunk with enough copies is skipped, and whoever is free takes
the least covered chunk that it holds.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from fedgc.errors import BadSetting


def best_blocks(cover_s: Sequence[float], upload_s: float) -> int:
    """Return the number of blocks of least total time, `cover_s[k]` being the time of k + 1 copies.

    >>> best_blocks([4.0, 6.0, 9.0], 1.0), best_blocks([4.0, 6.0, 9.0], 12.0)
    (1, 2)
    """
    if not cover_s or not upload_s >= 0:
        raise BadSetting(f"{len(cover_s)} cover times, upload {upload_s} s: at least 1, and 0 or more needed")
    total_s = [cover + upload_s / (index + 1) for index, cover in enumerate(cover_s)]
    return int(np.argmin(total_s)) + 1


def amplification_limit(error_limit: float, epsilon: float) -> float:
    """Return how far noise may be amplified if the wire's relative error is `epsilon`.

    >>> amplification_limit(0.01, 0.002)
    25.0
    """
    if not error_limit > 0 or not epsilon > 0:
        raise BadSetting(f"error limit {error_limit}, wire error {epsilon}: both need be above 0")
    return float((error_limit / epsilon) ** 2)


def next_chunk(
    copies_n: Sequence[int], started_n: Sequence[int], remaining: Iterable[int], aim: int
) -> int | None:
    """Return the least covered of the chunks a client has left, the earliest in its order among equals.

    A copy that another client has started (`started_n`) counts like a finished one when chunks are
    compared: without that, the whole fleet runs after the same few. Only finished copies make a chunk
    be skipped. None where all chunks left have `aim` copies.

    >>> next_chunk([2, 0, 1, 0], [0, 1, 0, 0], (0, 1, 2, 3), 2)
    3
    >>> next_chunk([2, 0], [0, 0], (0,), 2) is None
    True
    """
    best, least = None, math.inf
    for chunk in remaining:  # a plain loop: this is asked after every copy
        replicas = copies_n[chunk]
        coverage = replicas + started_n[chunk]
        if replicas < aim and coverage < least:
            best, least = chunk, coverage
            if not coverage:
                break  # most often the first one, and nothing is covered less
    return best
