"""The linear system of one chunk: the rows that each holder mixes in, given which holders finished it.

With R (blocks x columns) and the finished columns S of a chunk, the holders send rows of U such that
R_S U = I. The solution of least noise is U = W R' (R W R')^-1, W = 1 / variance of each holder's replica
(0 without a replica). With fewer replicas than blocks R_S U = P, the projector on the span of the present
columns (least squares).

The normal equations square the condition; two Newton steps U <- U (2 I - R U) bring the residual back to
rounding for every condition below 1e7. Each system has two figures: the condition of R_S W^(1/2) and the
amplification (1/blocks) * sum ||R_j||^2 ||U_j||^2 of noise that is relative to each codeword.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.codes.arrays import Bool, Float, Int

DEFICIENT: Final = 1e-13  # an eigenvalue below this share of the largest is rounding, not rank
RESIDUAL: Final = 1e-8  # largest entry of R U - I that counts as exact


@dataclass(frozen=True, slots=True, eq=False)
class Mixing:
    """One system for each pattern p: coefficients (p x columns x blocks) and their figures."""

    rows_pcb: Float
    full_p: Bool  # whether R U = I
    condition_p: Float  # inf if it is not
    amplification_p: Float


def mix(frame: Float, weight_pc: Float) -> Mixing:
    """Solve every pattern at once; `frame` is (blocks x columns) or (p x blocks x columns).

    >>> corner = mix(np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]), np.array([[1.0, 1, 0], [0, 0, 1]]))
    >>> corner.full_p.tolist(), corner.condition_p.tolist(), corner.amplification_p.tolist()
    ([True, False], [1.0, inf], [1.0, 0.5])
    >>> np.round(corner.rows_pcb[1, 2], 6).tolist()
    [0.5, 0.5]
    """
    blocks = frame.shape[-2]
    largest_p = weight_pc.max(axis=1, initial=0.0)
    weight_pc = weight_pc / np.where(largest_p > 0, largest_p, 1.0)[:, None]
    weighted_pbc = frame * weight_pc[:, None, :]
    transposed = np.swapaxes(frame, -1, -2)
    value_pb, vector_pbb = np.linalg.eigh(weighted_pbc @ transposed)
    kept_pb = value_pb > DEFICIENT * value_pb[:, -1:]
    inverse_pb = np.where(kept_pb, 1.0 / np.where(kept_pb, value_pb, 1.0), 0.0)
    inverse_pbb = (vector_pbb * inverse_pb[:, None, :]) @ np.swapaxes(vector_pbb, 1, 2)
    rows_pcb = np.swapaxes(weighted_pbc, 1, 2) @ inverse_pbb
    reached_pbb = frame @ rows_pcb
    for _ in range(2):
        rows_pcb = 2.0 * rows_pcb - rows_pcb @ reached_pbb
        reached_pbb = frame @ rows_pcb
    full_p = kept_pb.all(axis=1) & (np.abs(reached_pbb - np.eye(blocks)).max(axis=(1, 2)) < RESIDUAL)
    with np.errstate(divide="ignore", invalid="ignore"):
        condition_p = np.where(full_p, np.sqrt(value_pb[:, -1] / value_pb[:, 0]), np.inf)
    square_c = (frame**2).sum(axis=-2)
    amplification_p = ((rows_pcb**2).sum(axis=2) * square_c).sum(axis=1) / blocks
    return Mixing(rows_pcb, full_p, condition_p, amplification_p)


def packed(finished_cn: Bool) -> NDArray[np.uint8]:
    """Return the finished columns of each chunk as bytes (chunks x bytes), to compare patterns.

    >>> packed(np.array([[True, False], [True, True]])).tolist()
    [[3], [2]]
    """
    return np.packbits(finished_cn, axis=0, bitorder="little").T


def numbered(finished_cn: Bool) -> Int:
    """Return the finished columns of each chunk as a number, the row of `all_patterns`; at most 16 columns.

    >>> numbered(np.array([[True, False], [True, True]])).tolist()
    [3, 2]
    """
    bits_cn = finished_cn.astype(np.uint16) << np.arange(len(finished_cn), dtype=np.uint16)[:, None]
    number_n: Int = np.bitwise_or.reduce(bits_cn, axis=0).astype(np.int64)
    return number_n


def all_patterns(columns: int) -> Bool:
    """Return every subset of the columns (2^columns x columns); row k holds the bits of k.

    >>> all_patterns(2).astype(int).tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1]]
    """
    numbers = np.arange(2**columns)
    return (numbers[:, None] >> np.arange(columns) & 1).astype(np.bool_)
