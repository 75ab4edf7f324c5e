"""What outlives a device's process: trajectories and models, each in a file that is whole or not there.

A trajectory's file says itself what it is (`About`), so that there is no list that could differ from what
lies there. A file is written under another name and then renamed: a process that is killed leaves what was
there before. Tensors are read as maps of their file, and by torch's restricted loader: a file can be wrong,
but it cannot run code. What cannot be read counts as not there, for its work can be done again.

The folder belongs to one device and one set of settings that shape its training; whoever opens it sees to
that, and to it that no two processes use it at once.

May import: errors; flat, shelf, together of this room.
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
from fedgc.train.flat import Vector
from fedgc.train.shelf import Saved
from fedgc.train.together import Rest

MODELS_KEPT: Final = 2  # the newest, and the one before it: a device may still be asked for its work from it


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


class Lasting:
    """The files of one folder; it is made when the first of them is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[int, About] = {}

    # ---- trajectories

    def found(self) -> Mapping[int, tuple[About, Saved]]:
        """Return the trajectories of the newest model that has any, by chunk; remove all others.

        What a process that was killed has half written goes too: this is asked first of all.
        """
        read = [each for path in self._folder.glob("chunk-*.pt") if (each := _trajectory(path)) is not None]
        newest = max((about.version for about, _ in read), default=-1)
        kept = {about.chunk: (about, saved) for about, saved in read if about.version == newest}
        self._known = {chunk: about for chunk, (about, _) in kept.items()}
        for path in self._folder.glob("chunk-*.pt"):
            if path not in map(self._chunk, kept):
                path.unlink(missing_ok=True)
        for part in self._folder.glob("*.part"):
            part.unlink(missing_ok=True)
        return kept

    def put(self, about: About, saved: Saved) -> None:
        """Keep this in place of what there was of the chunk, or raise EdgeFailed."""
        if self._known.get(about.chunk) == about:
            return
        parts = {"vector": torch.from_numpy(saved.vector), "unsent": saved.unsent}
        self._write(
            self._chunk(about.chunk),
            {"about": asdict(about), "optimiser": dict(saved.optimiser), **parts},
        )
        self._known[about.chunk] = about

    def drop(self, chunk: int) -> None:
        """Forget the chunk."""
        if self._known.pop(chunk, None) is not None:
            self._chunk(chunk).unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget every trajectory; models stay."""
        for chunk in list(self._known):
            self.drop(chunk)

    # ---- what rounding has cost

    def put_rest(self, rest: Rest) -> None:
        """Keep what the next update must make good, or raise EdgeFailed."""
        parts = {"before": torch.from_numpy(rest.before), "after": torch.from_numpy(rest.after)}
        self._write(self._folder / "rest.pt", {"stamp": list(rest.stamp), **parts})

    def rest(self) -> Rest | None:
        """Return what was kept, if it can be read."""
        read = _read(self._folder / "rest.pt")
        try:
            number, attempt, device = read["stamp"]
            return Rest(
                (number, attempt, device), *(np.array(read[name].numpy()) for name in ("before", "after"))
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
        stale = [
            path for path in self._folder.glob("model-*-*.pt") if path.stem.startswith(f"model-{version}-")
        ]
        path = self._folder / f"model-{version}-{digest_of(vector)}.pt"
        self._write(path, torch.from_numpy(np.array(vector)))
        for each in stale:
            if each != path:
                each.unlink(missing_ok=True)
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
        if not isinstance(read, torch.Tensor):
            path.unlink(missing_ok=True)
            return None
        return read.numpy()

    # ---- small print

    def _chunk(self, chunk: int) -> Path:
        return self._folder / f"chunk-{chunk}.pt"

    def _write(self, path: Path, content: object) -> None:
        temporary = path.with_suffix(f".{os.getpid()}.part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            torch.save(content, temporary)
            temporary.replace(path)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise EdgeFailed(f"shelf {path}: could not be written: {error}") from error


def _read(path: Path) -> Any:  # noqa: ANN401  whatever the file holds
    try:
        return torch.load(path, weights_only=True, mmap=True)
    except Exception:  # torch raises half a dozen kinds for bytes that are not its own
        return None


def _trajectory(path: Path) -> tuple[About, Saved] | None:
    read = _read(path)
    try:
        saved = Saved(read["vector"].numpy(), list(read["unsent"]), dict(read["optimiser"]))
        return About(**read["about"]), saved
    except (TypeError, KeyError, AttributeError, ValueError):
        return None
