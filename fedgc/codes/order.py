"""The order of work: a serpentine across the classes.

Q is the largest number of chunks that all clients together can process before every chunk has one
replica: all chunks of the clients without chunk i, plus those that its holders process before it. With
the 1-based position p_j(i) of chunk i at client j and loads g_j,

    Q_i = 1 + sum over j without i of g_j + sum over holders of (p_j(i) - 1),    Q_max = max_i Q_i.

So the positions of a chunk at its holders should have the same sum for every chunk (arXiv 2405.19509,
section on ordering). Each chunk has a phase x in [0, 1). In class c it falls in segment
s = (floor(x * C) + c) mod C of C; with y = frac(x * C) its key is s + y in even segments and s + 1 - y
in odd ones, so a chunk that is early in one class is late in the next. Chunks sorted by key are dealt to
the clients of the class in proportion to their loads, for any number of chunks and unequal loads.

A shift of all phases keeps the spacing inside each client. It is drawn anew for every round, so the chunks
that a deadline cuts off are a random sample, as the unbiased completion requires. For a class of one (data
held by one client only) it rotates the starting chunk. If all loads are g, shifts by multiples of
1 / lcm(C, g) bring every chunk to every position, and where g and C divide each other they keep Q_max at
its bound. Unequal loads have no such grid.
"""

from math import lcm

import numpy as np

from fedgc.codes.arrays import Float, Int
from fedgc.codes.placement import Placement
from fedgc.errors import BadPlacement


def serpentine_keys(phase_n: Float, column: int, columns: int) -> Float:
    """Return the keys by which one class sorts its chunks.

    >>> serpentine_keys(np.array([0.1, 0.4, 0.6, 0.9]), 1, 2).round(1).tolist()
    [1.8, 1.2, 0.2, 0.8]
    """
    turned_n = phase_n * columns
    whole_n = np.floor(turned_n)
    segment_n = (whole_n + column) % columns
    offset_n = turned_n - whole_n
    return segment_n + np.where(segment_n % 2 == 0, offset_n, 1.0 - offset_n)


def orders_for_round(placement: Placement, seed: int) -> tuple[tuple[int, ...], ...]:
    """Return each client's order of work for one round: the serpentine, with a seeded shift.

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
    """Sort the chunks of each client by the key of its class.

    >>> sorted_orders(np.array([[0, 0, 1], [-1, 2, 2]]), 3, np.array([0.1, 0.5, 0.9]))
    ((0, 1), (2,), (1, 2))
    """
    columns = len(holder_cn)
    column_s, chunk_s = np.nonzero(holder_cn >= 0)
    key_cn = np.stack([serpentine_keys(phase_n % 1.0, column, columns) for column in range(columns)])
    client_s = holder_cn[column_s, chunk_s]
    by_key = np.lexsort((key_cn[column_s, chunk_s], client_s))
    ends = np.cumsum(np.bincount(client_s, minlength=clients_w)).tolist()
    sorted_s = chunk_s[by_key].tolist()
    return tuple(tuple(sorted_s[start:end]) for start, end in zip([0, *ends], ends, strict=False))
