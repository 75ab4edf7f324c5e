"""The published order of work: perfect matchings, one for each position (arXiv 2405.19509).

If every chunk is somewhere in the first place, somewhere else in the second and so on, all chunks have
the same sum of positions, and Q_max meets its bound. The bipartite graph of clients and chunks splits
in as many matchings as its largest degree (Konig 1916). The proof is the algorithm: give each edge a
color that is free at its client; if it is taken at the chunk, swap two colours along the path that
alternates between them, which never returns to that client.
"""

from dataclasses import replace

import numpy as np

from fedgc.codes.arrays import Int
from fedgc.codes.placement import Placement


def matched(placement: Placement) -> Placement:
    """Return the placement with its orders peeled off as matchings.

    >>> square = Placement(2, ((0, 1), (0, 1)), (0, 1), (0.25, 0.75))
    >>> matched(square).orders
    ((1, 0), (0, 1))
    """
    copies_n = placement.holds.sum(axis=0)
    colors = max(*placement.loads, int(copies_n.max()))
    chunk_wc = np.full((placement.clients_w, colors), -1, np.int64)  # which chunk each color leads to
    worker_nc = np.full((placement.chunks, colors), -1, np.int64)
    for w, order in enumerate(placement.orders):
        for chunk in order:
            _join(w, chunk, chunk_wc, worker_nc)
    orders = tuple(tuple(row[row >= 0].tolist()) for row in chunk_wc)
    return replace(placement, orders=orders)


def _join(w: int, chunk: int, chunk_wc: Int, worker_nc: Int) -> None:
    """Color the edge between them with a color that is free at both, freeing one if need be."""
    wanted = int((chunk_wc[w] < 0).argmax())
    other = int((worker_nc[chunk] < 0).argmax())
    if worker_nc[chunk, wanted] >= 0:
        _swap(chunk, wanted, other, chunk_wc, worker_nc)
    chunk_wc[w, wanted] = chunk
    worker_nc[chunk, wanted] = w


def _swap(chunk: int, taken: int, free: int, chunk_wc: Int, worker_nc: Int) -> None:
    """Swap two colours along the alternating path that leaves `chunk` by `taken`."""
    path = []
    at, color = chunk, taken
    while (w := int(worker_nc[at, color])) >= 0:
        path.append((w, at, color))
        color = free if color == taken else taken
        if (at := int(chunk_wc[w, color])) < 0:
            break
        path.append((w, at, color))
        color = free if color == taken else taken
    for w, at, color in path:
        chunk_wc[w, color] = worker_nc[at, color] = -1
    for w, at, color in path:
        swapped = free if color == taken else taken
        chunk_wc[w, swapped], worker_nc[at, swapped] = at, w
