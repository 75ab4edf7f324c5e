"""The interface of a code: from the matrix of finished chunks to a solution.

The columns of R, one for each client, are fixed before the round. The rows U_i that the finished holders
of each chunk mix in are solved once the finished sets are known (see `mixing`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np

from fedgc.codes.arrays import Bool, Float, Int
from fedgc.codes.complete import Sizes, check_correlation, complete, expected_error
from fedgc.codes.mixing import Mixing, mix
from fedgc.codes.placement import Placement, finished
from fedgc.codes.prune import WithinLimit, any_client, left_in
from fedgc.codes.solution import Solution
from fedgc.errors import BadPlacement, BadSetting


class Code(ABC):
    """The base class of every code: a placement, the number of blocks, and a column for each client.

    To add a code, write one class and register it as an entry point of the group `fedgc.codes`; the setting
    `code.name` then takes its name. The server makes a new instance for every solution, with `make`.
    """

    summary: ClassVar[str] = ""
    """A description of the code for `fedgc config`, in a few words."""

    @classmethod
    @abstractmethod
    def make(cls, placement: Placement, blocks: int, seed: int) -> Self:
        """Return the code of a placement; columns drawn at random use the run's `seed`."""

    def __init__(self, placement: Placement, blocks: int) -> None:
        if not 1 <= blocks <= placement.replicas:
            raise BadPlacement(
                f"{blocks} blocks: 1 to {placement.replicas} are possible, "
                "the replicas of the chunk that has the fewest"
            )
        self.placement = placement
        self.blocks = blocks

    @property
    @abstractmethod
    def matrix_bw(self) -> Float:
        """Return R, each client's column (blocks x clients)."""

    def _frame(self, chunk_s: Int) -> Float:
        """Return the columns of these chunks' holders: one frame for all chunks, or one for each."""
        frames: Float = np.moveaxis(self.matrix_bw[:, self.placement.holder_cn[:, chunk_s]], 2, 0)
        return frames

    def _mixing(self, finished_cs: Bool, chunk_s: Int) -> tuple[Mixing, Int]:
        """Solve these chunks; return the systems and the index of each chunk's system."""
        return mix(self._frame(chunk_s), finished_cs.T.astype(np.float64)), np.arange(len(chunk_s))

    def _used(self, finished_cn: Bool) -> Bool:
        """Return which finished replicas are mixed in: all, unless a code needs fewer."""
        return finished_cn

    def solve(
        self,
        done: Bool,
        *,
        correlation: float | None = None,
        weights: Sequence[float] | None = None,
        samples: Sequence[float] | None = None,
        shares: Sequence[float] | None = None,
    ) -> Solution:
        """Return the coefficients of every client, given which chunks each finished (clients x chunks).

        Args:
            done: Finished chunks, clients x chunks.
            correlation: The pairwise correlation of chunk updates, if known (see `complete`).
            weights: The weight of each chunk in the sum; replaces the completion (see `private`).
            samples: The samples of each chunk, to which its update is proportional; by default equal.
            shares: For what share the update of each chunk counts; by default all of it.
        """
        check_correlation(correlation)
        chunks = self.placement.chunks
        weight_n = _positive("weights", weights, chunks)
        share_n = _positive("shares", shares, chunks)
        given_n = _positive("samples", samples, chunks)
        sample_n: Float = np.ones(chunks) if given_n is None else given_n
        used_cn = self._used(finished(self.placement, done))
        chunk_n = np.arange(chunks)
        frame = self._frame(chunk_n)
        mixing, pattern_n = self._mixing(used_cn, chunk_n)
        count_p = np.bincount(pattern_n, minlength=len(mixing.full_p))
        amplification, condition = _figures(mixing, count_p)
        short_n = np.flatnonzero(~mixing.full_p[pattern_n])
        exact = not short_n.size
        coverage = 1.0
        if weight_n is not None:
            mixing, pattern_n = _weighted(mixing, pattern_n, weight_n)
            exact = exact and bool((weight_n == 1.0).all())
            coverage = _coverage(frame, mixing, sample_n)
        elif not exact:
            sizes = Sizes.by_pattern(pattern_n, sample_n, len(count_p))
            mixing = complete(frame, mixing, sizes, correlation)
        if share_n is not None:
            mixing, pattern_n = _weighted(mixing, pattern_n, share_n)
            exact = exact and bool((share_n == 1.0).all())
        sizes = Sizes.by_pattern(pattern_n, sample_n, len(mixing.rows_pcb))
        scale = 1.0 / coverage if coverage > 0.0 else 0.0
        return Solution(
            exact=exact,
            short=tuple(short_n.tolist()),
            amplification=amplification,
            condition=condition,
            error=None if exact else expected_error(frame, mixing, sizes, correlation, scale),
            coverage=coverage,
            blocks=self.blocks,
            placement=self.placement,
            matrix_bw=self.matrix_bw,
            used_cn=used_cn,
            pattern_n=pattern_n,
            rows_pcb=mixing.rows_pcb,
        )

    def prune(self, done: Bool, *, cost: Sequence[float] | None = None, limit: float = np.inf) -> Bool:
        """Return the finished matrix without the clients that need not send.

        Every chunk keeps `blocks` replicas, and the amplification stays at or below `limit`, or at its value
        before if that was higher. The most expensive uploads are left out first.
        """
        finished_cn = finished(self.placement, done)
        spare = any_client
        if limit < np.inf:
            total = self._amplification(finished_cn, np.arange(self.placement.chunks))
            spare = WithinLimit(self._amplification, total, limit * self.placement.chunks)
        kept_cn = left_in(self.placement, finished_cn, self.blocks, cost, spare)
        pruned = np.zeros_like(self.placement.holds)
        column_s, chunk_s = np.nonzero(kept_cn)
        pruned[self.placement.holder_cn[column_s, chunk_s], chunk_s] = True
        return pruned

    def _amplification(self, finished_cs: Bool, chunk_s: Int) -> float:
        mixing, pattern_s = self._mixing(finished_cs, chunk_s)
        return float(mixing.amplification_p[pattern_s].sum())


