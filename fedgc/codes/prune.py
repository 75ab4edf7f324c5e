"""Pruning: leave out uploads while every chunk keeps enough replicas.

When the last chunk is covered, more replicas than needed are finished. A client may be left out if every
chunk that it finished keeps `blocks` replicas; chunks that are short keep all. The minimum is a set
cover. The greedy rule tries to leave out the most expensive uploads first, then the clients with the
fewest finished chunks.
"""

from collections.abc import Callable, Sequence

import numpy as np

from fedgc.codes.arrays import Bool, Int
from fedgc.codes.placement import Placement
from fedgc.errors import BadPlacement

Amplify = Callable[[Bool, Int], float]  # finished columns of chunks, their ids -> summed amplification


def left_in(
    placement: Placement,
    finished_cn: Bool,
    blocks: int,
    cost: Sequence[float] | None,
    spare: Callable[[Int, Bool, Bool], bool],
) -> Bool:
    """Return the replicas (columns x chunks) of the clients that are kept.

    `spare` decides about each client, given its chunks and their replicas before and after.

    >>> both = Placement(2, ((0, 1), (1,), (0,)), (0, 1, 1), (0.25, 0.75))
    >>> left_in(both, np.ones((2, 2), bool), 1, None, any_client).tolist()
    [[True, True], [False, False]]
    >>> left_in(both, np.ones((2, 2), bool), 1, [9.0, 1.0, 1.0], any_client).tolist()
    [[False, False], [True, True]]
    """
    price_w = np.zeros(placement.clients_w) if cost is None else np.asarray(cost, np.float64)
    if price_w.shape != (placement.clients_w,) or np.isnan(price_w).any():
        raise BadPlacement(
            f"costs of shape {price_w.shape}: one number for each of {placement.clients_w} clients is needed"
        )
    kept_cn = finished_cn.copy()
    count = kept_cn.sum(axis=0).tolist()  # plain ints are faster here: most clients have few chunks
    chunks_w: list[list[int]] = [[] for _ in range(placement.clients_w)]
    for column, chunk in np.argwhere(finished_cn).tolist():
        chunks_w[placement.holder_cn.item(column, chunk)].append(chunk)
    size_w = np.asarray([len(chunks) for chunks in chunks_w])
    for w in np.lexsort((size_w, -price_w)).tolist():
        chunks = chunks_w[w]
        if not chunks or any(count[c] <= blocks for c in chunks):
            continue
        chunk_s = np.asarray(chunks)
        before_cs = kept_cn[:, chunk_s]
        after_cs = before_cs.copy()
        after_cs[placement.classes[w]] = False
        if spare(chunk_s, before_cs, after_cs):
            kept_cn[:, chunk_s] = after_cs
            for c in chunks:
                count[c] -= 1
    return kept_cn


def any_client(chunk_s: Int, before_cs: Bool, after_cs: Bool) -> bool:  # noqa: ARG001  one of several rules of that shape
    """Return True: the rule that ignores noise and leaves out every client that it can.

    >>> any_client(np.array([0]), np.ones((2, 1), bool), np.ones((2, 1), bool))
    True
    """
    return True


class WithinLimit:
    """Leave a client out only while the summed amplification of all chunks stays within a limit.

    >>> spare = WithinLimit(lambda columns, chunks: 4.0 - columns.sum(), 2.0, 3.0)
    >>> both, one = np.array([[True], [True]]), np.array([[True], [False]])
    >>> spare(np.array([0]), both, one), spare(np.array([0]), both, one)
    (True, False)
    """

    def __init__(self, amplify: Amplify, total: float, limit: float) -> None:
        self._amplify = amplify
        self._total = total
        self._limit = limit

    def __call__(self, chunk_s: Int, before_cs: Bool, after_cs: Bool) -> bool:
        """Return whether a client is left out, and if so add its cost."""
        change = self._amplify(after_cs, chunk_s) - self._amplify(before_cs, chunk_s)
        if change > 0 and self._total + change > self._limit:
            return False
        self._total += change
        return True
