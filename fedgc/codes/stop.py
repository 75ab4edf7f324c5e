"""The stop rule and steering: how many replicas to wait for, and which chunk to work on next.

A codeword has d / blocks numbers, and every chunk needs `blocks` replicas. Going from b to b + 1 replicas
saves upload time B / b - B / (b + 1), B being the time of a full upload, and costs the wait for the next
replicas. During the round a chunk with enough replicas is skipped, and a free client takes the least
covered chunk that it holds.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from fedgc.errors import BadSetting


def best_blocks(cover_s: Sequence[float], upload_s: float) -> int:
    """Return the number of blocks of least total time; `cover_s[k]` is the time of k + 1 replicas.

    >>> best_blocks([4.0, 6.0, 9.0], 1.0), best_blocks([4.0, 6.0, 9.0], 12.0)
    (1, 2)
    """
    if not cover_s or not upload_s >= 0:
        raise BadSetting(f"{len(cover_s)} cover times, upload {upload_s} s: at least 1, and 0 or more needed")
    total_s = [cover + upload_s / (index + 1) for index, cover in enumerate(cover_s)]
    return int(np.argmin(total_s)) + 1


def amplification_limit(error_limit: float, epsilon: float) -> float:
    """Return the largest amplification allowed if the wire's relative error is `epsilon`.

    >>> amplification_limit(0.01, 0.002)
    25.0
    """
    if not error_limit > 0 or not epsilon > 0:
        raise BadSetting(f"error limit {error_limit}, wire error {epsilon}: both need be above 0")
    return float((error_limit / epsilon) ** 2)


def next_chunk(
    copies_n: Sequence[int], started_n: Sequence[int], remaining: Iterable[int], aim: int
) -> int | None:
    """Return the least covered chunk that a client has left, the first in its order among equals.

    A replica in progress at another client (`started_n`) counts as finished in the comparison; otherwise all
    clients would choose the same few chunks. Only finished replicas make a chunk be skipped. Returns None if
    all remaining chunks have `aim` replicas.

    >>> next_chunk([2, 0, 1, 0], [0, 1, 0, 0], (0, 1, 2, 3), 2)
    3
    >>> next_chunk([2, 0], [0, 0], (0,), 2) is None
    True
    """
    best, least = None, math.inf
    for chunk in remaining:  # a plain loop: it runs after every replica
        replicas = copies_n[chunk]
        coverage = replicas + started_n[chunk]
        if replicas < aim and coverage < least:
            best, least = chunk, coverage
            if not coverage:
                break  # usually the first one; no chunk is covered less
    return best
