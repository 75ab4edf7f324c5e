"""The client cache on disk: trajectories, models and the error-feedback residual, kept between processes.

Each trajectory's file contains its own description (`TrajectoryInfo`), so there is no index. Files are
written under a temporary name and renamed, so a killed process leaves the earlier file intact. Each name ends
with a digest (of the file's bytes, or of a model's numbers). A file with another digest is ignored, because
its work can be done again. Tensors are memory-mapped and read by torch's restricted loader, which runs no
code.

The folder belongs to one client and one set of training settings. The caller ensures this, and that one
process at a time uses it.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from fedgc.errors import EdgeFailed, text_of
from fedgc.guards import guarded
from fedgc.training.cache import Saved, file_digest
from fedgc.training.flat import Vector
from fedgc.training.local_update import LOCAL_TRAJECTORY, Residual, chunk_numbers

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TrajectoryInfo:
    """Description of a saved trajectory: its origin, its chunk and its progress."""

    version: int
    model: str  # digest of the common model's vector
    seed: int
    chunk: int
    name: str
    samples: int
    reached: int
    seconds: float
    losses: float
    led: float  # steps with shared momentum, weighted by their share of the learning rate
    first_step: int  # these two as in `Work`
    common_steps: float
    before: str  # digest of the previous model if shared momentum uses it, else ""


def digest_of(vector: Vector) -> str:
    """Return the SHA-256 of a common model; two models of one version can differ after a resume."""
    return hashlib.sha256(np.ascontiguousarray(vector, np.float32).data.cast("B")).hexdigest()


class CacheFiles:
    """The client cache in one folder, which is made at the first write."""

    def __init__(self, folder: Path) -> None:
        self._folder = self.folder = folder
        self._known: dict[int, TrajectoryInfo] = {}

    # ---- trajectories

    def found(self) -> Mapping[int, tuple[TrajectoryInfo, Saved]]:
        """Return the trajectories of the newest model by chunk; remove all others and partial files.

        Call this before any other method.
        """
        return self._read_or({}, self._found)

    def _found(self) -> Mapping[int, tuple[TrajectoryInfo, Saved]]:
        read = {
            path: each for path in self._folder.glob("chunk-*.pt") if (each := _trajectory(path)) is not None
        }
        newest = max((about.version for about, _ in read.values()), default=-1)
        best: dict[int, Path] = {}
        for path, (about, _) in sorted(read.items(), key=lambda pair: pair[1][0].reached):
            if about.version == newest:
                best[about.chunk] = path
        self._known = {chunk: read[path][0] for chunk, path in best.items()}
        for path in [*self._folder.glob("chunk-*.pt"), *self._folder.glob("*.part")]:
            if path not in best.values():
                path.unlink(missing_ok=True)
        return {chunk: read[path] for chunk, path in best.items()}

    def put(self, about: TrajectoryInfo, saved: Saved) -> None:
        """Write a chunk's trajectory, replacing an earlier one, or raise EdgeFailed."""
        if self._known.get(about.chunk) == about:
            return
        parts = {"vector": torch.from_numpy(saved.vector), "unsent": saved.unsent}
        self._write(
            f"chunk-{about.chunk}",
            {"about": asdict(about), "optimizer": dict(saved.optimizer), **parts},
        )
        self._known[about.chunk] = about

    def drop(self, chunk: int) -> None:
        """Remove the chunk's trajectory."""
        if self._known.pop(chunk, None) is not None:
            self._remove(f"chunk-{chunk}")

    def clear(self) -> None:
        """Remove all trajectories; models stay."""
        for chunk in list(self._known):
            self.drop(chunk)

    # ---- error feedback

    def put_residual(self, rest: Residual) -> None:
        """Write the error-feedback residual, or raise EdgeFailed."""
        before, after = (
            None if each is None else torch.from_numpy(each) for each in (rest.before, rest.after)
        )
        stamp = None if rest.stamp is None else list(rest.stamp)
        self._write("rest", {"stamp": stamp, "before": before, "after": after})

    def residual(self) -> Residual | None:
        """Return the saved residual, or None if it cannot be read."""
        return self._read_or(None, self._saved_residual)

    def _saved_residual(self) -> Residual | None:
        read: Any = next((_checked(path) for path in self._files("rest")), None)
        try:
            stamp, before = read["stamp"], read["before"]
            if stamp is not None:
                number, attempt, client = stamp
                stamp = (number, attempt, client)
            before = None if before is None else np.array(before.numpy())
            return Residual(stamp, before, np.array(read["after"].numpy()))
        except (TypeError, KeyError, AttributeError, ValueError):
            return None

    # ---- private tensors

    def put_private(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write the private tensors, or raise EdgeFailed."""
        self._write("private", dict(tensors))

    def private(self) -> Mapping[str, torch.Tensor]:
        """Return the saved private tensors, by name; none if they cannot be read."""
        return self._read_or({}, self._saved_private)

    def _saved_private(self) -> Mapping[str, torch.Tensor]:
        read: Any = next((_checked(path) for path in self._files("private")), None)
        if not isinstance(read, dict):
            return {}
        return {str(name): each for name, each in read.items() if isinstance(each, torch.Tensor)}

    # ---- models

    def models(self) -> Mapping[int, str]:
        """Return the digests of all saved models, by version."""
        named = (path.stem.split("-") for path in self._folder.glob("model-*-*.pt"))
        return {int(words[1]): words[2] for words in named if len(words) == 3 and words[1].isdecimal()}

    def put_model(self, version: int, vector: Vector) -> None:
        """Write a common model; keep besides only the one before, from which work may still be requested.

        Later versions were made by a server that has since gone back to an earlier checkpoint.
        """
        self._write(f"model-{version}", torch.from_numpy(np.array(vector)), digest_of(vector))
        here = self.models()
        before = max((each for each in here if each < version), default=version)
        for other in here.keys() - {before, version}:
            (self._folder / f"model-{other}-{here[other]}.pt").unlink(missing_ok=True)

    def drop_models_after(self, version: int) -> None:
        """Discard later models: the server has gone back to this one, and makes others of these versions."""
        for other, digest in self.models().items():
            if other > version:
                (self._folder / f"model-{other}-{digest}.pt").unlink(missing_ok=True)

    def model(self, version: int) -> Vector | None:
        """Return the memory-mapped model of this version, or None if it cannot be read."""
        return self._read_or(None, lambda: self._saved_model(version))

    def _saved_model(self, version: int) -> Vector | None:
        digest = self.models().get(version)
        if digest is None:
            return None
        path = self._folder / f"model-{version}-{digest}.pt"
        read = _read(path)
        if isinstance(read, torch.Tensor) and read.dtype == torch.float32 and read.ndim == 1:
            vector: Vector = read.numpy()
            if digest_of(vector) == digest:
                return vector
        path.unlink(missing_ok=True)
        return None

    # ---- files

    def _read_or(self, instead: T, read: Callable[[], T]) -> T:
        """Return what `read` finds, or `instead` if it fails: work that cannot be read can be done again."""
        try:
            with guarded("the client cache", str(self._folder), EdgeFailed):
                return read()
        except EdgeFailed:
            return instead

    def _files(self, stem: str) -> list[Path]:
        return list(self._folder.glob(f"{stem}-*.pt"))

    def _remove(self, stem: str, but: Path | None = None) -> None:
        for path in self._files(stem):
            if path != but:
                with suppress(OSError):  # as on a disk that became read-only: a later process ignores it
                    path.unlink()

    def _write(self, stem: str, content: object, digest: str = "") -> None:
        """Write a file, replacing others of this stem; its name ends with the digest."""
        temporary = self._folder / f"{stem}.{os.getpid()}.part"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            torch.save(content, temporary)
            path = self._folder / f"{stem}-{digest or file_digest(temporary)}.pt"
            temporary.replace(path)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise EdgeFailed(
                f"cache {self._folder / stem}: could not be written: {text_of(error)}"
            ) from error
        self._remove(stem, but=path)


def _checked(path: Path) -> Any:  # noqa: ANN401  the content of a file
    """Return a file's content if its digest matches its name, else None."""
    try:
        return _read(path) if file_digest(path) == path.stem.rpartition("-")[2] else None
    except OSError:
        return None


def _read(path: Path) -> Any:  # noqa: ANN401  the content of a file
    try:
        return torch.load(path, weights_only=True, mmap=True)
    except Exception:  # torch raises many kinds of error for invalid files
        return None


def _info_in(about: Mapping[str, Any]) -> TrajectoryInfo:
    """Return the description in a file; raise TypeError or ValueError if a field is of another type."""
    info = TrajectoryInfo(**about)
    for each in fields(info):
        kinds = (int, float) if each.type is float else (each.type,)
        if type(getattr(info, each.name)) not in kinds:
            raise TypeError(f"saw another type of {each.name}")
    if info.chunk == LOCAL_TRAJECTORY:
        chunk_numbers(info.name)
    return info


def _trajectory(path: Path) -> tuple[TrajectoryInfo, Saved] | None:
    read = _checked(path)
    try:
        saved = Saved(read["vector"].numpy(), list(read["unsent"]), dict(read["optimizer"]))
        return _info_in(read["about"]), saved
    except (TypeError, KeyError, AttributeError, ValueError):
        return None
