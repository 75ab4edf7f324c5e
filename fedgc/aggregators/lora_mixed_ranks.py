"""LoRA adapters of different ranks (HLoRA: arXiv 2503.00813): the mean of the products, re-factored by SVD.

    B' A' = the best approximation of rank `rank` of  sum over clients i of  share_i * B_i A_i

The mean of the factors is not the mean of what they compute. All vectors have the factors of rank `rank`; a
client of a lower rank trains the first components, and its others are those of the common model. So the
components of the result are in falling order of their singular values. The rows of A' are orthonormal and B'
has the singular values, so that a component that is zero so far can still be trained.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedgc.aggregators.collecting import CollectingRule, Update, mean_of
from fedgc.aggregators.rule import Shapes, Vector
from fedgc.errors import BadSetting, Refused

FACTOR: Final = re.compile(r"\.lora_(embedding_)?([AB])\b")  # in the names of PEFT
Matrix = NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Factor:
    """Where a factor is in the vector."""

    part: slice
    shape: tuple[int, ...]

    def of(self, vector: Vector) -> Matrix:
        """Return the factor of a vector."""
        return vector[self.part].reshape(self.shape)


class LoraMixedRanks(CollectingRule):
    """Takes the mean of the adapters' products by samples, and of all other tensors; keeps n vectors."""

    summary = "of LoRA adapters of ranks up to `rank` the mean of the products by samples (HLoRA)"

    def __init__(self, *, rank: int = 8) -> None:
        super().__init__()
        if rank < 1:
            raise BadSetting(f"setting aggregation.options: saw rank={rank}, needed at least 1")
        self.rank: Final = rank
        self._model: Vector = np.empty(0, np.float32)
        self._pairs: tuple[tuple[_Factor, _Factor], ...] = ()

    def begin(self, model: Vector, shapes: Shapes) -> None:
        """Note the common model, and where its factors are."""
        self._model, self._pairs = model, _pairs_of(shapes)

    def combine(self, updates: Sequence[Update]) -> Vector:
        """Return the mean update, with factors of the mean product."""
        total = sum(each.weight for each in updates)
        shares = [each.weight / total for each in updates]
        mean = mean_of(updates, shares)
        for a, b in self._pairs:
            before = a.of(self._model), b.of(self._model)
            right = [np.subtract(before[0], a.of(each.vector), dtype=np.float64) for each in updates]
            left = [
                share * np.subtract(before[1], b.of(each.vector), dtype=np.float64)
                for share, each in zip(shares, updates, strict=True)
            ]
            try:
                after = factors_of(np.concatenate(right), np.concatenate(left, axis=1), self.rank)
            except np.linalg.LinAlgError as error:
                raise Refused(
                    f"aggregator lora-mixed-ranks: saw adapters of no finite product ({error})"
                ) from error
            with np.errstate(over="ignore"):  # a mean that is not finite is left out by the server
                for factor, old, new in zip((a, b), before, after, strict=True):
                    factor.of(mean)[...] = old - new
        return mean


def factors_of(right: Matrix, left: Matrix, rank: int) -> tuple[Matrix, Matrix]:
    """Return A and B of this rank such that B A is the best approximation of `left @ right`.

    >>> a, b = factors_of(np.array([[3.0, 4.0], [3.0, 4.0]]), np.array([[0.5, 0.5], [0.0, 0.0]]), 2)
    >>> (b @ a).round(6).tolist(), abs(a @ a.T).round(6).tolist()
    ([[3.0, 4.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]])
    """
    wide, high = right.astype(np.float64), left.astype(np.float64)
    if len(wide) < min(len(high), wide.shape[1]):  # the product has a lower rank than its shape allows
        q_left, r_left = np.linalg.qr(high)
        q_right, r_right = np.linalg.qr(wide.T)
        u, values, v = np.linalg.svd(r_left @ r_right.T)
        u, v = q_left @ u, v @ q_right.T
    else:
        u, values, v = np.linalg.svd(high @ wide, full_matrices=False)
    kept = min(rank, len(values))
    a, b = np.zeros((rank, wide.shape[1])), np.zeros((len(high), rank))
    a[:kept], b[:, :kept] = v[:kept], u[:, :kept] * values[:kept]
    return a, b


def _pairs_of(shapes: Shapes) -> tuple[tuple[_Factor, _Factor], ...]:
    found: dict[str, _Factor] = {}
    first = 0
    for name, shape in shapes:
        last = first + prod(shape)
        if FACTOR.search(name):
            found[name] = _Factor(slice(first, last), shape)
        first = last
    partners = {name: FACTOR.sub(r".lora_\1B", name) for name in found}
    return tuple((found[a], found[b]) for a, b in partners.items() if a != b and b in found)
