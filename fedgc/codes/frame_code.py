"""The frame code: one column for each class of clients.

With few classes there are few patterns of finished replicas. All patterns are solved when the code is
made, and a round looks up each chunk's pattern. With many classes (a reported placement) only the
patterns that occur are solved.

At one block a codeword is a plain sum of chunk updates: every coefficient is 0 or 1. Each chunk is taken
from one client, and the clients are chosen so that few must send, as in a work queue.
"""

from functools import lru_cache
from typing import Final

import numpy as np

from fedgc.codes.arrays import Bool, Float, Int
from fedgc.codes.code import Code
from fedgc.codes.frames import frame_for
from fedgc.codes.mixing import Mixing, all_patterns, mix, numbered, packed
from fedgc.codes.placement import Placement
from fedgc.codes.prune import any_client, left_in

TABLE_COLUMNS: Final = 12  # 4096 systems: tens of milliseconds and a few megabytes


@lru_cache(maxsize=32)  # a pure function of two small numbers, called in every round
def solved(columns: int, blocks: int) -> Mixing:
    """Return the solutions of all patterns of a frame.

    >>> solved(2, 1).full_p.tolist()
    [False, True, True, True]
    """
    return mix(frame_for(columns, blocks), all_patterns(columns).astype(np.float64))


class FrameCode(Code):
    """A code whose conditioning does not depend on the number of clients.

    >>> placed = Placement(2, ((0, 1), (1, 0)), (0, 1), (0.25, 0.75))
    >>> solution = FrameCode(placed, 1).solve(np.array([[True, False], [True, True]]))
    >>> solution.exact, solution.needed, solution.coefficients(1).matrix
    (True, frozenset({1}), ((1.0,), (1.0,)))
    """

    summary = "one frame for all clients of a class, well conditioned for any number of clients"

    @classmethod
    def make(cls, placement: Placement, blocks: int, seed: int) -> "FrameCode":  # noqa: ARG003  none is drawn
        """Return the code with the frame of the placement's classes."""
        return cls(placement, blocks)

    def __init__(self, placement: Placement, blocks: int) -> None:
        super().__init__(placement, blocks)
        self.frame = frame_for(placement.columns, blocks)
        self._table = solved(placement.columns, blocks) if placement.columns <= TABLE_COLUMNS else None

    @property
    def matrix_bw(self) -> Float:
        """Return R; each client has the column of its class."""
        matrix: Float = self.frame[:, list(self.placement.classes)]
        return matrix

    def _frame(self, chunk_s: Int) -> Float:  # noqa: ARG002 - all chunks share one frame
        return self.frame

    def _mixing(self, finished_cs: Bool, chunk_s: Int) -> tuple[Mixing, Int]:  # noqa: ARG002 - as above
        if self._table is not None:
            return self._table, numbered(finished_cs)
        _, first_p, pattern_s = np.unique(packed(finished_cs), axis=0, return_index=True, return_inverse=True)
        return mix(self.frame, finished_cs[:, first_p].T.astype(np.float64)), pattern_s.reshape(-1)

    def _used(self, finished_cn: Bool) -> Bool:
        if self.blocks > 1:
            return finished_cn
        kept_cn = left_in(self.placement, finished_cn, 1, None, any_client)
        used_cn = np.zeros_like(kept_cn)
        np.put_along_axis(used_cn, kept_cn.argmax(axis=0)[None], values=True, axis=0)
        return used_cn & kept_cn
