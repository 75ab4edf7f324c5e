"""The in-process client cache: saved trajectories, in memory up to a limit and on disk beyond it.

A saved trajectory is the local model's vector, the buffers outside the vector, and the local optimizer's
state. The oldest trajectories are spilled first, because they are needed again only at the end of the round.
Each file is read only if its digest matches. If writing fails, the trajectory stays in memory beyond the
limit until `discard_oldest` is called. The folder belongs to this process and is removed by `close`. Spilled
vectors are memory-mapped, so that a codeword is mixed block by block.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError  # only to catch it: nothing here unpickles
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fedgc.errors import EdgeFailed, system_errors, text_of
from fedgc.training.flat import Vector

FILES: Final = ("npy", "pt")  # of a trajectory: its vector; its buffers and optimizer state
DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Saved:
    """The saved state of a trajectory."""

    vector: Vector
    unsent: list[Tensor]
    optimizer: Mapping[str, Any]

    @property
    def size_bytes(self) -> int:
        """Its size in memory."""
        tensors = _tensors([self.unsent, self.optimizer])
        return self.vector.nbytes + sum(tensor.nbytes for tensor in tensors)


class ClientCache:
    """Saved trajectories by chunk; beyond `limit_bytes` they are written below `parent`."""

    def __init__(self, limit_bytes: int, parent: Path) -> None:
        self._limit_bytes = limit_bytes
        self._parent = parent
        self._folder: TemporaryDirectory[str] | None = None
        self._in_memory: dict[int, Saved] = {}
        self._on_disk: dict[int, tuple[str, str]] = {}  # digests of both files

    def put(self, chunk: int, saved: Saved) -> str:
        """Save a chunk's trajectory, replacing an earlier one; return the error of `make_room`, or ""."""
        self.drop(chunk)
        self._in_memory[chunk] = saved
        return self.make_room()

    def make_room(self) -> str:
        """Write the oldest trajectories to disk until the rest fits; return the error, or ""."""
        used = sum(each.size_bytes for each in self._in_memory.values())
        while used > self._limit_bytes:
            oldest = next(iter(self._in_memory))
            try:
                self._spill(oldest, self._in_memory[oldest])
            except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
                self._remove(oldest)
                return text_of(error)
            used -= self._in_memory.pop(oldest).size_bytes
        return ""

    def discard_oldest(self) -> Mapping[int, str]:
        """Discard the oldest trajectories that cannot be written until the rest fits; return the reasons."""
        lost = {}
        while reason := self.make_room():
            oldest = next(iter(self._in_memory))
            del self._in_memory[oldest]
            lost[oldest] = f"chunk {oldest} is lost: memory is full, and writing to disk failed: {reason}"
        return lost

    def vector(self, chunk: int) -> Vector:
        """Return the chunk's vector (do not write to it); a spilled one is memory-mapped."""
        if chunk in self._in_memory:
            return self._in_memory[chunk].vector
        with system_errors(f"chunk {chunk} cannot be read back from disk", kinds=(OSError, ValueError)):
            self._check(chunk, "npy")
            return np.asarray(np.load(self._file(chunk, "npy"), mmap_mode="r"))

    def take(self, chunk: int) -> Saved | None:
        """Remove and return the chunk's saved trajectory, or None."""
        if chunk not in self._in_memory and chunk not in self._on_disk:
            return None
        saved = self.saved(chunk)
        self.drop(chunk)
        return saved

    def saved(self, chunk: int) -> Saved:
        """Return the saved trajectory of a chunk that is here, or raise EdgeFailed."""
        if chunk in self._in_memory:
            return self._in_memory[chunk]
        vector = np.array(self.vector(chunk))
        try:
            self._check(chunk, "pt")
            unsent, optimizer = torch.load(self._file(chunk, "pt"), weights_only=True)
        except (OSError, RuntimeError, EOFError, UnpicklingError, ValueError) as error:
            raise EdgeFailed(f"chunk {chunk} cannot be read back from disk: {text_of(error)}") from error
        return Saved(vector, unsent, optimizer)

    def drop(self, chunk: int) -> None:
        """Discard the chunk's trajectory."""
        self._in_memory.pop(chunk, None)
        if chunk in self._on_disk:
            del self._on_disk[chunk]
            self._remove(chunk)

    def clear(self) -> None:
        """Discard all trajectories."""
        for chunk in [*self._in_memory, *self._on_disk]:
            self.drop(chunk)

    def close(self) -> None:
        """Discard all trajectories and remove the folder."""
        self._in_memory.clear()
        self._on_disk.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _spill(self, chunk: int, saved: Saved) -> None:
        np.save(self._file(chunk, "npy"), saved.vector)
        torch.save([saved.unsent, dict(saved.optimizer)], self._file(chunk, "pt"))
        self._on_disk[chunk] = file_digest(self._file(chunk, "npy")), file_digest(self._file(chunk, "pt"))

    def _check(self, chunk: int, kind: str) -> None:
        """Raise ValueError if a file has changed."""
        if file_digest(self._file(chunk, kind)) != self._on_disk[chunk][FILES.index(kind)]:
            raise ValueError("its bytes are not those that were written")

    def _remove(self, chunk: int) -> None:
        for kind in FILES:
            with suppress(OSError):  # `close` removes the whole folder
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
