"""The samples of a chunk, and the deterministic batch of each step.

Batches are cut from a stream of epochs, each a new permutation of the chunk. All batches have one size
(`batch_size`, or the size of a smaller chunk), so that batch normalization never sees a single sample. Step s
of a chunk has the same samples in the same order on every client.

A tuple of tensors is moved to the compute device once and indexed there. Items of a map-style dataset are
read at each step, under the step's seed, and collated.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, TensorDataset, default_collate

from fedgc.errors import TaskFailed
from fedgc.training.devices import to_device
from fedgc.training.randomness import key, permutation

Rows = NDArray[np.int64]


class Samples(Protocol):
    """The samples of a loaded chunk."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def batch(self, rows: Rows) -> Any:  # noqa: ANN401  the user's dataset decides what a batch is
        """Return these samples, on the compute device."""


class Columns:
    """Tensors of one length, kept on the compute device."""

    def __init__(self, columns: Sequence[Tensor], device: torch.device) -> None:
        self._columns = tuple(to_device(column, device) for column in columns)
        self._device = device

    def __len__(self) -> int:
        return len(self._columns[0])

    def batch(self, rows: Rows) -> tuple[Tensor, ...]:
        """Return these rows of every tensor."""
        index = to_device(torch.from_numpy(rows), self._device)
        return tuple(column[index] for column in self._columns)

    @classmethod
    def concatenated(cls, parts: Sequence["Columns"]) -> "Columns":
        """Return the samples of several chunks as one."""
        columns = zip(*(part._columns for part in parts), strict=True)
        return cls([torch.cat(each) for each in columns], parts[0]._device)


class Items:
    """A map-style dataset, whose items are read at each step."""

    def __init__(self, dataset: Any, device: torch.device) -> None:  # noqa: ANN401  duck-typed, as torch's are
        self._dataset = dataset
        self._device = device

    def __len__(self) -> int:
        return len(self._dataset)

    def batch(self, rows: Rows) -> Any:  # noqa: ANN401  made of the user's items
        """Return these items, collated."""
        return _moved(default_collate([self._dataset[row] for row in rows.tolist()]), self._device)

    @classmethod
    def concatenated(cls, parts: Sequence["Items"]) -> "Items":
        """Return the samples of several chunks as one."""
        return cls(ConcatDataset([part._dataset for part in parts]), parts[0]._device)


def concatenated(parts: Sequence[Samples]) -> Samples:
    """Concatenate the samples of several chunks in this order; raise TaskFailed if they are incompatible."""
    if len(parts) == 1:
        return parts[0]
    tensors = [part for part in parts if isinstance(part, Columns)]
    if len(tensors) == len(parts):
        try:
            return Columns.concatenated(tensors)
        except (ValueError, RuntimeError) as error:  # another number of columns, or other shapes
            raise TaskFailed(f"load() returned chunks of different shapes: {error}") from error
    items = [part for part in parts if isinstance(part, Items)]
    if len(items) < len(parts):
        raise TaskFailed("load() returned tensors for some chunks and datasets for others, needed one kind")
    return Items.concatenated(items)


def samples_of(loaded: object, device: torch.device) -> Samples:
    """Return the result of a task's `load` as samples; raise TaskFailed if its type is not supported."""
    if isinstance(loaded, TensorDataset):
        loaded = loaded.tensors
    if not isinstance(loaded, tuple):
        if not (hasattr(loaded, "__len__") and hasattr(loaded, "__getitem__")):
            raise TaskFailed(
                f"load() returned a {type(loaded).__name__}, needed a tuple of tensors or a dataset"
            )
        return Items(loaded, device)
    columns = [torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in loaded]
    lengths = [len(each) if isinstance(each, Tensor) and each.dim() else None for each in columns]
    if None in lengths or len(set(lengths)) != 1:
        kinds = ", ".join(type(each).__name__ for each in loaded) or "nothing"
        raise TaskFailed(
            f"load() returned a tuple of ({kinds}) with lengths {lengths}, needed tensors of one length"
        )
    return Columns(columns, device)


def batch_rows(samples: int, batch_size: int, step: int, start: int) -> Rows:
    """Return the rows of the batch of `step` (counted from 0) for the chunk whose key is `start`.

    >>> sorted(np.concatenate([batch_rows(6, 2, step, start=1) for step in range(3)]).tolist())
    [0, 1, 2, 3, 4, 5]
    """
    size = min(batch_size, samples)
    first, rows = step * size, []
    while first < (step + 1) * size:  # at most twice: no batch is longer than an epoch
        epoch, offset = divmod(first, samples)
        rows.append(permutation(key(start, epoch), samples)[offset : offset + (step + 1) * size - first])
        first += len(rows[-1])
    return np.concatenate(rows)


def _moved(batch: Any, device: torch.device) -> Any:  # noqa: ANN401  nested as the dataset nests it
    if isinstance(batch, Tensor):
        return to_device(batch, device)
    if isinstance(batch, Mapping):
        return {name: _moved(each, device) for name, each in batch.items()}
    if isinstance(batch, list | tuple):
        return tuple(_moved(each, device) for each in batch)
    return batch