def _figures(mixing: Mixing, count_p: Int) -> tuple[float, float]:
    """Return the mean amplification and the worst condition over the patterns that occur."""
    amplification = float(count_p @ mixing.amplification_p) / int(count_p.sum())
    solved_p = mixing.condition_p[(count_p > 0) & mixing.full_p]
    return amplification, float(solved_p.max(initial=1.0)) if solved_p.size else float("inf")


def _coverage(frame: Float, mixing: Mixing, sample_n: Float) -> float:
    """Return the share of the samples in the sum of chunks with a system each."""
    part_n: Float = np.trace(frame @ mixing.rows_pcb, axis1=-2, axis2=-1) / frame.shape[-2]
    return float(part_n @ sample_n) / float(sample_n.sum())


def _weighted(mixing: Mixing, pattern_n: Int, weight_n: Float) -> tuple[Mixing, Int]:
    """Scale every chunk by its weight; this takes one system for each chunk."""
    scaled = replace(
        mixing,
        rows_pcb=mixing.rows_pcb[pattern_n] * weight_n[:, None, None],
        full_p=mixing.full_p[pattern_n],
        condition_p=mixing.condition_p[pattern_n],
        amplification_p=mixing.amplification_p[pattern_n],
    )
    return scaled, np.arange(len(pattern_n))


def _positive(name: str, values: Sequence[float] | None, count: int) -> Float | None:
    if values is None:
        return None
    array = np.asarray(values, np.float64)
    if array.shape != (count,) or not (np.isfinite(array) & (array > 0)).all():
        raise BadSetting(f"{name} of shape {array.shape}: {count} finite numbers above 0 are needed")
    return array
