"""What was solved from one finished matrix: who sends which mixture, and how good the sum will be."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from fedgc.codes.arrays import Bool, Float, Int, Vector
from fedgc.codes.encode import Coefficients, block_size, encode
from fedgc.codes.placement import Placement, finished
from fedgc.codes.repair import Repairs, repair
from fedgc.codes.running_sum import RunningSum
from fedgc.errors import BadPlacement, BadVector, NotRecoverable

NOTHING: Final = Coefficients((), ())  # of who is not needed


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The coefficients of every client, kept by pattern of finished classes.

    `exact`: the codewords of all `needed` clients give the plain sum. `short`: chunks that lack
    copies. `error`: the estimated relative error of the sum where it is not exact. `condition` is the
    worst over the chunks that are complete, `amplification` the mean over all.

    >>> from fedgc.codes import FrameCode, place
    >>> placed = place(2, [1.0, 1.0], 2)
    >>> solution = FrameCode(placed, 2).solve(placed.holds)
    >>> updates = {0: np.array([1.0, 2.0, 3.0]), 1: np.array([10.0, 20.0, 30.0])}
    >>> codewords = {w: solution.encode(w, updates) for w in solution.needed}
    >>> [codeword.size for codeword in codewords.values()]
    [2, 2]
    >>> np.round(solution.decode(codewords, 3), 9).tolist()
    [11.0, 22.0, 33.0]
    """

    exact: bool
    short: tuple[int, ...]
    amplification: float
    condition: float
    error: float | None
    blocks: int
    placement: Placement = field(repr=False)
    matrix_bw: Float = field(repr=False)  # each client's column of the code
    used_cn: Bool = field(repr=False)  # the copies that are mixed in
    pattern_n: Int = field(repr=False)
    rows_pcb: Float = field(repr=False)
    _mixed: dict[int, Coefficients] = field(init=False, repr=False, default_factory=dict)  # once asked for

    @property
    def needed(self) -> frozenset[int]:
        """The clients whose codewords make up the sum."""
        used_w = np.zeros(self.placement.clients_w, np.bool_)
        used_w[self.placement.holder_cn[self.used_cn]] = True
        return frozenset(np.flatnonzero(used_w).tolist())

    def column(self, w: int) -> Float:
        """Return the factors with which a codeword of this client enters each block of the sum."""
        self._check_worker(w)
        column_b: Float = self.matrix_bw[:, w]
        return column_b

    def coefficients(self, w: int) -> Coefficients:
        """Return what the client mixes: its chunks that count, one coefficient for each block."""
        self._check_worker(w)
        if not self._mixed:
            self._mixed.update(self._of_all())
        return self._mixed.get(w, NOTHING)

    def _of_all(self) -> Iterator[tuple[int, Coefficients]]:
        """Yield what every client mixes that mixes anything: most are asked for, and at once is quicker."""
        column_s, chunk_s = np.nonzero(self.used_cn)
        worker_s = self.placement.holder_cn[column_s, chunk_s]
        by_worker = np.lexsort((chunk_s, worker_s))
        chunk_s, column_s = chunk_s[by_worker], column_s[by_worker]
        patterns, columns, _ = self.rows_pcb.shape
        which = np.ravel_multi_index((self.pattern_n[chunk_s], column_s), (patterns, columns))
        occurs, row_s = np.unique(which, return_inverse=True)
        known = [tuple(row) for row in self.rows_pcb.reshape(patterns * columns, -1)[occurs].tolist()]
        rows, chunks, start = [known[at] for at in row_s.tolist()], chunk_s.tolist(), 0
        clients_w, counts = np.unique(worker_s, return_counts=True)
        for w, end in zip(clients_w.tolist(), np.cumsum(counts).tolist(), strict=True):
            yield w, Coefficients(tuple(chunks[start:end]), tuple(rows[start:end]))
            start = end

    def without(self, w: int, done: Bool) -> Repairs:
        """Return what others send when this client's codeword is lost.

        `done` says who can help now: rows of clients that are gone must be all False.
        """
        finished(self.placement, done)
        return repair(w, self.coefficients(w), done, gone=(w,))

    def encode(self, w: int, updates: Mapping[int, Vector]) -> Vector:
        """Return the codeword of this client, all zeros where it is not needed."""
        coefficients = self.coefficients(w)
        if coefficients.chunks:
            return encode(coefficients.chunks, coefficients.matrix, updates)
        if not updates:
            raise BadVector(f"client {w} mixes no chunk and has no update to take the size from")
        like = next(iter(updates.values()))
        return np.zeros(block_size(like.size, self.blocks), like.dtype)

    def decode(self, codewords: Mapping[int, Vector], size: int) -> Vector:
        """Return the sum over all chunks, its best estimate where copies lack."""
        lost = sorted(self.needed - codewords.keys())
        if lost:
            raise NotRecoverable(f"codewords of clients {lost[:8]} lack: all {len(self.needed)} are needed")
        total = RunningSum(size, self.blocks)
        length = block_size(size, self.blocks)
        for w in sorted(self.needed):
            if codewords[w].shape != (length,):
                raise BadVector(
                    f"the codeword of client {w} has shape {codewords[w].shape}: "
                    f"({length},) is needed for {size} numbers in {self.blocks} blocks"
                )
            total.add(self.matrix_bw[:, w].tolist(), codewords[w])
        return total.total()

    def _check_worker(self, w: int) -> None:
        if not 0 <= w < self.placement.clients_w:
            raise BadPlacement(f"client {w}: clients are numbered 0 to {self.placement.clients_w - 1}")
