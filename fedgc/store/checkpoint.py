"""Checkpoints: the state that a run needs to resume, in files written atomically.

A checkpoint is written under a temporary name, synced and renamed, and its folder is synced. So a visible
file is complete unless the disk fails; every file ends in the SHA-256 of its content to detect that. Reading
starts at the newest version and takes the first valid one. Layout, little-endian: magic, length of the
header, header (JSON), model (float32), optimizer, digest. Nothing is unpickled, so a bad checkpoint cannot
run code.

A model of more than `INLINE_BYTES` is not in this file, but in a folder of the same name beside it
(`shards`), which is synced before. The header holds the SHA-256 of its files.
"""

import contextlib
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fedgc.errors import BadSetting, EdgeFailed, FedgcError, Unusable, system_errors, text_of
from fedgc.files import FOLDER, make_folder, opener, sync
from fedgc.guards import guarded
from fedgc.store import shards
from fedgc.store.shards import NUMBERS, Shard

MAGIC: Final = b"fedgc-checkpoint-1\n"
_LENGTH: Final = struct.Struct("<Q")
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_LONGEST_HEADER: Final = 1 << 28  # a larger length means a damaged file
_ASIDE: Final = "aside-"
Shapes = tuple[tuple[str, tuple[int, ...]], ...]
_BEST: Final = "best"  # the folder of the pinned version
INLINE_BYTES: Final = 64 * 2**20  # a larger model is in shards


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The run after `round`: the model of `version`, its optimizer, and the run's state as JSON text.

    `layout` names the tensors of the model if no task does: `messages.Layout` as text, or
    `flower.stock_layout.Layout` in a run with stock clients. `site` holds the
    granted steps (`run.site_steps` as text), if the run is that of a site. `privacy` says what is
    spent (`training.private_mean` as text), with client-level privacy. `shapes` are the names and shapes
    of the tensors, in the model's order. `figures` are those of the run's first models (`run.collapse` as
    text). Earlier versions of fedgc wrote neither.
    """

    round: int
    version: int
    model: npt.NDArray[np.float32]
    optimizer: bytes
    state: str
    layout: str = ""
    site: str = ""
    privacy: str = ""
    shapes: Shapes = ()
    figures: str = ""

    def __post_init__(self) -> None:
        if self.round < 0 or self.version < 0:
            raise Unusable(f"checkpoint: saw round {self.round}, version {self.version}, needed 0 or more")
        if self.model.dtype != np.float32 or self.model.ndim != 1:
            raise Unusable(
                f"checkpoint: saw a model of {self.model.dtype} with {self.model.ndim} axes, "
                "needed one float32 vector"
            )
        named = sum(prod(shape) for _, shape in self.shapes)
        if self.shapes and named != self.model.size:
            raise Unusable(f"checkpoint: saw tensors of {named} numbers, needed {self.model.size}")
        try:
            json.loads(self.state)
        except (ValueError, RecursionError) as error:
            raise Unusable(f"checkpoint: saw a state that is not JSON ({error}), needed JSON text") from error

    def must_fit(self, shapes: Shapes) -> None:
        """Raise BadSetting unless a run whose model has these tensors can go on from this checkpoint."""
        if self.model.size != (size := sum(prod(shape) for _, shape in shapes)):
            raise BadSetting(
                f"setting resume: saw a model of {self.model.size} numbers, needed {size}, as this task's"
            )
        for seen, needed in zip(self.shapes, shapes, strict=False):
            if seen != needed:
                raise BadSetting(
                    f"setting resume: saw a model with {_named(seen)}, needed {_named(needed)} in its place, "
                    "as this task's"
                )


def _named(tensor: tuple[str, tuple[int, ...]]) -> str:
    name, shape = tensor
    return f"{name} of shape {list(shape)}"


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write the checkpoint, then remove all but the newest `keep`; return its file.

    Versions above this one are removed as well: a resume from an earlier version has abandoned them.
    """
    if keep < 1:
        raise Unusable(f"checkpoints to keep: saw {keep}, needed at least 1")
    path = folder / _name(checkpoint.version)
    with system_errors(f"checkpoint {path}: could not be written"):
        make_folder(folder)
        _write(path, checkpoint)
        _prune(folder, checkpoint.version, keep)
    return path


