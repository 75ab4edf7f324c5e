"""Completion: the best estimate of the sum when a deadline left some chunks short of replicas.

With the rows U_i of the present replicas the decoded blocks are sum_i P_i G_i, P_i = R U_i: the identity
for a full chunk, a projector for a short one. Least squares stops there. Its error is smallest if chunk
updates are uncorrelated. Chunk updates share a mean, though, so the missing parts add up. Short chunks
are a random sample (ids are permuted, orders shifted every round), so full chunks can replace them
without bias. A chunk of n_i samples has the update n_i m_i, so with the samples M = sum of n_i and
Q = sum of n_i^2 over full chunks:

    U_i -> U_i (I + s D) for full i,    D = (1 / M) * sum over short chunks of n_i (I - P_i).

For s = 1, sum_i n_i P_i = (all samples) I, and the mean over all draws is the true sum. With pairwise
correlation c of the m_i the squared error is c M^2 (1-s)^2 ||D||^2 + (1-c) Q s^2 ||D||^2 plus a constant; the
minimum is at s = c N / (c N + 1 - c) with N = M^2 / Q, which is the number of full chunks if all are equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgc.codes.arrays import Float, Int
from fedgc.codes.mixing import Mixing
from fedgc.errors import BadSetting, BadVector


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """The samples of the chunks of each pattern: their sum, and the sum of their squares."""

    sum_p: Float
    square_p: Float

    @classmethod
    def by_pattern(cls, pattern_n: Int, sample_n: Float, patterns: int) -> "Sizes":
        """Return the sums over the chunks of each pattern."""
        sums = [np.bincount(pattern_n, each_n, patterns) for each_n in (sample_n, sample_n**2)]
        return cls(sums[0].astype(np.float64), sums[1].astype(np.float64))


def complete(frame: Float, mixing: Mixing, sizes: Sizes, correlation: float | None) -> Mixing:
    """Scale full chunks up to replace short ones; correlation None gives the unbiased completion.

    >>> from fedgc.codes.mixing import mix
    >>> one, count_p = np.ones((1, 1)), np.array([2.0, 2.0])
    >>> half = complete(one, mix(one, np.array([[0.0], [1.0]])), Sizes(count_p, count_p), None)
    >>> half.rows_pcb.ravel().tolist()
    [0.0, 2.0]
    """
    full = float(sizes.sum_p[mixing.full_p].sum())
    if not full:
        return mixing
    miss_pbb = frame @ mixing.rows_pcb - np.eye(frame.shape[-2])
    gap_bb = -(miss_pbb * sizes.sum_p[:, None, None])[~mixing.full_p]
    share = shrinkage(full**2 / float(sizes.square_p[mixing.full_p].sum()), correlation)
    stand_in_bb = np.eye(frame.shape[-2]) + share / full * gap_bb.sum(axis=0)
    rows_pcb = np.where(mixing.full_p[:, None, None], mixing.rows_pcb @ stand_in_bb, mixing.rows_pcb)
    return replace(mixing, rows_pcb=rows_pcb)


def shrinkage(full: float, correlation: float | None) -> float:
    """Return the factor on the unbiased completion that gives the least expected error.

    >>> shrinkage(60, 0.5), shrinkage(60, 0.0), shrinkage(60, None)
    (0.9836065573770492, 0.0, 1.0)
    """
    check_correlation(correlation)
    if correlation is None:
        return 1.0
    return correlation * full / (correlation * full + 1.0 - correlation)


def check_correlation(correlation: float | None) -> None:
    """Raise unless the correlation lies in its range.

    >>> check_correlation(0.3)
    """
    if correlation is not None and not 0.0 <= correlation <= 1.0:
        raise BadSetting(f"correlation {correlation}: 0 to 1 is needed")


def expected_error(
    frame: Float, mixing: Mixing, sizes: Sizes, correlation: float | None, scale: float = 1.0
) -> float:
    """Return the expected error of `scale` times the sum relative to the true sum's size.

    None counts as correlation 0, where the unbiased completion has its largest error.

    >>> from fedgc.codes.mixing import mix
    >>> one, count_p = np.ones((1, 1)), np.array([1.0, 3.0])
    >>> expected_error(one, mix(one, np.array([[0.0], [1.0]])), Sizes(count_p, count_p), 0.0)
    0.5
    """
    common = 0.0 if correlation is None else correlation
    blocks = frame.shape[-2]
    miss_pbb = scale * (frame @ mixing.rows_pcb) - np.eye(blocks)
    together = float(((miss_pbb * sizes.sum_p[:, None, None]).sum(axis=0) ** 2).sum())
    apart = float(((miss_pbb**2).sum(axis=(1, 2)) * sizes.square_p).sum())
    size = common * float(sizes.sum_p.sum()) ** 2 + (1.0 - common) * float(sizes.square_p.sum())
    return float(np.sqrt((common * together + (1.0 - common) * apart) / (blocks * size)))


def estimate_correlation(sketches: Sequence[Sequence[float]]) -> float:
    """Estimate the pairwise correlation of chunk updates from equal random projections of them.

    The estimate is (||sum s||^2 - sum ||s||^2) / ((n - 1) sum ||s||^2), clipped to 0 ... 1.

    >>> estimate_correlation([[1.0, 0.0], [1.0, 0.0]]), estimate_correlation([[1.0, 0.0], [0.0, 1.0]])
    (1.0, 0.0)
    """
    sketch_ns = np.asarray(sketches, np.float64)
    if sketch_ns.ndim != 2 or not np.isfinite(sketch_ns).all():
        raise BadVector(f"sketches of shape {sketch_ns.shape}: rows of finite numbers are needed")
    own = float((sketch_ns**2).sum())
    if len(sketch_ns) < 2 or own == 0.0:
        return 0.0
    joint = float((sketch_ns.sum(axis=0) ** 2).sum())
    return min(max((joint - own) / ((len(sketch_ns) - 1) * own), 0.0), 1.0)
