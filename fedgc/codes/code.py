"""One interface for both codes: from a finished matrix to a solution.

What is fixed before the round is a column of R for each client. What is solved when the finished sets
are known is which rows U_i the finished holders of each chunk mix in (see `mixing`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np

from fedgc.codes.arrays import Bool, Float, Int
from fedgc.codes.complete import check_correlation, complete, expected_error
from fedgc.codes.mixing import Mixing
from fedgc.codes.placement import Placement, finished
from fedgc.codes.prune import WithinLimit, any_worker, left_in
from fedgc.codes.solution import Solution
from fedgc.errors import BadPlacement, BadSetting


class Code(ABC):
    """A placement, the number of blocks and a column for each client; the base class of every code.

    To add a code, write one class and register it as an entry point of the group `fedgc.codes`; the setting
    `code.name` then takes its name. The server has a new instance for every solution, from `make`.
    """

    summary: ClassVar[str] = ""
    """What `fedgc config` says of the code, in a few words."""

    @classmethod
    @abstractmethod
    def make(cls, placement: Placement, blocks: int, seed: int) -> Self:
        """Return the code of a placement; `seed` is the run's, for columns that are drawn at random."""

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
        """R: each client's column (blocks x clients)."""

    @abstractmethod
    def _frame(self, chunk_s: Int) -> Float:
        """Return the columns of these chunks' holders: one frame for all, or one for each."""

    @abstractmethod
    def _mixing(self, finished_cs: Bool, chunk_s: Int, noise_w: Float | None) -> tuple[Mixing, Int]:
        """Solve these chunks: the systems, and which one is whose."""

    def _used(self, finished_cn: Bool, noise_w: Float | None) -> Bool:  # noqa: ARG002  of the most general code; others use it
        """Return which finished copies are mixed in: all of them, unless a code needs fewer."""
        return finished_cn

    def solve(
        self,
        done: Bool,
        *,
        noise: Sequence[float] | None = None,
        correlation: float | None = None,
        weights: Sequence[float] | None = None,
    ) -> Solution:
        """Return who mixes what, given who finished what (clients x chunks).

        `noise`: the relative error of each client's copies, where it is known: noisy ones count less.
        `correlation`: of chunk updates with each other, where it is known; says how far full chunks
        stand in for short ones (see `complete`). `weights`: what each chunk counts in the sum, in
        place of that completion (see `private`).
        """
        check_correlation(correlation)
        noise_w = _positive("noise", noise, self.placement.clients_w)
        weight_n = _positive("weights", weights, self.placement.chunks)
        used_cn = self._used(finished(self.placement, done), noise_w)
        chunk_n = np.arange(self.placement.chunks)
        mixing, pattern_n = self._mixing(used_cn, chunk_n, noise_w)
        count_p = np.bincount(pattern_n, minlength=len(mixing.full_p))
        amplification, condition = _figures(mixing, count_p)
        short_n = np.flatnonzero(~mixing.full_p[pattern_n])
        exact = not short_n.size
        if weight_n is not None:
            mixing, pattern_n = _weighted(mixing, pattern_n, weight_n)
            count_p = np.ones(len(pattern_n), np.int64)
            exact = exact and bool((weight_n == 1.0).all())
        elif not exact:
            mixing = complete(self._frame(chunk_n), mixing, count_p, correlation)
        return Solution(
            exact=exact,
            short=tuple(short_n.tolist()),
            amplification=amplification,
            condition=condition,
            error=None if exact else expected_error(self._frame(chunk_n), mixing, count_p, correlation),
            blocks=self.blocks,
            placement=self.placement,
            matrix_bw=self.matrix_bw,
            used_cn=used_cn,
            pattern_n=pattern_n,
            rows_pcb=mixing.rows_pcb,
        )

    def prune(self, done: Bool, *, cost: Sequence[float] | None = None, limit: float = np.inf) -> Bool:
        """Return the finished matrix without the clients that need not send.

        Every chunk keeps `blocks` copies and the amplification stays within `limit` (or where it was,
        if it was above). The costliest uploads are left out first.
        """
        finished_cn = finished(self.placement, done)
        spare = any_worker
        if limit < np.inf:
            total = self._amplification(finished_cn, np.arange(self.placement.chunks))
            spare = WithinLimit(self._amplification, total, limit * self.placement.chunks)
        kept_cn = left_in(self.placement, finished_cn, self.blocks, cost, spare)
        pruned = np.zeros_like(self.placement.holds)
        column_s, chunk_s = np.nonzero(kept_cn)
        pruned[self.placement.holder_cn[column_s, chunk_s], chunk_s] = True
        return pruned

    def _amplification(self, finished_cs: Bool, chunk_s: Int) -> float:
        mixing, pattern_s = self._mixing(finished_cs, chunk_s, None)
        return float(mixing.amplification_p[pattern_s].sum())


def _figures(mixing: Mixing, count_p: Int) -> tuple[float, float]:
    """Return the mean amplification and the worst condition of the patterns that occur."""
    amplification = float(count_p @ mixing.amplification_p) / int(count_p.sum())
    solved_p = mixing.condition_p[(count_p > 0) & mixing.full_p]
    return amplification, float(solved_p.max(initial=1.0)) if solved_p.size else float("inf")


def _weighted(mixing: Mixing, pattern_n: Int, weight_n: Float) -> tuple[Mixing, Int]:
    """Let every chunk count by its weight: a system for each."""
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