def pin(folder: Path, checkpoint: Checkpoint) -> Path:
    """Keep a copy of this version that `save` does not remove, in place of the one that was pinned before."""
    pinned = folder / _BEST
    path = pinned / _name(checkpoint.version)
    with system_errors(f"checkpoint {path}: could not be written"):
        make_folder(pinned)
        if _is_of(folder / _name(checkpoint.version), checkpoint):
            _copy(folder / _name(checkpoint.version), path, lambda: checkpoint)
        else:
            _write(path, checkpoint)
        sync(pinned)
        for other in _saved(pinned):
            if other != path:
                _remove(other)
    return path


def load(
    folder: Path, version: int | None = None, tell: Callable[[str], None] = lambda _: None
) -> Checkpoint:
    """Return the newest valid checkpoint, or that of `version`.

    `tell` gets one line if newer ones were skipped: which, why, and which one is used in their place.
    """
    paths = [folder / _name(version)] if version is not None else _saved(folder)[::-1]
    reasons = []
    for path in paths:
        try:
            found = _read(path)
        except (FedgcError, OSError) as error:
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            reasons.append(f"checkpoint {path.name}: skipped: {text_of(cause, path)}")
            continue
        if reasons:
            tell(f"{'; '.join(reasons)}; {path.name}, of round {found.round}, is used in its place")
        return found
    seen = "; ".join(reasons) if reasons else "none"
    raise Unusable(f"checkpoints in {folder}: saw {seen}, needed a whole one")


def versions(folder: Path) -> tuple[int, ...]:
    """Return the versions that exist, oldest first; only loading checks them."""
    return tuple(_version(path) for path in _saved(folder))


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint's file by its first and last bytes; only loading checks the rest."""

    path: Path
    version: int
    round: int
    digest: str
    size_bytes: int
    written: float  # seconds since 1970
    privacy: str = ""

    @property
    def aside(self) -> bool:
        """Whether a restore has moved it aside."""
        return self.path.parent.name.startswith(_ASIDE)

    @property
    def pinned(self) -> bool:
        """Whether this is the copy of the best version."""
        return self.path.parent.name == _BEST


def pinned(folder: Path) -> Saved | None:
    """Return the pinned version; only loading checks it."""
    for path in _saved(folder / _BEST):
        with contextlib.suppress(EdgeFailed, OSError):
            return _about(path)
    return None


def listed(folder: Path, *, every: bool = False) -> tuple[Saved, ...]:
    """Return the saved versions of a run, oldest first, the pinned one, then those that were moved aside.

    With `every`, a damaged file is no version that is left out, but raises EdgeFailed.
    """
    paths = [*_saved(folder), *_saved(folder / _BEST)]
    paths += [path for apart in _asides(folder) for path in _saved(apart)]
    found = []
    for path in paths:
        try:
            found.append(_about(path))
        except (EdgeFailed, OSError) as error:  # damaged, or removed meanwhile: nothing to restore
            if every:
                raise EdgeFailed(f"checkpoint {path}: {text_of(error, path)}") from error
    return tuple(found)


def version_of(folder: Path, version: int) -> Checkpoint:
    """Return this version, wherever it is: among the newest, pinned or moved aside."""
    return _read(_found(folder, version).path)


def _found(folder: Path, version: int) -> Saved:
    every = listed(folder)
    for each in every:
        if each.version == version:
            return each
    seen = ", ".join(dict.fromkeys(str(each.version) for each in every)) or "none"
    raise Unusable(f"checkpoints in {folder}: saw versions {seen}, needed {version}")


def restore(folder: Path, version: int) -> Saved:
    """Make this version the newest: move newer versions aside, and move it back from there if necessary.

    The version must be valid. Of several files of one version, the one that is not aside, or that was moved
    aside last, is taken.
    """
    chosen = _found(folder, version)
    with system_errors(f"checkpoint {chosen.path}"):
        _read(chosen.path)
        newer = [path for path in _saved(folder) if _version(path) > version]
        if newer:
            _put_aside(folder, newer)
        if chosen.pinned:
            _copy(chosen.path, folder / _name(version), lambda: _read(chosen.path))
        else:
            _move(chosen.path, folder / _name(version))
        sync(folder)
    return replace(chosen, path=folder / _name(version))


