"""Partitioners: divide the samples of a dataset into chunks (the setting `data.partition`).

Each sample is in exactly one chunk. A partition that would leave a chunk empty is refused.

    iid              shuffles and cuts into equal chunks
    dirichlet:ALPHA  label skew: the shares of each label are drawn from Dirichlet(alpha); a small alpha gives
                     chunks of few labels (Hsu, Qi, Brown, "Measuring the effects of non-identical data
                     distribution for federated visual classification", 2019)
    quantity:ALPHA   the sizes of chunks are drawn from Dirichlet(alpha); labels are as in `iid`
    shards:COUNT     label skew: every chunk has this many shards of the samples sorted by label (McMahan et
                     al., "Communication-efficient learning of deep networks from decentralized data", 2017)
    owner            all samples of an owner are in one chunk; owners are dealt out at random
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedgc.config import RunConfig
from fedgc.config.partition import Partition
from fedgc.errors import BadTask

Indices = NDArray[np.int64]
Values = NDArray[np.generic]
Role = Literal["label", "owner"]


def partition(samples: int, config: RunConfig, column: Callable[[Role, str], Values]) -> tuple[Indices, ...]:
    """Return the sorted sample indices of each of `config.chunks` chunks.

    Args:
        samples: The number of samples.
        config: `chunks`, `partition` and `seed` are used.
        column: Returns the label or the owner of every sample, from the column of this name if it has one.

    Raises:
        BadTask: A chunk would be empty, or the dataset lacks the column.

    Example:
        >>> settings = RunConfig(chunks=2, partition="shards:1")
        >>> [each.tolist() for each in partition(4, settings, lambda role, name: np.array([1, 0, 1, 0]))]
        [[1, 3], [0, 2]]
    """
    how, chunks, rng = Partition.read(config.partition), config.chunks, np.random.default_rng(config.seed)
    if samples < 1:
        raise BadTask("task: saw a dataset without samples, needed at least 1 for each chunk")
    if not 1 <= chunks <= samples:
        raise BadTask(f"setting data.chunks: saw {chunks} for {samples} samples, needed 1 to {samples}")
    match how.kind:
        case "dirichlet":
            pieces = dirichlet(column("label", how.column), chunks, how.amount, rng)
        case "quantity":
            pieces = quantity(samples, chunks, how.amount, rng)
        case "shards":
            pieces = shards(column("label", how.column), chunks, int(how.amount), rng)
        case "owner":
            pieces = by_owner(column("owner", how.column), chunks, rng)
        case _:
            pieces = tuple(np.array_split(rng.permutation(samples), chunks))
    empty = sum(not len(piece) for piece in pieces)
    if empty:
        raise BadTask(
            f"partition {config.partition}: saw {empty} of {chunks} clients or chunks without samples, "
            "needed samples for each"
        )
    return tuple(np.sort(piece) for piece in pieces)


def dirichlet(labels: Values, chunks: int, alpha: float, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Divide the samples of each label by shares drawn from Dirichlet(alpha)."""
    owners = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        owners[members] = _drawn(len(members), chunks, alpha, rng)
    return _grouped(owners, chunks)


def quantity(samples: int, chunks: int, alpha: float, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Divide all samples by shares drawn from Dirichlet(alpha)."""
    owners = np.empty(samples, dtype=np.int64)
    owners[rng.permutation(samples)] = _drawn(samples, chunks, alpha, rng)
    return _grouped(owners, chunks)


def shards(labels: Values, chunks: int, each: int, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Sort the samples by label, cut them into `each` shards for a chunk, and deal these out at random."""
    if each * chunks > len(labels):
        raise BadTask(f"partition: saw {each * chunks} shards of {len(labels)} samples, needed fewer")
    pieces = np.array_split(np.argsort(labels, kind="stable"), each * chunks)
    dealt = rng.permutation(len(pieces)).reshape(chunks, each)
    return tuple(np.concatenate([pieces[at] for at in mine]) for mine in dealt.tolist())


def by_owner(owners: Values, chunks: int, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Deal out the owners at random, each with all its samples.

    >>> [each.tolist() for each in by_owner(np.array(["b", "a", "b"]), 2, np.random.default_rng(0))]
    [[1], [0, 2]]
    """
    known, owner = np.unique(owners, return_inverse=True)
    chunk = np.empty(len(known), dtype=np.int64)
    for number, mine in enumerate(np.array_split(rng.permutation(len(known)), chunks)):
        chunk[mine] = number
    return _grouped(chunk[owner], chunks)


def _drawn(samples: int, chunks: int, alpha: float, rng: np.random.Generator) -> Indices:
    """Return the chunk of each of so many samples, in order, by shares drawn from Dirichlet(alpha)."""
    cuts = np.cumsum(rng.dirichlet(np.full(chunks, alpha)))[:-1] * samples
    drawn: Indices = np.searchsorted(cuts, np.arange(samples) + 0.5)
    return drawn


def _grouped(owners: Indices, chunks: int) -> tuple[Indices, ...]:
    """Return the samples of each chunk; `owners` has the chunk of each sample."""
    order = np.argsort(owners, kind="stable")
    return tuple(np.split(order, np.searchsorted(owners[order], np.arange(1, chunks))))
