"""Data injection (SelSync, arXiv 2307.07950): within a site, batches also hold samples of other clients.

For non-IID data: at each step, a random share alpha of the N clients injects a share beta of its batch into
all batches, so that a batch of b samples has b / (1 + alpha beta N) of the client's own. All clients of a
site can load all its chunks, so no samples are sent: the injecting clients and their samples are a function
of (seed, step) and of the chunks each client holds. Slow and absent clients take part as well.

All clients get the same samples, the injecting one included, so that batches have one size. A client injects
the first samples of its own batch of the step.
"""

from collections.abc import Mapping
from itertools import accumulate

import numpy as np

from fedgc.messages import Pool
from fedgc.training.data import Rows, batch_rows
from fedgc.training.randomness import key, permutation


def pool_chunks(pool: Pool) -> tuple[str, ...]:
    """Return the chunks of all clients, in the row order of `injected_rows`."""
    return tuple(dict.fromkeys(name for _, names in pool.holders for name in names))


def injected_rows(
    pool: Pool, sizes: Mapping[str, int], stream: tuple[int, str], step: int, batch_size: int
) -> Rows:
    """Return the rows of a step's batch among all samples of the site; `stream` is (seed, client).

    >>> pool = Pool(1, 1, (("a", ("left",)), ("b", ("right",))))
    >>> rows = injected_rows(pool, {"left": 4, "right": 4}, (0, "b"), step=0, batch_size=3)
    >>> len(rows), bool((rows[:2] >= 4).all())
    (3, True)
    """
    seed, client = stream
    names = pool_chunks(pool)
    starts = dict(zip(names, accumulate((sizes[name] for name in names), initial=0), strict=False))
    own = batch_size - pool.givers * pool.given

    def batch_of(holder: str) -> Rows:
        held = dict(pool.holders)[holder]
        rows = np.concatenate([starts[name] + np.arange(sizes[name]) for name in held])
        chosen: Rows = rows[batch_rows(len(rows), own, step, key(seed, holder, "order"))]
        return chosen

    givers = permutation(key(seed, "givers", step), len(pool.holders))[: pool.givers].tolist()
    injected = [batch_of(pool.holders[giver][0])[: pool.given] for giver in givers]
    return np.concatenate([batch_of(client), *injected])