def _put_aside(folder: Path, paths: list[Path]) -> None:
    apart = folder / f"{_ASIDE}{len(_asides(folder)) + 1:04d}"
    apart.mkdir(mode=FOLDER)
    for path in paths:
        _move(path, apart / path.name)
    sync(apart)


def _asides(folder: Path) -> list[Path]:
    """Return the folders of versions moved aside, the last first."""
    return sorted(folder.glob(f"{_ASIDE}*"), reverse=True)


def _about(path: Path) -> Saved:
    with path.open("rb") as file:
        header = _first_of(file, hashlib.sha256())
        file.seek(-_DIGEST_BYTES, os.SEEK_END)
        digest = file.read().hex()
    seen = path.stat()
    size = seen.st_size + sum(each.size_bytes for each in _shards(header))
    return Saved(
        path, int(header["version"]), int(header["round"]), digest, size, seen.st_mtime,
        str(header.get("privacy", "")),
    )  # fmt: skip


def _is_of(path: Path, checkpoint: Checkpoint) -> bool:
    """Whether a file is of this checkpoint: it may be of a version that a resume has abandoned."""
    try:
        with path.open("rb") as file:
            header = _first_of(file, hashlib.sha256())
    except (EdgeFailed, OSError):
        return False
    return (header["round"], header["state"]) == (checkpoint.round, checkpoint.state)  # measured times too


def _name(version: int) -> str:
    return f"model-{version:010d}.fedgc"


def _version(path: Path) -> int:
    return int(path.stem.removeprefix("model-"))


def _saved(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("model-*.fedgc") if path.stem.removeprefix("model-").isdecimal()]
    return sorted(found, key=_version)


def _tensors(path: Path) -> Path:
    """Return the folder of a checkpoint's shards."""
    return path.with_suffix("")


def _remove(path: Path) -> None:
    """Remove a checkpoint, its file first: without it, shards are never read."""
    path.unlink(missing_ok=True)
    shutil.rmtree(_tensors(path), ignore_errors=True)


def _move(path: Path, target: Path) -> None:
    """Move a checkpoint: it is whole in its new place before it leaves the old one."""
    if path == target:
        return
    _remove(target)
    _copy(path, target, lambda: _read(path))
    sync(target.parent)
    _remove(path)


def _copy(path: Path, target: Path, made: Callable[[], Checkpoint]) -> None:
    """Copy a checkpoint: by links, or by writing it if the file is gone or the system has no links."""
    try:
        _link(path, target)
    except OSError:
        _write(target, made())


def _link(path: Path, target: Path) -> None:
    """Make a checkpoint of the same files, its shards first."""
    if _tensors(path).is_dir():
        _tensors(target).mkdir(mode=FOLDER)
        for each in _tensors(path).iterdir():
            (_tensors(target) / each.name).hardlink_to(each)
        sync(_tensors(target))
    target.hardlink_to(path)


def _write(path: Path, checkpoint: Checkpoint) -> None:
    model = np.ascontiguousarray(checkpoint.model, dtype=NUMBERS)
    inline = model.nbytes <= INLINE_BYTES
    temporary, tensors = (path.with_suffix(f".{os.getpid()}.{kind}") for kind in ("part", "shards"))
    try:
        files = () if inline else _write_shards(tensors, checkpoint)
        header = {
            "round": checkpoint.round,
            "version": checkpoint.version,
            "numbers": model.size,
            "optimizer_bytes": len(checkpoint.optimizer),
            "state": checkpoint.state,
            "layout": checkpoint.layout,
            "site": checkpoint.site,
            "privacy": checkpoint.privacy,
            "shapes": checkpoint.shapes,
            "figures": checkpoint.figures,
            "shards": shards.fields_of(files),
        }
        _write_file(temporary, header, [model.data] if inline else [], checkpoint.optimizer)
        if _tensors(path).exists():  # of an abandoned version, or a writer that died
            _remove(path)
        if files:
            tensors.replace(_tensors(path))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
        shutil.rmtree(tensors, ignore_errors=True)
    sync(path.parent)


def _write_shards(folder: Path, checkpoint: Checkpoint) -> tuple[Shard, ...]:
    shutil.rmtree(folder, ignore_errors=True)  # of a writer that died
    files = shards.write(folder, checkpoint.shapes, checkpoint.model)
    sync(folder)
    return files


