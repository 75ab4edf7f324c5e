"""Where trajectories lie while nobody works on them: in memory, and over the limit on disk.

What is kept of a trajectory is the local model's vector (from which its update follows exactly), the
buffers that do not travel, and the local optimizer's state. The oldest go to disk first: they are wanted
again only when the round ends. A file whose digest is not that of what was written is not read. What the
disk refuses stays in memory, beyond the limit, until its owner has freed something or gives the oldest up.
The folder is private to this process and goes with `close`; a spilled vector is mapped, not read, so that a
codeword is mixed from it piece by piece.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError  # an error's name alone: nothing here unpickles
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fedgc.errors import EdgeFailed
from fedgc.training.flat import Vector

FILES: Final = ("npy", "pt")  # of a trajectory: its vector, and all else
DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Saved:
    """A trajectory at rest."""

    vector: Vector
    unsent: list[Tensor]
    optimizer: Mapping[str, Any]

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        tensors = _tensors([self.unsent, self.optimizer])
        return self.vector.nbytes + sum(tensor.nbytes for tensor in tensors)


class ClientCache:
    """Trajectories by chunk; over `limit_bytes` they are written below `parent`."""

    def __init__(self, limit_bytes: int, parent: Path) -> None:
        self._limit_bytes = limit_bytes
        self._parent = parent
        self._folder: TemporaryDirectory[str] | None = None
        self._near: dict[int, Saved] = {}
        self._far: dict[int, tuple[str, str]] = {}  # digests of the vector's file and of the other's

    def put(self, chunk: int, saved: Saved) -> str:
        """Keep this in place of what there was of the chunk; return what `make_room` says."""
        self.drop(chunk)
        self._near[chunk] = saved
        return self.make_room()

    def make_room(self) -> str:
        """Write the oldest to disk until the rest fits; where the disk refuses, return what it says."""
        used = sum(each.size_bytes for each in self._near.values())
        while used > self._limit_bytes:
            oldest = next(iter(self._near))
            try:
                self._spill(oldest, self._near[oldest])
            except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
                self._remove(oldest)
                return str(error) or type(error).__name__
            used -= self._near.pop(oldest).size_bytes
        return ""

    def give_up(self) -> Mapping[int, str]:
        """Forget the oldest that the disk refuses until the rest fits; return which, and why."""
        lost = {}
        while said := self.make_room():
            oldest = next(iter(self._near))
            del self._near[oldest]
            lost[oldest] = f"chunk {oldest} is lost: memory is full, and the disk says: {said}"
        return lost

    def vector(self, chunk: int) -> Vector:
        """Return the chunk's vector, not to be written to; one that lies on disk is mapped."""
        if chunk in self._near:
            return self._near[chunk].vector
        try:
            self._check(chunk, "npy")
            return np.asarray(np.load(self._file(chunk, "npy"), mmap_mode="r"))
        except (OSError, ValueError) as error:
            raise EdgeFailed(f"chunk {chunk} cannot be read back from disk: {error}") from error

    def take(self, chunk: int) -> Saved | None:
        """Return what is kept of the chunk, or None, and keep it no longer."""
        if chunk not in self._near and chunk not in self._far:
            return None
        saved = self.saved(chunk)
        self.drop(chunk)
        return saved

    def saved(self, chunk: int) -> Saved:
        """Return all that is kept of a chunk which is here, or raise EdgeFailed."""
        if chunk in self._near:
            return self._near[chunk]
        vector = np.array(self.vector(chunk))
        try:
            self._check(chunk, "pt")
            unsent, optimizer = torch.load(self._file(chunk, "pt"), weights_only=True)
        except (OSError, RuntimeError, EOFError, UnpicklingError, ValueError) as error:
            raise EdgeFailed(f"chunk {chunk} cannot be read back from disk: {error}") from error
        return Saved(vector, unsent, optimizer)

    def drop(self, chunk: int) -> None:
        """Forget the chunk."""
        self._near.pop(chunk, None)
        if chunk in self._far:
            del self._far[chunk]
            self._remove(chunk)

    def clear(self) -> None:
        """Forget everything."""
        for chunk in [*self._near, *self._far]:
            self.drop(chunk)

    def close(self) -> None:
        """Forget everything and remove the folder."""
        self._near.clear()
        self._far.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _spill(self, chunk: int, saved: Saved) -> None:
        np.save(self._file(chunk, "npy"), saved.vector)
        torch.save([saved.unsent, dict(saved.optimizer)], self._file(chunk, "pt"))
        self._far[chunk] = file_digest(self._file(chunk, "npy")), file_digest(self._file(chunk, "pt"))

    def _check(self, chunk: int, kind: str) -> None:
        """Raise ValueError where a file is not as it was written."""
        if file_digest(self._file(chunk, kind)) != self._far[chunk][FILES.index(kind)]:
            raise ValueError("its bytes are not those that were written")

    def _remove(self, chunk: int) -> None:
        for kind in FILES:
            with suppress(OSError):  # the folder goes as a whole in the end
                self._file(chunk, kind).unlink(missing_ok=True)

    def _file(self, chunk: int, kind: str) -> Path:
        if self._folder is None:
            self._parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder = TemporaryDirectory(prefix="fedgc-", dir=self._parent)
        return Path(self._folder.name) / f"{chunk}.{kind}"


def file_digest(path: Path) -> str:
    """Return the digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).hexdigest()


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
