"""Data injection: inside a site, the batch of a step holds samples of other clients as well.

SelSync's remedy for data that lies unevenly (arXiv 2307.07950): at each step a random share alpha of the N
clients gives a share beta of its batch to all, so that a batch of b samples has b / (1 + alpha beta N) of the
client's own. The chunks of a site lie where every client of it can load them. So nothing is sent: who gives
at a step, and which samples, is a function of (seed, step) and of what each client holds, and whoever needs
them reads them. A client that is slow or gone gives as others do, since its data is there.

All get the same gifts, the giver too, so that batches have one size. Which samples a client gives at step s
are the first of its own batch of step s.
"""

from collections.abc import Mapping
from itertools import accumulate

import numpy as np

from fedgc.messages import Pool
from fedgc.training.data import Rows, batch_rows
from fedgc.training.randomness import key, permutation


def everything(pool: Pool) -> tuple[str, ...]:
    """Return the chunks of all clients, in the order in which `injected_rows` counts their samples."""
    return tuple(dict.fromkeys(name for _, names in pool.holders for name in names))


def injected_rows(
    pool: Pool, sizes: Mapping[str, int], way: tuple[int, str], step: int, batch_size: int
) -> Rows:
    """Return the rows of a step's batch among all samples of the site; `way` is (seed, client).

    >>> pool = Pool(1, 1, (("a", ("left",)), ("b", ("right",))))
    >>> rows = injected_rows(pool, {"left": 4, "right": 4}, (0, "b"), step=0, batch_size=3)
    >>> len(rows), bool((rows[:2] >= 4).all())
    (3, True)
    """
    seed, client = way
    names = everything(pool)
    starts = dict(zip(names, accumulate((sizes[name] for name in names), initial=0), strict=False))
    own = batch_size - pool.givers * pool.given

    def batch_of(holder: str) -> Rows:
        held = dict(pool.holders)[holder]
        rows = np.concatenate([starts[name] + np.arange(sizes[name]) for name in held])
        chosen: Rows = rows[batch_rows(len(rows), own, step, key(seed, holder, "order"))]
        return chosen

    givers = permutation(key(seed, "givers", step), len(pool.holders))[: pool.givers].tolist()
    gifts = [batch_of(pool.holders[giver][0])[: pool.given] for giver in givers]
    return np.concatenate([batch_of(client), *gifts])