def _write_file(path: Path, fields: Mapping[str, object], model: list[memoryview], optimizer: bytes) -> None:
    digest, header = hashlib.sha256(), json.dumps(fields).encode()
    with open(path, "wb", opener=opener) as file:
        parts: tuple[bytes | memoryview, ...] = (MAGIC, _LENGTH.pack(len(header)), header, *model, optimizer)
        for part in parts:
            digest.update(part)
            file.write(part)
        file.write(digest.digest())
        file.flush()
        os.fsync(file.fileno())


def _prune(folder: Path, newest: int, keep: int) -> None:
    saved = _saved(folder)
    kept = [path for path in saved if _version(path) <= newest][-keep:]
    for path in saved:
        if path not in kept:
            _remove(path)
    for path in folder.glob("model-*.part"):
        path.unlink(missing_ok=True)
    for path in folder.glob("model-*"):  # of a writer that died
        if path.is_dir() and path not in map(_tensors, kept):
            shutil.rmtree(path, ignore_errors=True)


def _read(path: Path) -> Checkpoint:
    with guarded("a checkpoint", path.name, EdgeFailed):
        try:
            return _read_whole(path)
        except OSError as error:
            raise EdgeFailed(text_of(error)) from error


def _read_whole(path: Path) -> Checkpoint:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        header = _first_of(file, digest)
        files, optimizer_bytes = _shards(header), int(header["optimizer_bytes"])
        numbers = 0 if files else int(header["numbers"])
        size = file.tell() + numbers * NUMBERS.itemsize + optimizer_bytes + _DIGEST_BYTES
        if (seen := path.stat().st_size) != size:
            raise EdgeFailed(f"saw {seen} bytes, needed {size}")
        model = np.frombuffer(_exactly(file, numbers * NUMBERS.itemsize, digest), NUMBERS)
        optimizer = bytes(_exactly(file, optimizer_bytes, digest))
        if file.read() != digest.digest():
            raise EdgeFailed("saw a content that its SHA-256 does not name, needed the one that was written")
    model = shards.read(_tensors(path), files) if files else model
    return Checkpoint(
        int(header["round"]), int(header["version"]), model.astype(np.float32, copy=False), optimizer,
        str(header["state"]), str(header.get("layout", "")), str(header.get("site", "")),
        str(header.get("privacy", "")), _shapes(header), str(header.get("figures", "")),
    )  # fmt: skip


def _shapes(header: Mapping[str, Any]) -> Shapes:
    return tuple((str(name), tuple(map(int, shape))) for name, shape in header.get("shapes", []))


def _shards(header: Mapping[str, Any]) -> tuple[Shard, ...]:
    return shards.shards_of(header.get("shards", []))  # earlier versions of fedgc wrote none


def _first_of(file: BufferedReader, digest: "hashlib._Hash") -> dict[str, Any]:
    """Return the header of a checkpoint, with which it begins."""
    if file.read(len(MAGIC)) != MAGIC:
        raise EdgeFailed("saw other first bytes, needed a checkpoint of this format")
    digest.update(MAGIC)
    return _header(_exactly(file, _header_length(file, digest), digest))


def _header_length(file: BufferedReader, digest: "hashlib._Hash") -> int:
    length = int(_LENGTH.unpack(_exactly(file, _LENGTH.size, digest))[0])
    longest = min(_LONGEST_HEADER, os.fstat(file.fileno()).st_size)
    if length > longest:
        raise EdgeFailed(f"saw a header of {length} bytes, needed at most {longest}")
    return length


def _exactly(file: BufferedReader, size: int, digest: "hashlib._Hash") -> bytearray:
    part = bytearray(size)
    seen = file.readinto(part)
    if seen != size:
        raise EdgeFailed(f"saw {seen} bytes of a part, needed {size}")
    digest.update(part)
    return part


def _header(text: bytearray) -> dict[str, Any]:
    try:
        header = json.loads(text)
        counts = [header[name] for name in ("round", "version", "numbers", "optimizer_bytes")]
        sound = isinstance(header["state"], str) and all(type(n) is int and n >= 0 for n in counts)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise EdgeFailed(f"saw a header that cannot be read ({error}), needed the one written") from error
    if not sound:
        raise EdgeFailed("saw a header with other values, needed counts of 0 or more and a state")
    return dict(header)
