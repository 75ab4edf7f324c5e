"""Leaving out uploads: every chunk keeps enough copies without most clients.

More copies than needed were finished by the time the last chunk is covered. A client may be left out
if every chunk that it finished keeps `blocks` copies; chunks that are short keep all they have.
Finding the fewest is a set cover; the greedy rule here tries to leave out the costliest first, then
those that finished least.
"""

from collections.abc import Callable, Sequence

import numpy as np

from fedgc.codes.arrays import Bool, Int
from fedgc.codes.placement import Placement
from fedgc.errors import BadPlacement

Amplify = Callable[[Bool, Int], float]  # finished columns of some chunks, their ids -> sum of amplifications


def left_in(
    placement: Placement,
    finished_cn: Bool,
    blocks: int,
    cost: Sequence[float] | None,
    spare: Callable[[Int, Bool, Bool], bool],
) -> Bool:
    """Return the copies (columns x chunks) of the clients that are not left out.

    `spare` has the last word on a client, given its chunks and their copies before and after.

    >>> both = Placement(2, ((0, 1), (1,), (0,)), (0, 1, 1), (0.25, 0.75))
    >>> left_in(both, np.ones((2, 2), bool), 1, None, any_worker).tolist()
    [[True, True], [False, False]]
    >>> left_in(both, np.ones((2, 2), bool), 1, [9.0, 1.0, 1.0], any_worker).tolist()
    [[False, False], [True, True]]
    """
    price_w = np.zeros(placement.clients_w) if cost is None else np.asarray(cost, np.float64)
    if price_w.shape != (placement.clients_w,) or np.isnan(price_w).any():
        raise BadPlacement(
            f"costs of shape {price_w.shape}: one number for each of {placement.clients_w} clients is needed"
        )
    kept_cn = finished_cn.copy()
    count = kept_cn.sum(axis=0).tolist()  # plain numbers from here on: most clients have a few chunks
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


def any_worker(chunk_s: Int, before_cs: Bool, after_cs: Bool) -> bool:  # noqa: ARG001  one of several rules of that shape
    """Spare whoever can be spared: the rule where noise is no matter.

    >>> any_worker(np.array([0]), np.ones((2, 1), bool), np.ones((2, 1), bool))
    True
    """
    return True


class WithinLimit:
    """Spare a client only while the summed amplification of all chunks stays within a limit.

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
        """Answer for one client and, where it is spared, remember what that cost."""
        change = self._amplify(after_cs, chunk_s) - self._amplify(before_cs, chunk_s)
        if change > 0 and self._total + change > self._limit:
            return False
        self._total += change
        return True
