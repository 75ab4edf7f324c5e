"""The order of work: a serpentine across the classes.

Let Q be the most chunks that a cluster may process before every chunk has one copy: all that the
clients without chunk i can do, plus what its holders do before they reach it. With the 1-based
position p_j(i) of chunk i at client j and loads g_j,

    Q_i = 1 + sum over j without i of g_j + sum over holders of (p_j(i) - 1),    Q_max = max_i Q_i.

So the positions of one chunk at its holders should have the same sum for every chunk
(arXiv 2405.19509, section on ordering). Each chunk has a phase x in [0, 1). In class c it falls in
segment s = (floor(x * C) + c) mod C of C; with y = frac(x * C) its key is s + y in even segments and
s + 1 - y in odd ones: what comes early in one class comes late in the next. Chunks sorted by key are
dealt to the clients of the class in the proportion of their loads, which works for any number of
chunks and for unequal loads.

A shift of all phases keeps the spacing inside each client. Drawn anew for every round it makes what
a deadline cuts off a fair sample of the chunks, which the completion without bias relies on; for a
class of one (data held by one client only) it rotates the starting chunk. If all loads are g, shifts by
multiples of 1 / lcm(C, g) are enough to bring every chunk to every position, and where g and C divide
each other they keep Q_max at its bound; unequal loads have no such grid.
"""

from collections.abc import Sequence
from math import lcm

import numpy as np

from fedgc.codes.arrays import Float, Int
from fedgc.codes.placement import Placement
from fedgc.errors import BadPlacement


def serpentine_keys(phase_n: Float, column: int, columns: int) -> Float:
    """Return the key by which one class sorts its chunks.

    >>> serpentine_keys(np.array([0.1, 0.4, 0.6, 0.9]), 1, 2).round(1).tolist()
    [1.8, 1.2, 0.2, 0.8]
    """
    turned_n = phase_n * columns
    whole_n = np.floor(turned_n)
    segment_n = (whole_n + column) % columns
    offset_n = turned_n - whole_n
    return segment_n + np.where(segment_n % 2 == 0, offset_n, 1.0 - offset_n)


def orders_for_round(placement: Placement, seed: int) -> tuple[tuple[int, ...], ...]:
    """Return each client's working order for one round: the serpentine, shifted by a seeded amount.

    >>> alone = Placement(4, ((0, 1, 2, 3),), (0,), (0.0, 0.25, 0.5, 0.75))
    >>> orders_for_round(alone, 1), orders_for_round(alone, 2)
    (((2, 3, 0, 1),), ((1, 2, 3, 0),))
    """
    if seed < 0:
        raise BadPlacement(f"seed {seed}: an order needs a seed of 0 or more")
    shift = _shift(placement, np.random.default_rng([seed, placement.chunks]))
    return sorted_orders(placement.holder_cn, placement.clients_w, np.asarray(placement.phases) + shift)


def _shift(placement: Placement, rng: np.random.Generator) -> float:
    loads = set(placement.loads) - {0}
    if len(loads) > 1:
        return float(rng.random())
    steps = lcm(placement.columns, loads.pop())
    return int(rng.integers(steps)) / steps


def sorted_orders(holder_cn: Int, clients_w: int, phase_n: Float) -> tuple[tuple[int, ...], ...]:
    """Sort what each client holds by the key of its class.

    >>> sorted_orders(np.array([[0, 0, 1], [-1, 2, 2]]), 3, np.array([0.1, 0.5, 0.9]))
    ((0, 1), (2,), (1, 2))
    """
    columns = len(holder_cn)
    column_s, chunk_s = np.nonzero(holder_cn >= 0)
    key_cn = np.stack([serpentine_keys(phase_n % 1.0, column, columns) for column in range(columns)])
    worker_s = holder_cn[column_s, chunk_s]
    by_key = np.lexsort((key_cn[column_s, chunk_s], worker_s))
    ends = np.cumsum(np.bincount(worker_s, minlength=clients_w)).tolist()
    sorted_s = chunk_s[by_key].tolist()
    return tuple(tuple(sorted_s[start:end]) for start, end in zip([0, *ends], ends, strict=False))


def most_before_cover(placement: Placement, orders: Sequence[Sequence[int]], replicas: int = 1) -> int:
    """Return Q_max: how many chunks may be processed before every chunk has `copies` copies.

    >>> both = Placement(2, ((0, 1), (1, 0)), (0, 1), (0.25, 0.75))
    >>> most_before_cover(both, both.orders), most_before_cover(both, ((0, 1), (0, 1)))
    (2, 3)
    """
    if not 1 <= replicas <= placement.replicas:
        raise BadPlacement(
            f"{replicas} replicas asked for, 1 to {placement.replicas} can be had of every chunk"
        )
    worker_s = np.repeat(np.arange(placement.clients_w), placement.loads)
    chunk_s = np.concatenate([np.asarray(order, np.int64) for order in orders])
    before_s = np.concatenate([np.arange(len(order)) for order in orders])
    after_s = np.asarray(placement.loads)[worker_s] - before_s  # what the holder does from this chunk on
    total_n = np.full(placement.chunks, 1 + len(chunk_s))
    np.subtract.at(total_n, chunk_s, after_s)
    by_chunk = np.lexsort((-after_s, chunk_s))
    starts_n = np.searchsorted(chunk_s[by_chunk], np.arange(placement.chunks))
    for rank in range(replicas - 1):
        total_n += after_s[by_chunk][starts_n + rank]
    return int(total_n.max())
