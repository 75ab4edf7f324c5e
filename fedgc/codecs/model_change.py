"""How a new common model travels to a client that has the one before it.

Only the fragment that the round has exchanged travels: as its new numbers in float32, or as the difference
from the old ones by a codec. The server adds the same decoded difference to its own model, so that all
clients and the server have the same bits.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgc.codecs.exact_end import codec_of
from fedgc.codecs.make import EXACT
from fedgc.fragments import fragment_of

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class ModelChange:
    """The change of one part of a model: its new numbers, or a difference encoded by the codec `wire`.

    With a codec the last `exact` numbers, those of buffers, are a difference in float32.
    """

    part: slice
    wire: str
    data: NDArray[Any]
    exact: int = 0


@dataclass(frozen=True, slots=True)
class Changed:
    """Where a model differs from the one of version `since`."""

    since: int
    parts: tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class ChangeForm:
    """How the changes of a run travel.

    >>> ChangeForm(2, "int8").part(1, 10)
    slice(0, 5, None)
    """

    fragments: int = 1
    wire: str = EXACT

    def part(self, version: int, size: int) -> slice:
        """Return the part in which model `version` differs from the one before it."""
        return fragment_of(version - 1, self.fragments, size)


def apply_change(model: Vector, change: ModelChange) -> None:
    """Change a model in place.

    >>> model = np.float32([1, 2, 3])
    >>> apply_change(model, ModelChange(slice(1, 3), "float32", np.float32([5, 6])))
    >>> model.tolist()
    [1.0, 5.0, 6.0]
    """
    part = model[change.part]
    if change.wire == EXACT:
        part[:] = change.data
        return
    for first, decoded in codec_of(change.wire, change.exact).tiles(change.data, part.size):
        part[first : first + decoded.size] += decoded


def encoded_change(
    model: Vector, step: Vector, part: slice, wire: str, rng: np.random.Generator, exact: int = 0
) -> tuple[ModelChange, Vector]:
    """Return the change of a part of a model by `step`, and the model after it; `exact` numbers are buffers.

    `step` is overwritten with what the encoding leaves out of it.
    """
    codec = codec_of(wire, exact)
    change = ModelChange(part, wire, codec.encode(step, rng), exact)
    new = model.copy()
    apply_change(new, change)
    for first, decoded in codec.tiles(change.data, step.size):
        step[first : first + decoded.size] -= decoded
    return change, new
