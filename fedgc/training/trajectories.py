"""The trajectories of a client: how far each chunk has been trained from the common model.

A trajectory depends on its origin (model version, seed, schedule), the model before it where shared momentum
uses that one, and its chunk. Work with another origin discards all earlier trajectories.

Vectors are kept in memory and spilled to disk over a limit. If the disk refuses them, the oldest trajectory
is discarded. With a folder of cache files, trajectories also outlive the process: an engine of a later
process loads them, and they count once the model that they started from is loaded again.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedgc.errors import BadVector, EdgeFailed
from fedgc.messages import Kept
from fedgc.training.cache import ClientCache, Saved
from fedgc.training.cache_files import About, CacheFiles, digest_of
from fedgc.training.flat import Vector, check_vector
from fedgc.training.local_update import WHOLE, Rest, numbers
from fedgc.training.update import Measure


@dataclass(slots=True)
class Trajectory:
    """The state of one chunk's training; its vector is in the trainer or in the cache."""

    name: str
    samples: int
    reached: int = 0
    seconds: float = 0.0
    losses: float = 0.0
    led: float = 0.0  # steps with shared momentum, each by its share of the learning rate
    measured: Measure | None = None  # at the target it last reached


@dataclass(frozen=True, slots=True)
class Origin:
    """What all trajectories of a client start from, as in `Work`."""

    version: int
    seed: int
    first_step: int
    common_steps: float


class Trajectories:
    """Owns the trajectories of one origin, in memory and on disk."""

    def __init__(self, cache: ClientCache, files: CacheFiles | None, size: int) -> None:
        """Load what an earlier process left in `files`; vectors have `size` numbers."""
        self._cache = cache
        self._files = files
        self._known: Final[dict[int, Trajectory]] = {}
        self.origin: Origin | None = None
        self._model_digest = ""  # of the origin's model; known if files were loaded or written
        self._before: Vector | str | None = None  # the model before; only its digest if it was loaded
        for chunk, (about, saved) in files.found().items() if files is not None else ():
            self._load(chunk, about, saved, size)

    def __getitem__(self, chunk: int) -> Trajectory:
        return self._known[chunk]

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._known

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._known))

    @property
    def before(self) -> Vector | None:
        """The model before the origin's, if shared momentum uses it and it is here."""
        return None if isinstance(self._before, str) else self._before

    def reached(self, chunk: int) -> int:
        """Return how many steps the chunk has been trained."""
        return self._known[chunk].reached if chunk in self._known else 0

    def come_from(self, vector: Vector) -> bool:
        """Return whether loaded trajectories started from this model."""
        return bool(self._model_digest) and self._model_digest == digest_of(vector)

    def set_origin(self, origin: Origin, before: Vector | None) -> None:
        """Discard all trajectories if they have another origin."""
        if self.origin is not None and not (self.origin == origin and self._is_before(before)):
            self.clear()
        self.origin, self._before = origin, before

    def restrict(self, names: Mapping[int, str], most_steps: int) -> None:
        """Discard trajectories of other chunks, and of chunks that were trained for more than `most_steps`.

        A sum over replicas needs the same number of steps from each of them.
        """
        for chunk in self:
            beyond = chunk != WHOLE and self._known[chunk].reached > most_steps
            if names.get(chunk) != self._known[chunk].name or beyond:
                self.drop(chunk)

    # ---- the trainer's side

    def start(self, chunk: int, name: str, samples: int) -> None:
        """Enter a chunk that has not been trained yet."""
        self._known[chunk] = Trajectory(name, samples)

    def take(self, chunk: int) -> Saved | None:
        """Return the chunk's saved state, if there is one, and keep it no longer."""
        return self._cache.take(chunk)

    def put(self, chunk: int, saved: Saved) -> Mapping[int, str]:
        """Keep a chunk's state; return the trajectories that were discarded for it, with the reason."""
        if not self._cache.put(chunk, saved):
            return {}
        lost = self._cache.give_up()
        for each in lost:  # a file of it stays, for a later process
            self._known.pop(each, None)
            self._cache.drop(each)
        return lost

    def vector(self, chunk: int) -> Vector:
        """Return the chunk's vector, which is not to be written to."""
        return self._cache.vector(chunk)

    def drop(self, chunk: int) -> None:
        """Discard a trajectory here and on disk."""
        self._known.pop(chunk, None)
        self._cache.drop(chunk)
        if self._files is not None:
            self._files.drop(chunk)

    def clear(self) -> None:
        """Discard all trajectories, here and on disk."""
        self._known.clear()
        self._cache.clear()
        self.origin, self._model_digest, self._before = None, "", None
        if self._files is not None:
            self._files.clear()

    def close(self) -> None:
        """Discard all trajectories here; the files stay."""
        self._files = None
        self.clear()
        self._cache.close()

    # ---- what outlives the process

    def kept(self) -> tuple[Kept, ...]:
        """Return the trajectories as the server is told of them."""
        if self.origin is None:
            return ()
        return tuple(
            Kept(self.origin.version, number, each.reached, each.measured.sketch if each.measured else ())
            for chunk, each in sorted(self._known.items())
            if each.reached
            for number in (numbers(each.name) if chunk == WHOLE else (chunk,))
        )

    def write(self, chunk: int, model: Vector | None) -> None:
        """Write a trajectory for a later process; `model` is the origin's. Raise EdgeFailed if it fails."""
        if self._files is None or self.origin is None:
            return
        if not self._model_digest and model is not None:
            self._model_digest = digest_of(model)
        self._files.put(self._about(chunk, self.origin), self._cache.saved(chunk))

    def rest(self) -> Rest | None:
        """Return what rounding of earlier updates has cost, if a file says so."""
        return self._files.rest() if self._files is not None else None

    def write_rest(self, rest: Rest | None) -> None:
        """Write what rounding has cost. If that fails, the next update is a little less exact."""
        if rest is not None and self._files is not None:
            with suppress(EdgeFailed):
                self._files.put_rest(rest)

    def _load(self, chunk: int, about: About, saved: Saved, size: int) -> None:
        try:
            check_vector(saved.vector, size)
        except BadVector:
            if self._files is not None:
                self._files.drop(chunk)  # the chunk can be trained again
            return
        self._known[chunk] = Trajectory(
            about.name, about.samples, about.reached, about.seconds, about.losses, about.led
        )
        self.put(chunk, saved)
        self.origin = Origin(about.version, about.seed, about.first_step, about.common_steps)
        self._model_digest, self._before = about.model, about.before

    def _is_before(self, before: Vector | None) -> bool:
        known = self._before
        if isinstance(known, str):
            return known == _digest_or_empty(before)
        return before is known or (before is not None and known is not None and np.array_equal(before, known))

    def _about(self, chunk: int, origin: Origin) -> About:
        each = self._known[chunk]
        return About(
            version=origin.version,
            model=self._model_digest,
            seed=origin.seed,
            chunk=chunk,
            name=each.name,
            samples=each.samples,
            reached=each.reached,
            seconds=each.seconds,
            losses=each.losses,
            led=each.led,
            first_step=origin.first_step,
            common_steps=origin.common_steps,
            before=self._before if isinstance(self._before, str) else _digest_or_empty(self._before),
        )


def _digest_or_empty(model: Vector | None) -> str:
    return "" if model is None else digest_of(model)
