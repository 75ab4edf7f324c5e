"""Error feedback for lossy codecs (Karimireddy et al., arXiv 1901.09847), and the name of local work.

The compression error of an update is added to the next update, times the codec's decay (SparseLoCo, Sarfi et
al., arXiv 2508.15706). Round, attempt and client seed the codec, so a repeated request gives the same bytes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedgc.codecs import Bytes, Codec, encoded, rounding, tiles_of
from fedgc.errors import BadVector
from fedgc.training.flat import Vector

BLOCK: Final = 1 << 16  # numbers of one step of a loop over a vector
LOCAL_TRAJECTORY: Final = -1  # the number of the single trajectory of local work


def trajectory_name(chunks: Mapping[int, str]) -> str:
    """Return the name of the trajectory over these chunks.

    >>> chunk_numbers(trajectory_name({3: "north", 1: "south"}))
    (1, 3)
    """
    return json.dumps(sorted(chunks.items()))


def chunk_numbers(name: str) -> tuple[int, ...]:
    """Return the chunks of the trajectory of this name."""
    return tuple(number for number, _ in json.loads(name))


def chunk_names(name: str) -> tuple[str, ...]:
    """Return the chunk names of the trajectory of this name.

    >>> chunk_names(trajectory_name({3: "north", 1: "south"}))
    ('south', 'north')
    """
    return tuple(chunk for _, chunk in json.loads(name))


@dataclass(frozen=True, slots=True, eq=False)
class Residual:
    """The error-feedback residual after an update, and before it while its round is open."""

    stamp: tuple[int, int, str] | None  # round, attempt, client of the update; None once its round is closed
    before: Vector | None  # None without an earlier update, or once the round is closed
    after: Vector

    def closed(self, round_: int, *, counted: bool) -> "Residual | None":
        """Return the residual when a round is over: without a sum (`counted`), its update is taken back.

        The work then goes on into the next update. An update that a round with a sum left out is not taken
        back: what of it is in the residual still counts later. With top-k, taking it back raised the loss.
        """
        if self.stamp is None or self.stamp[0] != round_:
            return self
        rest = self.after if counted else self.before
        return None if rest is None else Residual(None, None, rest)


class Residuals:
    """The error-feedback residuals of all fragments of the model; without fragments it is one fragment."""

    def __init__(self, saved: Residual | None) -> None:
        """`saved` is what an earlier process has kept."""
        self._saved = saved
        self._known: dict[int, tuple[slice, Residual]] = {}  # by the first number of the fragment

    def of(self, part: slice, size: int) -> Residual | None:
        """Return the residual of a fragment of a model of `size` numbers."""
        if part.start in self._known:
            return self._known[part.start][1]
        saved = self._saved
        if saved is None or saved.after.size != size or (part.start, part.stop) == (0, size):
            return saved
        return Residual(None, None, saved.after[part])

    def put(self, part: slice, residual: Residual) -> None:
        """Replace the residual of a fragment."""
        self._known[part.start] = part, residual

    def closed(self, round_: int, *, counted: bool) -> None:
        """Settle the residuals when a round is over."""
        closed = {
            at: (part, each.closed(round_, counted=counted)) for at, (part, each) in self._known.items()
        }
        self._known = {at: (part, each) for at, (part, each) in closed.items() if each is not None}
        if closed and not self._known:
            self._saved = None

    def whole(self, size: int) -> Residual | None:
        """Return the residual of all of the model, for a later process."""
        if not self._known or (0 in self._known and self._known[0][0].stop == size):
            return self._known[0][1] if self._known else self._saved
        after = np.zeros(size, np.float32)
        if self._saved is not None and self._saved.after.size == size:
            after[:] = self._saved.after
        for part, each in self._known.values():
            after[part] = each.after
        return Residual(None, None, after)


def with_error_feedback(
    update: Vector, codec: Codec, stamp: tuple[int, int, str], last: Residual | None
) -> tuple[Bytes, Residual]:
    """Return the update plus the residual as bytes of the codec, and the next residual.

    `update` is overwritten with the residual, tile by tile: no other vector of its size is made. With the
    stamp of `last`, the residual before that update is used, so a repeated request gives the same.

    Raises:
        BadVector: The codec returned bytes or numbers that it must not. The residual is then still `last`.
    """
    before = None if last is None else last.before if last.stamp == stamp else last.after
    if before is not None and before.size != update.size:
        before = None  # of another model, from the client cache
    if before is not None:
        _add(update, before, codec.decay)
    data = encoded(codec, update, rounding(*stamp))
    if np.may_share_memory(data, update):
        data = data.copy()
    for first, decoded in tiles_of(codec, data, update.size):
        if not np.isfinite(decoded).all():  # in the residual they would be in all later updates as well
            raise BadVector("decode returned NaN or Inf, needed finite numbers")
        update[first : first + decoded.size] -= decoded
    return data, Residual(stamp, before, update)


def _add(update: Vector, residual: Vector, factor: float) -> None:
    """Add `factor * residual` to the update, in place."""
    scratch = np.empty(min(BLOCK, update.size), np.float32)
    for first in range(0, update.size, BLOCK):
        part = update[first : first + BLOCK]
        part += np.multiply(residual[first : first + BLOCK], np.float32(factor), out=scratch[: part.size])
