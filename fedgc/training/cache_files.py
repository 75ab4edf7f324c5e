"""What outlives a client's process: trajectories and models, each in a file that is whole or not there.

A trajectory's file says itself what it is (`About`), so that there is no list that could differ from what
lies there. A file is written under another name and then renamed: a process that is killed leaves what was
there before. Each name ends with a digest, of the file's bytes or of a model's numbers, which is checked when
the file is read: a file that was changed counts as not there, for its work can be done again. Tensors are
read as maps of their file, and by torch's restricted loader: a file cannot run code.

The folder belongs to one client and one set of settings that shape its training; whoever opens it sees to
that, and to it that no two processes use it at once.
"""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from fedgc.errors import EdgeFailed
from fedgc.training.cache import Saved, file_digest
from fedgc.training.flat import Vector
from fedgc.training.local_update import Rest

MODELS_KEPT: Final = 2  # the newest, and the one before it: a client may still be asked for its work from it


@dataclass(frozen=True, slots=True)
class About:
    """Which trajectory: from which model by which seed, of which chunk, and how far."""

    version: int
    model: str  # digest of the common model's vector
    seed: int
    chunk: int
    name: str
    samples: int
    reached: int
    seconds: float
    losses: float
    led: float  # steps that shared momentum led, each by its share of the learning rate
    first_step: int  # these two as in `Work`
    common_steps: float
    before: str  # digest of the model before, where that led; else nothing


def digest_of(vector: Vector) -> str:
    """Return what tells one common model from another of the same version."""
    return hashlib.sha256(np.ascontiguousarray(vector, np.float32).data.cast("B")).hexdigest()


class CacheFiles:
    """The files of one folder; it is made when the first of them is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[int, About] = {}

    # ---- trajectories

    def found(self) -> Mapping[int, tuple[About, Saved]]:
        """Return the trajectories of the newest model that has any, by chunk; remove all others.

        What a process that was killed has half written goes too: this is asked first of all.
        """
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

    def put(self, about: About, saved: Saved) -> None:
        """Keep this in place of what there was of the chunk, or raise EdgeFailed."""
        if self._known.get(about.chunk) == about:
            return
        parts = {"vector": torch.from_numpy(saved.vector), "unsent": saved.unsent}
        self._write(
            f"chunk-{about.chunk}",
            {"about": asdict(about), "optimizer": dict(saved.optimizer), **parts},
        )
        self._known[about.chunk] = about

    def drop(self, chunk: int) -> None:
        """Forget the chunk."""
        if self._known.pop(chunk, None) is not None:
            self._remove(f"chunk-{chunk}")

    def clear(self) -> None:
        """Forget every trajectory; models stay."""
        for chunk in list(self._known):
            self.drop(chunk)

    # ---- what rounding has cost

    def put_rest(self, rest: Rest) -> None:
        """Keep what the next update must make good, or raise EdgeFailed."""
        parts = {"before": torch.from_numpy(rest.before), "after": torch.from_numpy(rest.after)}
        self._write("rest", {"stamp": list(rest.stamp), **parts})

    def rest(self) -> Rest | None:
        """Return what was kept, if it can be read."""
        read: Any = next((_checked(path) for path in self._files("rest")), None)
        try:
            number, attempt, client = read["stamp"]
            return Rest(
                (number, attempt, client), *(np.array(read[name].numpy()) for name in ("before", "after"))
            )
        except (TypeError, KeyError, AttributeError, ValueError):
            return None

    # ---- models

    def models(self) -> Mapping[int, str]:
        """Return the digest of every model that is here, by version."""
        named = (path.stem.split("-") for path in self._folder.glob("model-*-*.pt"))
        return {int(version): digest for _, version, digest in named if version.isdecimal()}

    def put_model(self, version: int, vector: Vector) -> None:
        """Keep a common model, and no more than the few newest."""
        self._write(f"model-{version}", torch.from_numpy(np.array(vector)), digest_of(vector))
        here = self.models()
        for old in sorted(here)[:-MODELS_KEPT]:
            (self._folder / f"model-{old}-{here[old]}.pt").unlink(missing_ok=True)

    def model(self, version: int) -> Vector | None:
        """Return the model of this version as a map of its file, if it is here and can be read."""
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

    # ---- small print

    def _files(self, stem: str) -> list[Path]:
        return list(self._folder.glob(f"{stem}-*.pt"))

    def _remove(self, stem: str, but: Path | None = None) -> None:
        for path in self._files(stem):
            if path != but:
                path.unlink(missing_ok=True)

    def _write(self, stem: str, content: object, digest: str = "") -> None:
        """Write this in place of what there was under this stem; its name ends with the digest."""
        temporary = self._folder / f"{stem}.{os.getpid()}.part"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            torch.save(content, temporary)
            path = self._folder / f"{stem}-{digest or file_digest(temporary)}.pt"
            temporary.replace(path)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise EdgeFailed(f"cache {self._folder / stem}: could not be written: {error}") from error
        self._remove(stem, but=path)


def _checked(path: Path) -> Any:  # noqa: ANN401  whatever the file holds
    """Return what a file holds whose bytes its name tells, else None."""
    try:
        return _read(path) if file_digest(path) == path.stem.rpartition("-")[2] else None
    except OSError:
        return None


def _read(path: Path) -> Any:  # noqa: ANN401  whatever the file holds
    try:
        return torch.load(path, weights_only=True, mmap=True)
    except Exception:  # torch raises half a dozen kinds for bytes that are not its own
        return None


def _trajectory(path: Path) -> tuple[About, Saved] | None:
    read = _checked(path)
    try:
        saved = Saved(read["vector"].numpy(), list(read["unsent"]), dict(read["optimizer"]))
        return About(**read["about"]), saved
    except (TypeError, KeyError, AttributeError, ValueError):
        return None
