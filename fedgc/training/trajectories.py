"""The trajectories of a client: the local training of each chunk from the common model.

A trajectory depends on its origin (model version, seed, schedule), the previous model if shared momentum uses
it, and its chunk. Work with another origin discards all earlier trajectories.

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
from fedgc.training.cache_files import CacheFiles, TrajectoryInfo, digest_of
from fedgc.training.flat import Vector, check_vector
from fedgc.training.local_update import LOCAL_TRAJECTORY, Residual, chunk_numbers
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
    """The starting point of all trajectories of a client, as in `Work`."""

    version: int
    seed: int
    first_step: int
    common_steps: float


class Trajectories:
    """Owns the trajectories of one origin, in memory and on disk."""

    def __init__(self, cache: ClientCache, files: CacheFiles | None) -> None:
        """Load the trajectories of an earlier process from `files`; vectors have `size` numbers."""
        self._cache = cache
        self._files = files
        self._known: Final[dict[int, Trajectory]] = {}
        self.origin: Origin | None = None
        self._model_digest = ""  # of the origin's model; known if files were loaded or written
        self._before: Vector | str | None = None  # the previous model; its digest if loaded from files
        self._is_open = False

    def open(self, size: int) -> None:
        """Load the trajectories of an earlier process, once; their vectors must have `size` numbers."""
        if self._is_open:
            return
        self._is_open = True
        for chunk, (about, saved) in self._files.found().items() if self._files is not None else ():
            self._load(chunk, about, saved, size)

    def __getitem__(self, chunk: int) -> Trajectory:
        return self._known[chunk]

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._known

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._known))

    @property
    def before(self) -> Vector | None:
        """The model before the origin's, if shared momentum uses it and it is in memory."""
        return None if isinstance(self._before, str) else self._before

    def reached(self, chunk: int) -> int:
        """Return the number of steps that the chunk has been trained."""
        return self._known[chunk].reached if chunk in self._known else 0

    def started_from(self, vector: Vector) -> bool:
        """Return whether loaded trajectories started from this model."""
        return bool(self._model_digest) and self._model_digest == digest_of(vector)

    def set_origin(self, origin: Origin, before: Vector | None) -> None:
        """Discard all trajectories if they have another origin."""
        if self.origin is not None and not (self.origin == origin and self._is_before(before)):
            self.clear()
        self.origin, self._before = origin, before

    def move(self, origin: Origin) -> None:
        """Let the trajectories go on from another origin."""
        self.origin, self._model_digest = origin, ""

    def restrict(self, names: Mapping[int, str], most_steps: int) -> None:
        """Discard trajectories of other chunks, and of chunks that were trained for more than `most_steps`.

        A sum over replicas needs the same number of steps from each of them.
        """
        for chunk in self:
            beyond = chunk != LOCAL_TRAJECTORY and self._known[chunk].reached > most_steps
            if names.get(chunk) != self._known[chunk].name or beyond:
                self.drop(chunk)

    # ---- the trainer's side

    def start(self, chunk: int, name: str, samples: int) -> None:
        """Enter a chunk that has not been trained yet."""
        self._known[chunk] = Trajectory(name, samples)

    def take(self, chunk: int) -> Saved | None:
        """Remove and return the chunk's saved state, if any."""
        return self._cache.take(chunk)

    def put(self, chunk: int, saved: Saved) -> Mapping[int, str]:
        """Keep a chunk's state; return the trajectories that were discarded for it, with the reason."""
        if not self._cache.put(chunk, saved):
            return {}
        lost = self._cache.discard_oldest()
        for each in lost:  # a file of it stays, for a later process
            self._known.pop(each, None)
            self._cache.drop(each)
        return lost

    def vector(self, chunk: int) -> Vector:
        """Return the chunk's vector; do not write to it."""
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

    # ---- client cache

    def kept(self) -> tuple[Kept, ...]:
        """Return the trajectories for the server, as the `Kept` of `Joined`."""
        if self.origin is None:
            return ()
        return tuple(
            Kept(self.origin.version, number, each.reached, each.measured.sketch if each.measured else ())
            for chunk, each in sorted(self._known.items())
            if each.reached
            for number in (chunk_numbers(each.name) if chunk == LOCAL_TRAJECTORY else (chunk,))
        )

    def write(self, chunk: int, model: Vector | None) -> None:
        """Write a trajectory for a later process; `model` is the origin's. Raise EdgeFailed if it fails."""
        if self._files is None or self.origin is None:
            return
        if not self._model_digest and model is not None:
            self._model_digest = digest_of(model)
        self._files.put(self._info(chunk, self.origin), self._cache.saved(chunk))

    def residual(self) -> Residual | None:
        """Return the saved error-feedback residual, if any."""
        return self._files.residual() if self._files is not None else None

    def write_residual(self, rest: Residual | None) -> None:
        """Write the error-feedback residual; without it the next update is a little less exact."""
        if rest is not None and self._files is not None:
            with suppress(EdgeFailed):
                self._files.put_residual(rest)

    def _load(self, chunk: int, about: TrajectoryInfo, saved: Saved, size: int) -> None:
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
        if isinstance(known, str):  # a new process may lack it: the steps count, and go on without it
            return before is None or known == digest_of(before)
        return before is known or (before is not None and known is not None and np.array_equal(before, known))

    def _info(self, chunk: int, origin: Origin) -> TrajectoryInfo:
        each = self._known[chunk]
        return TrajectoryInfo(
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
