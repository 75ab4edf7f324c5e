"""What a user writes: a `Task` says which model, which data, which loss; nothing of how it is trained.

A task is five functions and no class to inherit from. It knows nothing of rounds, codes or Flower, so that
the same functions run in a plain script. What it owes in return: `model()` makes the same architecture
each time, `load(name)` gives the same samples in the same order on every client that holds the chunk, and
chance comes from torch's, numpy's or Python's global generator only, which the engine seeds for every step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedgc.errors import BadSetting, BadTask

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


@dataclass(frozen=True, slots=True)
class Task:
    """All that fedgc must know of a training script.

    model      makes a fresh module.
    chunks     the names and sample counts of the chunks that this machine can load: a mapping, or a
               function that returns one.
    load       chunk name -> its samples: a tuple of tensors or arrays of one length, or a map-style dataset.
    loss       (module, batch) -> scalar tensor, the mean over the batch. A batch is a tuple of tensors, or
               what torch's default collation makes of the dataset's items.
    evaluate   module, in evaluation mode and without gradients -> named figures. It runs on the server
               alone; without it nothing is evaluated.
    optimizer  (parameters, learning rate) -> the optimizer of the local steps; without it plain SGD. Its
               steps must be proportional to the rates of its groups.
    may_move   whether the data is shared: chunks may be loaded on any client of the run that can, and two
               clients that name the same chunk have the same data. Without it a chunk belongs to its client,
               whatever its name, and stays there.
    peek       (chunk name, rows) -> these samples alone, in the form of `load`. Shared chunks are compared
               by a few rows before the first round; without `peek` each is loaded once for that.

    >>> Task(model=list, chunks={"north": 0}, load=str, loss=max)
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

    def __post_init__(self) -> None:
        for name in ("model", "load", "loss"):
            _callable(name, getattr(self, name), "a function")
        for name in ("evaluate", "optimizer", "peek"):
            if getattr(self, name) is not None:
                _callable(name, getattr(self, name), "a function or None")
        if isinstance(self.chunks, Mapping):
            _checked(self.chunks)
        else:
            _callable("chunks", self.chunks, "a mapping from names to sample counts, or a function")

    def allow(self, placement: str) -> None:
        """Raise BadSetting where local work would be shared out in a way that this task's data may not be."""
        if placement != "private" and not self.may_move:
            raise BadSetting(
                f"setting placement: saw {placement}, needed private: the task's data may not move (may_move)"
            )

    def sizes(self) -> Mapping[str, int]:
        """Return the sample count of every chunk that this machine can load, by name."""
        if isinstance(self.chunks, Mapping):
            return _checked(self.chunks)
        try:
            chunks = self.chunks()
        except Exception as error:  # the user's code may raise anything
            raise BadTask(f"task: chunks() raised {type(error).__name__}: {error}") from error
        if not isinstance(chunks, Mapping):
            raise BadTask(f"task: chunks() returned {chunks!r}, needed a mapping from names to sample counts")
        return _checked(chunks)


def _callable(name: str, value: object, needed: str) -> None:
    if not callable(value):
        raise BadTask(f"task: {name} is {value!r}, needed {needed}")


def _checked(chunks: Mapping[str, int]) -> Mapping[str, int]:
    for name, samples in chunks.items():
        if not isinstance(name, str) or not name:
            raise BadTask(f"task: a chunk is called {name!r}, needed a name")
        if not isinstance(samples, Integral) or isinstance(samples, bool) or samples < 1:
            raise BadTask(
                f"task: chunk {name!r} has {samples!r} samples, needed a whole number of at least 1"
            )
    return MappingProxyType({name: int(samples) for name, samples in chunks.items()})
