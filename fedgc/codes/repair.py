"""Repair of a lost upload: which clients send which parts of the lost codeword.

The codeword z = sum over its terms (chunk, row) of row . update is known term by term, and any client
that finished the chunk can compute the term. The terms are divided among the fewest such clients. Each
sends one vector of the size of a codeword, which the server adds under the lost client's column. A lost
repair is repaired by the same rule: its terms keep their column, and every (column, chunk) enters the sum
exactly once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgc.codes.arrays import Bool
from fedgc.codes.encode import Coefficients
from fedgc.errors import BadPlacement


@dataclass(frozen=True, slots=True)
class Repair:
    """Terms that `helper` sends; they are added under `column`, the client whose upload was lost."""

    helper: int
    column: int
    coefficients: Coefficients


@dataclass(frozen=True, slots=True)
class Repairs:
    """The parts of one lost codeword, and the chunks that no other client finished."""

    column: int
    parts: tuple[Repair, ...]
    missing: Coefficients


def repair(column: int, lost: Coefficients, done: Bool, *, cost: Sequence[float] | None = None) -> Repairs:
    """Divide the lost terms among few clients that finished their chunks.

    Clients whose rows of `done` are all False cannot help. The client of the column may help too: it may have
    lost only a repair, or have returned. For each term the cheapest client is chosen; among equals, the one
    with the most terms.

    >>> done = np.array([[False, False], [True, False], [True, True]])
    >>> plan = repair(0, Coefficients((0, 1), ((1.0,), (1.0,))), done)
    >>> [(part.helper, part.coefficients.chunks) for part in plan.parts], plan.missing.chunks
    ([(2, (0, 1))], ())
    """
    done = np.asarray(done)
    if done.ndim != 2 or done.dtype != np.bool_ or max(lost.chunks, default=0) >= done.shape[1]:
        raise BadPlacement(
            f"a finished matrix of {done.dtype} {done.shape}, lost are chunks {lost.chunks[:8]}"
        )
    if not 0 <= column < len(done):
        raise BadPlacement(f"client {column} is none of 0 to {len(done) - 1}")
    able_wt = done[:, list(lost.chunks)]
    price_w = np.zeros(len(done)) if cost is None else np.asarray(cost, np.float64)
    if price_w.shape != (len(done),):
        raise BadPlacement(f"costs of shape {price_w.shape}: one for each of {len(done)} clients is needed")
    open_t = np.logical_or.reduce(able_wt, axis=0)
    missing = np.flatnonzero(~open_t)
    parts = []
    while open_t.any():
        covers_w = (able_wt & open_t).sum(axis=1)
        each_w = np.divide(price_w, covers_w, out=np.full(len(done), np.inf), where=covers_w > 0)
        helper = int(np.lexsort((-covers_w, each_w))[0])
        terms = np.flatnonzero(able_wt[helper] & open_t)
        open_t[terms] = False
        parts.append(Repair(helper, column, lost.at(terms.tolist())))
    return Repairs(column, tuple(parts), lost.at(missing.tolist()))
