"""Placement for data that cannot be moved: the clients report which chunks they hold.

Two clients that share a chunk need different columns of the code, so columns are a coloring of the
conflict graph. Fewer colors give a better-conditioned frame. The coloring is DSATUR (Brelaz 1979): next
comes the vertex whose neighbors have the most colors. It is exact on placements that have classes and
close to the clique bound on others.
"""

from collections.abc import Collection, Sequence
from itertools import chain

import numpy as np

from fedgc.codes.arrays import Bool, Int
from fedgc.codes.order import sorted_orders
from fedgc.codes.placement import Placement
from fedgc.errors import BadPlacement


def adopt(holds: Sequence[Collection[int]], chunks: int) -> Placement:
    """Return the placement in which client w holds exactly the chunks `holds[w]`.

    >>> adopt([{0, 1}, {1, 2}, {2, 0}], 3).columns
    3
    >>> adopt([{0, 1}, {2, 3}, {0, 3}, {1, 2}], 4).classes
    (0, 0, 1, 1)
    """
    if chunks < 1:
        raise BadPlacement(f"{chunks} chunks: a placement needs at least 1")
    if not holds:
        raise BadPlacement("no clients: a placement needs at least 1")
    for w, held in enumerate(holds):
        for chunk in held:
            if not isinstance(chunk, int | np.integer) or not 0 <= chunk < chunks:
                raise BadPlacement(
                    f"client {w} holds chunk {chunk!r}, but chunks are numbered 0 to {chunks - 1}"
                )
    kept = [sorted({int(chunk) for chunk in held}) for held in holds]
    client_s = np.repeat(np.arange(len(kept)), [len(held) for held in kept])
    chunk_s = np.fromiter(chain.from_iterable(kept), np.int64, len(client_s))
    phase_n = (np.random.default_rng(0).permutation(chunks) + 0.5) / chunks
    color_w = _colors(client_s, chunk_s, (len(holds), chunks))
    holder_cn = np.full((int(color_w.max()) + 1, chunks), -1, np.int64)
    holder_cn[color_w[client_s], chunk_s] = client_s
    orders = sorted_orders(holder_cn, len(holds), phase_n)
    return Placement(chunks, orders, tuple(color_w.tolist()), tuple(phase_n.tolist()))


def _colors(client_s: Int, chunk_s: Int, shape: tuple[int, int]) -> Int:
    if np.bincount(chunk_s, minlength=1).max() < 2:  # no shared chunk: there may be thousands of clients
        return np.zeros(shape[0], np.int64)
    held_wn = np.zeros(shape, np.float32)
    held_wn[client_s, chunk_s] = 1.0
    return color(held_wn @ held_wn.T > 0)


def color(conflict_ww: Bool) -> Int:
    """Color a graph so that neighbors differ, the most constrained vertex first (DSATUR, Brelaz 1979).

    >>> color(np.array([[False, True, False], [True, False, True], [False, True, False]])).tolist()
    [1, 0, 1]
    """
    size = len(conflict_ww)
    conflict_ww = conflict_ww & ~np.eye(size, dtype=np.bool_)
    degree_w = conflict_ww.sum(axis=1)
    seen_wc = np.zeros((size, int(degree_w.max(initial=0)) + 1), np.bool_)
    color_w = np.full(size, -1, np.int64)
    for _ in range(size):
        rank_w = np.where(color_w < 0, seen_wc.sum(axis=1) * (size + 1) + degree_w, -1)
        vertex = int(rank_w.argmax())
        color_w[vertex] = int(seen_wc[vertex].argmin())
        seen_wc[conflict_ww[vertex], color_w[vertex]] = True
    return color_w
