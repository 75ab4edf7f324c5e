"""The solution of one finished matrix: each client's coefficients, and the expected error of the sum."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from fedgc.codes.arrays import Bool, Float, Int
from fedgc.codes.encode import Coefficients
from fedgc.codes.placement import Placement
from fedgc.errors import BadPlacement

NOTHING: Final = Coefficients((), ())  # of a client that does not send


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The coefficients of every client, stored by pattern of finished classes.

    `exact`: the codewords of all `needed` clients give the plain sum. `short`: chunks with too few
    replicas. `coverage`: the share of all samples by which to divide the sum for the mean. With weights it is
    that of the chunks in the sum, times their weights (Hajek 1971), else 1. `error`: the estimated relative
    error of the mean if it is not exact. `condition` is the worst over the complete chunks, `amplification`
    the mean over all.

    >>> from fedgc.codes import FrameCode, place
    >>> placed = place(2, [1.0, 1.0], 2)
    >>> solution = FrameCode(placed, 2).solve(placed.holds)
    >>> solution.exact, sorted(solution.needed), len(solution.coefficients(0).chunks)
    (True, [0, 1], 2)
    """

    exact: bool
    short: tuple[int, ...]
    amplification: float
    condition: float
    error: float | None
    coverage: float
    blocks: int
    placement: Placement = field(repr=False)
    matrix_bw: Float = field(repr=False)  # each client's column of the code
    used_cn: Bool = field(repr=False)  # the replicas that are mixed in
    pattern_n: Int = field(repr=False)
    rows_pcb: Float = field(repr=False)
    _mixed: dict[int, Coefficients] = field(init=False, repr=False, default_factory=dict)  # cache

    @property
    def needed(self) -> frozenset[int]:
        """Return the clients whose codewords make up the sum."""
        used_w = np.zeros(self.placement.clients_w, np.bool_)
        used_w[self.placement.holder_cn[self.used_cn]] = True
        return frozenset(np.flatnonzero(used_w).tolist())

    def column(self, w: int) -> Float:
        """Return the factors with which a codeword of this client enters each block of the sum."""
        self._check_client(w)
        column_b: Float = self.matrix_bw[:, w]
        return column_b

    def coefficients(self, w: int) -> Coefficients:
        """Return the client's coefficients: its chunks that count, one coefficient for each block."""
        self._check_client(w)
        if not self._mixed:
            self._mixed.update(self._of_all())
        return self._mixed.get(w, NOTHING)

    def _of_all(self) -> Iterator[tuple[int, Coefficients]]:
        """Yield the coefficients of every client that sends; computing all at once is faster."""
        column_s, chunk_s = np.nonzero(self.used_cn)
        client_s = self.placement.holder_cn[column_s, chunk_s]
        by_client = np.lexsort((chunk_s, client_s))
        chunk_s, column_s = chunk_s[by_client], column_s[by_client]
        patterns, columns, _ = self.rows_pcb.shape
        which = np.ravel_multi_index((self.pattern_n[chunk_s], column_s), (patterns, columns))
        occurs, row_s = np.unique(which, return_inverse=True)
        known = [tuple(row) for row in self.rows_pcb.reshape(patterns * columns, -1)[occurs].tolist()]
        rows, chunks, start = [known[at] for at in row_s.tolist()], chunk_s.tolist(), 0
        clients_w, counts = np.unique(client_s, return_counts=True)
        for w, end in zip(clients_w.tolist(), np.cumsum(counts).tolist(), strict=True):
            yield w, Coefficients(tuple(chunks[start:end]), tuple(rows[start:end]))
            start = end

    def _check_client(self, w: int) -> None:
        if not 0 <= w < self.placement.clients_w:
            raise BadPlacement(f"client {w}: clients are numbered 0 to {self.placement.clients_w - 1}")
