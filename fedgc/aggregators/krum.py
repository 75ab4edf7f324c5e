"""Krum and Multi-Krum (Blanchard et al., "Machine Learning with Adversaries", NeurIPS 2017)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedgc.aggregators.collecting import TILE, CollectingRule, Update, mean_of, need
from fedgc.aggregators.rule import Vector
from fedgc.errors import BadSetting


class Krum(CollectingRule):
    """Takes the one update that is closest to its n - f - 2 nearest neighbors.

    `f` is the number of hostile clients that it withstands. With data that differs by client it discards most
    of what was learned; `multi-krum` discards less.
    """

    summary = "the one update that is closest to its nearest neighbors, where f clients are hostile"

    def __init__(self, *, f: int = 1) -> None:
        super().__init__()
        if f < 1:
            raise BadSetting(f"setting aggregation.options: saw f={f}, needed at least 1")
        self._f = f

    def combine(self, updates: Sequence[Update]) -> Vector:
        """Return the chosen update."""
        need("krum", updates, 2 * self._f + 3)
        return updates[_by_score(updates, self._f)[0]].vector


class MultiKrum(CollectingRule):
    """Takes the plain mean of the `keep` updates with the best Krum scores.

    `f` is the number of hostile clients that it withstands. `keep` 0 means all but `f`.
    """

    summary = "the mean of the keep updates that are closest to their neighbors (0: all but f)"

    def __init__(self, *, f: int = 1, keep: int = 0) -> None:
        super().__init__()
        if f < 1 or keep < 0:
            raise BadSetting(
                f"setting aggregation.options: saw f={f}, keep={keep}, needed f 1 or more, keep 0 or more"
            )
        self._f, self._keep = f, keep

    def combine(self, updates: Sequence[Update]) -> Vector:
        """Return the mean of the chosen updates."""
        need("multi-krum", updates, max(2 * self._f + 3, self._keep))
        keep = self._keep or len(updates) - self._f
        chosen = [updates[u] for u in _by_score(updates, self._f)[:keep]]
        return mean_of(chosen, [1.0 / keep] * keep)


def _by_score(updates: Sequence[Update], f: int) -> list[int]:
    """Return the indices of the updates, the one closest to its nearest neighbors first."""
    distances_uu = _squared_distances(updates)
    np.fill_diagonal(distances_uu, np.inf)
    neighbors = len(updates) - f - 2
    scores_u = np.sort(distances_uu, axis=1)[:, :neighbors].sum(axis=1)
    return [int(u) for u in np.argsort(scores_u, kind="stable")]


def _squared_distances(updates: Sequence[Update]) -> NDArray[np.float64]:
    """Return the squared distances between all updates.

    Each tile is centered, so that the common part of the updates does not cost precision.
    """
    products_uu = np.zeros((len(updates), len(updates)))
    for at in range(0, updates[0].vector.size, TILE):
        tile_u = np.stack([each.vector[at : at + TILE] for each in updates]).astype(np.float64)
        tile_u -= np.median(tile_u, axis=0)
        products_uu += tile_u @ tile_u.T
    squares_u = products_uu.diagonal()
    return np.maximum(0.0, squares_u[:, None] + squares_u[None, :] - 2.0 * products_uu)
