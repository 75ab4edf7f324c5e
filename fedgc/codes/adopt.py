"""A placement that is dictated: the clients say which chunks they hold.

Two clients that share a chunk need different columns of the code: a colouring of the conflict graph.
The fewer colours, the better the frame; Brelaz's rule (DSATUR: color next whoever sees the most
colours) is exact on placements that do have classes and close to the clique bound on others.
"""

from collections.abc import Collection, Sequence

import numpy as np

from fedgc.codes.arrays import Bool, Float, Int
from fedgc.codes.order import sorted_orders
from fedgc.codes.placement import Placement
from fedgc.errors import BadPlacement


def adopt(holds: Sequence[Collection[int]], chunks: int, *, seed: int = 0) -> Placement:
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
    holds_wn = np.zeros((len(holds), chunks), np.bool_)
    for w, held in enumerate(holds):
        for chunk in held:
            if not isinstance(chunk, int | np.integer) or not 0 <= chunk < chunks:
                raise BadPlacement(
                    f"client {w} holds chunk {chunk!r}, but chunks are numbered 0 to {chunks - 1}"
                )
            holds_wn[w, chunk] = True
    phase_n = (np.random.default_rng(seed).permutation(chunks) + 0.5) / chunks
    return coloured(holds_wn, phase_n)


def coloured(holds_wn: Bool, phase_n: Float) -> Placement:
    """Return the placement of these copies, its classes found by colouring.

    >>> coloured(np.array([[True, False], [False, True]]), np.array([0.25, 0.75])).classes
    (0, 0)
    """
    clients_w, chunks = holds_wn.shape
    held_wn = holds_wn.astype(np.float32)
    color_w = color(held_wn @ held_wn.T > 0)
    holder_cn = np.full((int(color_w.max()) + 1, chunks), -1, np.int64)
    worker_s, chunk_s = np.nonzero(holds_wn)
    holder_cn[color_w[worker_s], chunk_s] = worker_s
    orders = sorted_orders(holder_cn, clients_w, phase_n)
    return Placement(chunks, orders, tuple(color_w.tolist()), tuple(phase_n.tolist()))


def color(conflict_ww: Bool) -> Int:
    """Color a graph so that neighbours differ, the most constrained vertex first (Brelaz 1979).

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
