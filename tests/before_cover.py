"""Q_max of an order of work: the most chunks that are processed before every chunk has a replica."""

from collections.abc import Sequence

import numpy as np

from fedgc.codes import Placement


def most_before_cover(placement: Placement, orders: Sequence[Sequence[int]]) -> int:
    """Return Q_max, the maximum over chunks of the work before the chunk's first replica."""
    client_s = np.repeat(np.arange(placement.clients_w), placement.loads)
    chunk_s = np.concatenate([np.asarray(order, np.int64) for order in orders])
    before_s = np.concatenate([np.arange(len(order)) for order in orders])
    total_n = np.full(placement.chunks, 1 + len(chunk_s))
    np.subtract.at(total_n, chunk_s, np.asarray(placement.loads)[client_s] - before_s)
    return int(total_n.max())
