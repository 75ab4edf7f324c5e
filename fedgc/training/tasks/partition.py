"""Partitioners: split the samples of a dataset into chunks.

Each returns the sorted sample indices of every chunk. Each sample is in exactly one chunk, and no chunk is
empty.

    iid        shuffles and cuts into equal chunks dirichlet  label skew: the shares of each label are drawn
    from Dirichlet(alpha); a small alpha gives chunks
               of few labels (Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for
               federated visual classification", 2019)
    by_owner   one chunk for each owner of data
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedgc.errors import BadTask

Indices = NDArray[np.int64]


def iid(samples: int, chunks: int, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Shuffle the samples and cut them into chunks whose sizes differ by at most one.

    >>> [len(chunk) for chunk in iid(10, 3, np.random.default_rng(0))]
    [4, 3, 3]
    """
    _enough(samples, chunks)
    return tuple(np.sort(piece) for piece in np.array_split(rng.permutation(samples), chunks))


def dirichlet(
    labels: NDArray[np.generic], chunks: int, alpha: float, rng: np.random.Generator
) -> tuple[Indices, ...]:
    """Divide the samples of each label by shares drawn from Dirichlet(alpha).

    An empty chunk gets one sample of the largest chunk.
    """
    _enough(len(labels), chunks)
    if not (np.isfinite(alpha) and alpha > 0):
        raise BadTask(f"dirichlet partition: saw alpha {alpha}, needed more than 0")
    owners = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(rng.dirichlet(np.full(chunks, alpha)))[:-1] * len(members)
        owners[members] = np.searchsorted(cuts, np.arange(len(members)) + 0.5)
    sizes = np.bincount(owners, minlength=chunks)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(np.argmax(sizes))
        owners[np.flatnonzero(owners == largest)[0]] = empty
        sizes[largest] -= 1
        sizes[empty] += 1
    return tuple(np.flatnonzero(owners == chunk) for chunk in range(chunks))


def by_owner(owners: Sequence[Hashable]) -> Mapping[Hashable, Indices]:
    """Return the samples of every owner, in order of first appearance.

    >>> {owner: chunk.tolist() for owner, chunk in by_owner(["north", "south", "north"]).items()}
    {'north': [0, 2], 'south': [1]}
    """
    if not owners:
        raise BadTask("partition by owner: saw no samples, needed at least one")
    held: dict[Hashable, list[int]] = {}
    for sample, owner in enumerate(owners):
        held.setdefault(owner, []).append(sample)
    return {owner: np.array(mine, dtype=np.int64) for owner, mine in held.items()}


def _enough(samples: int, chunks: int) -> None:
    if not 1 <= chunks <= samples:
        raise BadTask(f"partition: saw {chunks} chunks of {samples} samples, needed 1 to {samples} chunks")
