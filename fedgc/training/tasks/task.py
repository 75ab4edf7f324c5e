"""The training task that a user writes: model, data, loss, evaluation.

A task consists of functions; there is no class to inherit from. It is independent of rounds, codes and
Flower, so the same functions also run in a plain script.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from fedgc.errors import BadSetting, BadTask, words_of

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


@runtime_checkable
class ChunkSource(Protocol):
    """Chunks that travel: they come to a client when it is to train on them (`fedgc.site_data`)."""

    chunks: Mapping[str, int]

    def load(self, name: str) -> Any:  # noqa: ANN401  as the task's own `load`
        """Return the samples of a chunk."""

    def digest(self, name: str) -> str:
        """Return the digest of a chunk's content, without loading it."""

    def has(self, name: str) -> bool:
        """Return whether a chunk is here, so that `load` waits for no fetch."""

    def hold(self, names: Sequence[str]) -> None:
        """Make these the chunks that the client holds, in the order of its work."""

    def fetched(self) -> tuple[int, int, float]:
        """Return the chunks, bytes and seconds of what was fetched since the last call."""


@dataclass(frozen=True, slots=True)
class Task:
    """A training task: model, data, loss, evaluation and local optimizer.

    The functions must be deterministic: `model` makes the same architecture each time, `load` returns the
    same samples in the same order on every client that holds the chunk, and random numbers come only from the
    global generators of torch, numpy and Python, which fedgc seeds before each local step.

    Args:
        model: Makes a new module.
        chunks: Names and sample counts of the chunks that this machine can load: a mapping, or a function
            that returns one.
        load: Chunk name -> samples of the chunk: a tuple of tensors or arrays of equal length, or a
            map-style dataset.
        loss: (module, batch) -> scalar tensor, the mean over the batch. A batch is a tuple of tensors, or
            what torch's default collation makes of the dataset's items.
        evaluate: Module -> figures by name. It runs on the server, in evaluation mode and without gradients.
            Without it the model is not evaluated.
        optimizer: (parameters, learning rate) -> optimizer of the local steps; plain SGD by default. Its
            steps must be proportional to the learning rates of its parameter groups.
        may_move: Whether the data is shared. With True, any client that can load a chunk may train on it, and
            chunks of the same name are replicas. With False, a chunk belongs to the client that names it.
        peek: (chunk name, rows) -> these samples only, in the form of `load`. Only for shared chunks: fedgc
            compares them by a few rows before the first round. Without `peek` it loads each chunk once.
        validate: Module -> figures by name, on data of this client. It runs on each client, for each new
            common model. A figure `samples` weighs the others in the mean over clients.
        private: Patterns of the names of tensors that stay on the client (`["head.*"]`): they are trained,
            kept from round to round, and not exchanged. Frozen tensors that match may differ from those of
            other clients. For local work.
        source: Where chunks come from, if they travel; `over` sets it for `fedgc.site_data`. It is told which
            chunks this client holds, and knows their digests.

    Raises:
        BadTask: An argument has the wrong type, or a chunk has no name or no samples.

    Example:
        >>> import fedgc
        >>> task = fedgc.Task(model=list, chunks={"north": 120, "south": 80}, load=str, loss=max)
        >>> task.sizes()["north"]
        120
        >>> fedgc.Task(model=list, chunks={"north": 0}, load=str, loss=max)
        Traceback (most recent call last):
        ...
        fedgc.errors.BadTask: task: chunk 'north' has 0 samples, needed a whole number of at least 1
    """

    model: Callable[[], "nn.Module"]
    chunks: Mapping[str, int] | Callable[[], Mapping[str, int]]
    load: Callable[[str], Any]
    loss: Callable[["nn.Module", Any], "Tensor"]
    evaluate: Callable[["nn.Module"], Mapping[str, float]] | None = None
    optimizer: Callable[[Iterable["Tensor"], float], "Optimizer"] | None = None
    may_move: bool = False
    peek: Callable[[str, Sequence[int]], Any] | None = None
    validate: Callable[["nn.Module"], Mapping[str, float]] | None = None
    private: Sequence[str] = ()
    source: ChunkSource | None = None

    def __post_init__(self) -> None:
        for name in ("model", "load", "loss"):
            _callable(name, getattr(self, name), "a function")
        if hasattr(self.model, "state_dict") and not isinstance(self.model, type):
            # a module can be called too
            kind = type(self.model).__name__
            raise BadTask(f"task: model is of the type {kind}, needed a function that makes the module")
        for name in ("evaluate", "optimizer", "peek", "validate"):
            if getattr(self, name) is not None:
                takes = " of (parameters, learning rate)" if name == "optimizer" else ""
                _callable(name, getattr(self, name), f"a function{takes} or None")
        if isinstance(self.chunks, Mapping):
            _checked(self.chunks)
        else:
            _callable("chunks", self.chunks, "a mapping from names to sample counts, or a function")

    def allow(self, placement: str) -> None:
        """Raise BadSetting if this placement of chunks would move data that must not move."""
        if placement != "private" and not self.may_move:
            raise BadSetting(
                f"setting data.placement: saw {placement}, needed private: "
                "the task's data may not move (may_move)"
            )

    def sizes(self) -> Mapping[str, int]:
        """Return the sample count of every chunk that this machine can load, by name."""
        if isinstance(self.chunks, Mapping):
            return _checked(self.chunks)
        try:
            chunks = self.chunks()
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise BadTask(f"task: chunks() raised {words_of(error)}") from error
        if not isinstance(chunks, Mapping):
            raise BadTask(f"task: chunks() returned {chunks!r}, needed a mapping from names to sample counts")
        return _checked(chunks)


def _callable(name: str, value: object, needed: str) -> None:
    if not callable(value):
        what = value if isinstance(value, str | int | float) else f"of the type {type(value).__name__}"
        raise BadTask(f"task: {name} is {what}, needed {needed}")


def _checked(chunks: Mapping[str, int]) -> Mapping[str, int]:
    for name, samples in chunks.items():
        if not isinstance(name, str) or not name:
            raise BadTask(f"task: a chunk is called {name!r}, needed a name")
        if not isinstance(samples, Integral) or isinstance(samples, bool) or samples < 1:
            raise BadTask(
                f"task: chunk {name!r} has {samples!r} samples, needed a whole number of at least 1"
            )
    return MappingProxyType({name: int(samples) for name, samples in chunks.items()})
