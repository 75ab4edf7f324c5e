"""A task over one dataset that every client can read, cut into chunks.

A dataset of Hugging Face's `datasets` is recognized by its `select` and `with_format`, so only users of that
package need it installed.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgc.config import RunConfig
from fedgc.errors import BadTask
from fedgc.training.tasks.partition import Indices, iid
from fedgc.training.tasks.task import ChunkSource, Task

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

    The dataset is shuffled with `config.seed` and cut into `config.chunks` chunks. The chunks are shared data
    (`may_move=True`): clients can replicate each other's chunks. The data of a site is in chunks already.

    Args:
        dataset: A tuple of tensors or arrays of equal length, a map-style dataset of torch, a dataset of
            Hugging Face's `datasets`, or `fedgc.site_data`. With the third, a batch is a mapping from column
            names to tensors.
        config: Settings of the run; `chunks` and `seed` are used.
        model: Makes a new module.
        loss: (module, batch) -> scalar tensor, the mean over the batch.
        evaluate: Module -> figures by name, run on the server.
        optimizer: (parameters, learning rate) -> optimizer of the local steps; plain SGD by default.

    Returns:
        The task, to be given to `server_app` and `client_app` or named by the setting `task`.

    Raises:
        BadTask: The dataset has no length or no items, its arrays differ in length, or it has fewer samples
            than `config.chunks`.

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
    pieces = iid(samples, config.chunks, np.random.default_rng(config.seed))
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
    lengths = {len(each) for each in dataset}
    if len(lengths) != 1:
        raise BadTask(f"task: saw arrays of {sorted(lengths)} rows, needed one length for all")
    return lengths.pop()


def _some(dataset: Any, rows: Indices) -> object:  # noqa: ANN401  the same
    """Return these samples, in a form that an engine takes."""
    if isinstance(dataset, tuple):
        return tuple(each[rows] for each in dataset)
    if hasattr(dataset, "select") and hasattr(dataset, "with_format"):
        return dataset.select(rows.tolist()).with_format("torch")
    from torch.utils.data import Subset

    return Subset(dataset, rows.tolist())
