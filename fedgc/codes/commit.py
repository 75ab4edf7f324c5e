"""Early commit: fold a chunk update into the codeword as soon as its copies suffice, and free it.

A client keeps every chunk update until the round is closed, since the coefficients depend on who
finishes. If memory is short, the set of a chunk's holders is frozen when `blocks` of them are done:
the coefficients of that chunk are then final, since they depend on its own holders alone, the update
is folded (`encode.fold`) and freed. The price: later copies no longer lower the noise, a lost codeword
cannot be repaired from a folded update, and full chunks cannot stand in for short ones. So what is
frozen is solved by least squares, `solve(frozen, correlation=0.0)`, in the middle as at the end.
"""

import numpy as np

from fedgc.codes.arrays import Bool
from fedgc.errors import BadPlacement


def freeze(done: Bool, frozen: Bool, blocks: int) -> Bool:
    """Return the frozen copies: those before, and `blocks` of each chunk that has just got so many.

    >>> done = np.array([[True, True], [True, False], [True, False]])
    >>> freeze(done, np.zeros_like(done), 2).astype(int).tolist()
    [[1, 0], [1, 0], [0, 0]]
    """
    if done.shape != frozen.shape or (frozen & ~done).any():
        raise BadPlacement(f"frozen {frozen.shape} must be part of what is finished, {done.shape}")
    if blocks < 1:
        raise BadPlacement(f"{blocks} blocks: at least 1 is needed")
    due_n = (done.sum(axis=0) >= blocks) & ~frozen.any(axis=0)
    first: Bool = done & (np.cumsum(done, axis=0) <= blocks) & due_n
    return frozen | first
