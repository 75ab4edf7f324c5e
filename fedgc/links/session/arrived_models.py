"""The common models that arrive at a client: whole ones, and changes that are made to the last one."""

from typing import Final

import numpy as np

from fedgc.codecs.model_change import Changed, ChangeForm, ModelChange, apply_change
from fedgc.errors import BadVector
from fedgc.fragments import buffers_in, numbers_of
from fedgc.large_vectors import Scratch
from fedgc.links.frames import StreamId
from fedgc.links.pieces import CHANGE, NUMBER, Form, Packed, Vector, check_finite

MOST_WAITING: Final = 16  # sizes of a model that the changes may take which the engine has not asked for
MOST_CHANGES: Final = 10_000  # that may wait, of a small model


class ArrivedModels:
    """Keeps the last model that was handed on, which its changes refer to.

    The session's thread enters what arrives, and the engine's thread makes the models.
    """

    def __init__(self, changes: ChangeForm, scratch: Scratch) -> None:
        self._changes, self._scratch = changes, scratch
        self.numbers = 0  # of a model; 0 while it is not known
        self.buffers = 0  # how many of them, the last ones, are those of buffers
        self.version: int | None = None  # that arrived last
        self.changed: Changed | None = None  # where the model that was handed on last differs from another
        self._arrived: list[tuple[StreamId, Packed]] = []  # a model and its changes, or changes alone
        self._next: list[tuple[StreamId, Packed]] = []  # the same, to be handed on
        self._held: tuple[int, Vector] | None = None

    def form(self, stream: StreamId) -> Form:
        """Return the form of a model, or of its change from the one before."""
        if stream.attempt != CHANGE:
            return Form(self.numbers)
        part = self._part(stream)
        return Form(numbers_of(part), self._changes.wire, exact=self._exact(part))

    def enter(self, stream: StreamId, data: Packed) -> None:
        """Note that a model or a change has arrived.

        Raises:
            BadVector: Too many changes wait for the engine; a new session gets all of the model.
        """
        if stream.attempt != CHANGE:
            self._arrived.clear()
        waiting = sum(each.nbytes for _, each in self._arrived) + data.nbytes
        if len(self._arrived) >= MOST_CHANGES or waiting > MOST_WAITING * NUMBER.itemsize * self.numbers:
            seen = f"saw {len(self._arrived) + 1} models or changes of {waiting} bytes without work for them"
            most = f"{MOST_CHANGES} and {MOST_WAITING} times the model's size"
            raise BadVector(f"{stream}: {seen}, needed at most {most}")
        self._arrived.append((stream, data))
        self.version = stream.number

    def release(self) -> None:
        """Let what has arrived by now be handed on; later arrivals are for later commands."""
        self._next, self._arrived = self._arrived, []

    def take(self, version: int) -> Vector | None:
        """Return the model of this version, once, if it has arrived.

        Raises:
            BadVector: A change came without the model before it, or makes a number that is not finite.
        """
        arrived, self._next = self._next, []
        if not arrived or arrived[-1][0].number != version:
            return None
        since = None if self._held is None else self._held[0]
        parts: Final[list[slice]] = []
        for stream, data in arrived:
            if stream.attempt == CHANGE:
                parts.append(self._part(stream))
                self._held = stream.number, self._after(stream, parts[-1], data)
            else:
                self._held, since = (stream.number, data), None
        self.changed = Changed(since, tuple(parts)) if since is not None else None
        return None if self._held is None else self._held[1]

    def _part(self, stream: StreamId) -> slice:
        return self._changes.part(max(1, stream.number), self.numbers)

    def _exact(self, part: slice) -> int:
        return buffers_in(part, self.numbers, self.buffers)

    def _after(self, stream: StreamId, part: slice, data: Packed) -> Vector:
        """Return a copy of the model before with a change."""
        if self._held is None or self._held[0] != stream.number - 1:
            raise BadVector(f"{stream}: saw a change, needed the model before it")
        before = self._held[1]
        new: Vector = self._scratch.empty(before.nbytes).view(np.float32)
        np.copyto(new, before)
        apply_change(new, ModelChange(part, self._changes.wire, data, self._exact(part)))
        check_finite(new[part], stream)
        return new
