"""A task over one dataset that every client can read, cut into chunks.

A dataset of Hugging Face's `datasets` is recognized by its `select` and `with_format`, so only users of that
package need it installed.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fedgc.config import RunConfig
from fedgc.errors import BadTask
from fedgc.training.tasks.partition import Indices, Role, Values, partition
from fedgc.training.tasks.task import ChunkSource, Task

PLACES: Final[Mapping[Role, int]] = {"label": 1, "owner": 2}  # of a column in a tuple: inputs come first
NAMES: Final[Mapping[Role, tuple[str, ...]]] = {
    "label": ("label", "labels", "targets"), "owner": ("owner", "owners"),
}  # fmt: skip

NO_NUMBERS: Final = ("O", "S", "U")  # kinds of numpy's types: objects and texts

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


def over(
    dataset: Any,  # noqa: ANN401  duck-typed, as torch's are
    config: RunConfig,
    *,
    model: Callable[[], "nn.Module"],
    loss: Callable[["nn.Module", Any], "Tensor"],
    evaluate: Callable[["nn.Module"], Mapping[str, float]] | None = None,
    optimizer: Callable[[Iterable["Tensor"], float], "Optimizer"] | None = None,
) -> Task:
    """Make a task from one dataset that every client can read.

    The dataset is divided into `config.chunks` chunks as `config.partition` says: by default it is shuffled
    with `config.seed` and cut into equal ones. The chunks are shared data (`may_move=True`): clients can
    replicate each other's chunks. The data of a site is in chunks already.

    A partition by label or owner needs that of every sample. It is the second or third array of a tuple, the
    column or attribute `label`, `labels` or `targets`, or `owner` or `owners`, or the one that the setting
    names (`owner:writer`, or `dirichlet:0.3:3` for the fourth array); for labels also the second part of a
    dataset's items.

    Args:
        dataset: A tuple of tensors or arrays of equal length, a map-style dataset of torch, a dataset of
            Hugging Face's `datasets`, or `fedgc.site_data`. With the third, a batch is a mapping from column
            names to tensors.
        config: Settings of the run; `chunks`, `partition` and `seed` are used.
        model: Makes a new module.
        loss: (module, batch) -> scalar tensor, the mean over the batch.
        evaluate: Module -> figures by name, run on the server.
        optimizer: (parameters, learning rate) -> optimizer of the local steps; plain SGD by default.

    Returns:
        The task, to be given to `server_app` and `client_app` or named by the setting `task`.

    Raises:
        BadTask: The dataset has no length or no items, its arrays differ in length, it has fewer samples than
            `config.chunks`, or the partition leaves a chunk empty.

    Example:
        >>> import fedgc
        >>> data = (np.zeros((10, 2)), np.zeros(10))
        >>> task = fedgc.over(data, fedgc.RunConfig(chunks=4), model=list, loss=max)
        >>> list(task.sizes().values())
        [3, 3, 2, 2]
    """
    if isinstance(dataset, ChunkSource):
        return Task(
            model=model,
            chunks=dataset.chunks,
            load=dataset.load,
            loss=loss,
            evaluate=evaluate,
            optimizer=optimizer,
            may_move=True,
            source=dataset,
        )
    samples = _length(dataset)
    pieces = partition(samples, config, lambda role, name: _column(dataset, role, name))
    rows = {f"chunk-{number:04}-of-{config.chunks:04}": piece for number, piece in enumerate(pieces)}

    def load(chunk: str) -> object:
        if chunk not in rows:
            raise BadTask(f"task: saw chunk {chunk!r}, needed one of the {config.chunks} made by this run")
        return _some(dataset, rows[chunk])

    return Task(
        model=model,
        chunks={chunk: len(piece) for chunk, piece in rows.items()},
        load=load,
        loss=loss,
        evaluate=evaluate,
        optimizer=optimizer,
        may_move=True,
        peek=lambda chunk, few: _some(dataset, rows[chunk][list(few)]),
    )


def _length(dataset: Any) -> int:  # noqa: ANN401  a user's dataset
    """Return how many samples there are."""
    if not isinstance(dataset, tuple):
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise BadTask(
                f"task: saw a {type(dataset).__name__} as dataset, needed a tuple of arrays, or a dataset "
                "with a length and items"
            )
        return len(dataset)
    for number, each in enumerate(dataset, 1):
        kind = getattr(getattr(each, "dtype", None), "kind", "")
        if not hasattr(each, "__array__") or kind in NO_NUMBERS:
            what = f"an array of {each.dtype}" if kind else f"a {type(each).__name__}"
            raise BadTask(
                f"task: saw {what} as part {number} of the dataset, needed a tensor or array of numbers"
            )
    lengths = {len(each) for each in dataset}
    if len(lengths) != 1:
        raise BadTask(f"task: saw arrays of {sorted(lengths)} rows, needed one length for all")
    return lengths.pop()


def _column(dataset: Any, role: Role, name: str) -> Values:  # noqa: ANN401  the same
    """Return the label or owner of every sample, as `over` describes it."""
    try:
        values = np.asarray(_found(dataset, role, name))
    except (LookupError, TypeError, ValueError):  # its items are no pairs, or of several types
        values = np.empty(0)
    if values.shape != (_length(dataset),):
        where = f"column {name!r} with a value" if name else role
        raise BadTask(f"partition: saw no {where} for every sample in the dataset, needed it to divide by")
    return values


def _found(dataset: Any, role: Role, name: str) -> Any:  # noqa: ANN401  the same
    arrays = dataset if isinstance(dataset, tuple) else getattr(dataset, "tensors", ())
    if arrays:
        return arrays[int(name) if name else PLACES[role]]
    names = (name,) if name else NAMES[role]
    if hasattr(dataset, "column_names"):
        (known, *_) = [each for each in names if each in dataset.column_names]
        return dataset.with_format("numpy")[known][:]
    for known in names:
        if hasattr(dataset, known):
            return getattr(dataset, known)
    return [dataset[at][1] for at in range(len(dataset))] if role == "label" and not name else ()


def _some(dataset: Any, rows: Indices) -> object:  # noqa: ANN401  the same
    """Return these samples, in a form that an engine takes."""
    if isinstance(dataset, tuple):
        return tuple(each[rows] for each in dataset)
    if hasattr(dataset, "select") and hasattr(dataset, "with_format"):
        return dataset.select(rows.tolist()).with_format("torch")
    from torch.utils.data import Subset

    return Subset(dataset, rows.tolist())
