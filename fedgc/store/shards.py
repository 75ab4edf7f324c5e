"""The tensors of a large checkpoint as safetensors files, in the form that Hugging Face's libraries read.

A model of one file is `model.safetensors`. A larger one has several, of whole tensors, each of at most
`SHARD_BYTES` unless one tensor is longer, and `model.safetensors.index.json` names the file of each tensor.
The files hold the model's vector in its order, as float32, so that it is written and read without a copy.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.errors import EdgeFailed
from fedgc.files import FOLDER, opener

SHARD_BYTES: Final = 10**9
NUMBERS: Final = np.dtype("<f4")
WHOLE: Final = "model"  # a model without named tensors is one
INDEX: Final = "model.safetensors.index.json"
_LENGTH: Final = struct.Struct("<Q")
_PIECE: Final = 1 << 24

Vector = NDArray[np.float32]
Shapes = Sequence[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Shard:
    """One file beside a checkpoint; one without numbers is the index."""

    name: str
    numbers: int
    size_bytes: int
    sha256: str


def write(folder: Path, shapes: Shapes, model: Vector) -> tuple[Shard, ...]:
    """Write a model into a new folder, synced; return its files.

    `shapes` names the tensors of the vector, in its order; if it is empty, the vector is one tensor.
    """
    model = np.ascontiguousarray(model, NUMBERS)
    groups = list(_groups(shapes or [(WHOLE, (model.size,))]))
    folder.mkdir(mode=FOLDER)
    made, first = [], 0
    places: dict[str, str] = {}
    for at, group in enumerate(groups, start=1):
        name = f"model-{at:05d}-of-{len(groups):05d}.safetensors" if len(groups) > 1 else "model.safetensors"
        numbers = sum(prod(shape) for _, shape in group)
        header = _header(group)
        data = model[first : first + numbers]
        made.append(_written(folder / name, numbers, (_LENGTH.pack(len(header)), header, *_pieces(data))))
        places |= {tensor: name for tensor, _ in group}
        first += numbers
    if len(groups) > 1:
        index = {"metadata": {"total_size": model.nbytes}, "weight_map": places}
        made.append(_written(folder / INDEX, 0, [json.dumps(index, indent=1).encode()]))
    return tuple(made)


def read(folder: Path, shards: Sequence[Shard]) -> Vector:
    """Return the vector of these files; raise EdgeFailed or OSError if one of them is damaged or missing."""
    for each in shards:
        if (seen := (folder / each.name).stat().st_size) != each.size_bytes:
            raise EdgeFailed(f"{each.name}: saw {seen} bytes, needed {each.size_bytes}")
        if each.numbers * NUMBERS.itemsize > each.size_bytes:
            raise EdgeFailed(f"{each.name}: saw {each.size_bytes} bytes for {each.numbers} numbers")
    vector: Vector = np.empty(sum(each.numbers for each in shards), np.float32)
    first = 0
    for each in shards:
        _read(folder / each.name, each, vector[first : first + each.numbers])
        first += each.numbers
    return vector.astype(np.float32, copy=False)


def _groups(shapes: Shapes) -> Iterator[Shapes]:
    """Cut the tensors into the groups of one file each."""
    group: list[tuple[str, tuple[int, ...]]] = []
    size = 0
    for name, shape in shapes:
        own = prod(shape) * NUMBERS.itemsize
        if group and size + own > SHARD_BYTES:
            yield group
            group, size = [], 0
        group.append((name, shape))
        size += own
    yield group


def _header(group: Shapes) -> bytes:
    """Return the header of a safetensors file, padded so that the numbers are aligned."""
    fields: dict[str, object] = {"__metadata__": {"format": "pt"}}
    first = 0
    for name, shape in group:
        last = first + prod(shape) * NUMBERS.itemsize
        fields[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [first, last]}
        first = last
    text = json.dumps(fields, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % _LENGTH.size)


def _pieces(data: Vector) -> Iterator[memoryview]:
    return (data[at : at + _PIECE].data.cast("B") for at in range(0, data.size, _PIECE))


def _written(path: Path, numbers: int, parts: Iterable[bytes | memoryview]) -> Shard:
    digest, size = hashlib.sha256(), 0
    with open(path, "xb", opener=opener) as file:
        for part in parts:
            digest.update(part)
            size += file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return Shard(path.name, numbers, size, digest.hexdigest())


def _read(path: Path, shard: Shard, numbers: Vector) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        before = file.read(shard.size_bytes - numbers.nbytes)
        digest.update(before)
        for piece in _pieces(numbers):
            if file.readinto(piece) != piece.nbytes:
                raise EdgeFailed(f"{path.name}: saw fewer bytes, needed {shard.size_bytes}")
            digest.update(piece)
    if digest.hexdigest() != shard.sha256:
        raise EdgeFailed(f"{path.name}: saw a content that its SHA-256 does not name, needed the one written")


def shards_of(fields: object) -> tuple[Shard, ...]:
    """Return the files that a checkpoint's header names; raise EdgeFailed if they are of another form."""
    if not isinstance(fields, list) or not all(map(_is_shard, fields)):
        raise EdgeFailed("saw a header with other shards, needed names, sizes and digests")
    return tuple(Shard(str(n), int(count), int(size), str(digest)) for n, count, size, digest in fields)


def _is_shard(fields: object) -> bool:
    match fields:
        case [str(name), int(numbers), int(size), str(_)]:
            return Path(name).name == name and min(numbers, size) >= 0
    return False


def fields_of(shards: Sequence[Shard]) -> list[list[str | int]]:
    """Return these files as a part of a checkpoint's header."""
    return [[each.name, each.numbers, each.size_bytes, each.sha256] for each in shards]
