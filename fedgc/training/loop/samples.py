"""How many samples a client trains on, counted over all processes of its script."""

from collections.abc import Sequence, Sized
from contextlib import suppress
from enum import IntEnum

from fedgc.errors import BadTask


class Counted(IntEnum):
    """How a rank has counted its samples."""

    GIVEN = 0  # by the script: the total over all ranks
    DIVIDED = 1  # the dataset of a loader that divides it among the ranks
    OWN = 2  # the dataset of a loader that does not: the rank's own part


def samples_of(loader: object) -> tuple[int, Counted]:
    """Return how many samples a loader's dataset has, or its part of it, and how ranks count them.

    Raises:
        BadTask: The loader is empty or has no dataset of known length: its own length is a number of batches.
    """
    how = Counted.DIVIDED if divides(loader) else Counted.OWN
    dataset = _length_of(getattr(loader, "dataset", None))
    if dataset:
        return _length_of_subset(loader) or dataset, how
    if 0 in (dataset, _length_of(loader)):
        raise BadTask("steps: saw a loader without a batch, needed at least one")
    seen = f"a {type(loader).__name__} without a dataset of known length"
    raise BadTask(f"steps: saw {seen}, needed fedgc.join(samples=...)")


def _length_of_subset(loader: object) -> int | None:
    """Return how many samples a loader's sampler chooses once and for all: a list, or SubsetRandomSampler."""
    batches = getattr(loader, "batch_sampler", None)
    divided = getattr(batches, "batch_sampler", None)  # of Accelerate, where it divides them among ranks
    samplers = [getattr(each, "sampler", None) for each in (divided, batches, loader)]
    chosen = (each if isinstance(each, Sequence) else getattr(each, "indices", None) for each in samplers)
    return next(filter(None, map(_length_of, chosen)), None)


def _length_of(counted: object) -> int | None:
    with suppress(TypeError):  # torch's loader of an iterable dataset has `__len__`, which raises
        return len(counted) if isinstance(counted, Sized) else None
    return None


def divides(loader: object) -> bool:
    """Whether a loader divides its dataset among the ranks, as DistributedSampler and Accelerate do."""
    batches = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    sizes = [getattr(each, name, 1) for each in samplers for name in ("num_replicas", "num_processes")]
    of_accelerate = hasattr(type(loader), "total_dataset_length")
    return of_accelerate or any(isinstance(size, int) and size > 1 for size in sizes)


def total_samples(counts: Sequence[Sequence[int]]) -> int:
    """Return the client's samples from the counts of its ranks: numbers, and how each was counted.

    >>> total_samples([(100, Counted.DIVIDED), (100, Counted.DIVIDED)])
    100
    >>> total_samples([(60, Counted.OWN), (40, Counted.OWN)])
    100

    Raises:
        BadTask: The ranks do not agree.
    """
    if len(counts) == 1:
        return counts[0][0]
    if all(how == Counted.OWN for _, how in counts):
        return sum(number for number, _ in counts)
    if len(set(counts)) > 1:
        seen = ", ".join(str(number) for number, _ in counts)
        raise BadTask(
            f"fedgc.join: saw ranks that count {seen} samples, needed one total on all of them, or loaders "
            "that divide one dataset"
        )
    return counts[0][0]
