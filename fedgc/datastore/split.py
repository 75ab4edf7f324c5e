"""Splits a dataset into chunks of equal size, whose samples are drawn at random."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedgc.datastore.chunk_bytes import RECORD, Arrays, Form, digest_of, record_digests
from fedgc.datastore.chunk_store import ChunkStore
from fedgc.datastore.keys import chunk_key, wrapped
from fedgc.datastore.manifest import Chunk, Manifest
from fedgc.errors import Unusable, text_of
from fedgc.links.identity import Identity, hold

SALT_BYTES: Final = 16
TEXTS: Final = "SU"
KINDS: Final = "biuf"  # of numpy's types: what tensors hold
WIDEST: Final = 8  # bytes of a number in a tensor


@dataclass(frozen=True, slots=True)
class Site:
    """A site as it writes: its key, and where random bytes come from."""

    key: Identity
    draw: Callable[[int], bytes] = field(repr=False)

    def form(self, salt: str) -> Form:
        """Return how the bytes of its chunks are made."""
        return Form(self.key.public, chunk_key(self.key, bytes.fromhex(salt)) if salt else None)


def read_arrays(source: Path) -> Arrays:
    """Return the arrays of an .npz or .safetensors file, or of a folder of .npy files."""
    try:
        if source.is_dir():
            return {path.stem: np.load(path, mmap_mode="r") for path in sorted(source.glob("*.npy"))}
        if source.suffix == ".safetensors":
            return load_file(source)
        if source.suffix == ".npz":
            with source.open("rb") as file, np.load(file) as found:
                return dict(found)
    except (OSError, ValueError, TypeError, EOFError, BadZipFile, zlib.error, SafetensorError) as error:
        raise Unusable(f"{source}: saw {text_of(error, source)}, needed arrays to split") from error
    raise Unusable(f"{source}: needed a file .npz, .safetensors or .pt, or a folder of .npy files")


def split(
    arrays: Arrays, chunks: int, store: ChunkStore, site: Site, *, ids: str = "", encrypts: bool = False
) -> Manifest:
    """Write a dataset to an empty store, and return the manifest.

    Args:
        arrays: The columns of the dataset, by name: arrays of one length.
        chunks: Number of chunks.
        store: Where they are written.
        site: The site's key.
        ids: The array that names records for their removal; it is no column. By default a record's name is
            its row, counted from 0.
        encrypts: Whether chunks are encrypted, by a key that is made from the site's and a salt.

    Raises:
        Unusable: The store is not empty, the arrays cannot be tensors of one length, or there are fewer
            samples than chunks.
    """
    columns, names = must_split(arrays, chunks, store, ids)
    samples = len(names)
    pieces = np.array_split(np.random.default_rng(0).permutation(samples), chunks)
    salt = site.draw(SALT_BYTES).hex() if encrypts else ""
    form, written = site.form(salt), []
    for number, piece in enumerate(pieces):
        parts = {name: each[piece] for name, each in columns.items()}
        data = form.data({**parts, RECORD: record_digests(names[piece].tolist())}, site.draw)
        written.append(Chunk(number, digest_of(data), len(data), len(piece)))
        store.put(written[-1].digest, data)
    manifest = Manifest(site.key.public.hex(), tuple(columns), tuple(written), salt)
    store.put_manifest(manifest, site.key)
    return manifest


def must_split(arrays: Arrays, chunks: int, store: ChunkStore, ids: str) -> tuple[Arrays, NDArray[Any]]:
    """Return the columns of a dataset and the names of its records, or raise what `split` does."""
    store.must_be_empty()
    if ids and ids not in arrays:
        raise Unusable(f"--ids: saw {ids!r}, needed one of the arrays {', '.join(arrays)}")
    columns = {name: each for name, each in arrays.items() if name != ids}
    return columns, _names(arrays, ids, _samples(columns, chunks, ids))


def admit(store: ChunkStore, site: Site, clients: Sequence[bytes]) -> Manifest:
    """Give the key of the store to these clients, and return the new manifest."""
    with changing(store, site) as manifest:
        if not manifest.salt:
            raise Unusable(
                f"chunk store {store.url}: its chunks are not encrypted, so there is no key to give"
            )
        key, keys = chunk_key(site.key, bytes.fromhex(manifest.salt)), dict(manifest.keys)
        for client in clients:
            keys[client.hex()] = wrapped(key, client, site.key.public).hex()
        admitted = replace(manifest, keys=keys)
        store.put_manifest(admitted, site.key)
    return admitted


@contextmanager
def changing(store: ChunkStore, site: Site) -> Iterator[Manifest]:
    """Yield the manifest of a store, which no other process changes until the end.

    Raises:
        NotAdmitted: The store is of another site.
        EdgeFailed: Another process changes a manifest of this site.
    """
    used = "another command changes data of this site; try again once it has ended"
    with hold(site.key.path, used) if site.key.path else nullcontext():
        yield store.manifest(site.key.public.hex())


def _samples(columns: Arrays, chunks: int, ids: str) -> int:
    lengths = {name: len(each) if each.ndim else 0 for name, each in columns.items()}
    kinds = {name: str(each.dtype) for name, each in columns.items() if not _fits(each.dtype)}
    if kinds:
        texts = [name for name in kinds if columns[name].dtype.kind in TEXTS and not ids]
        hint = f"; if it names the records: --ids {texts[0]}" if texts else ""
        raise Unusable(f"split: saw arrays of types {kinds}, needed numbers of at most 64 bits{hint}")
    if len(set(lengths.values())) != 1 or RECORD in columns:
        raise Unusable(f"split: saw arrays of lengths {lengths}, needed at least one, and one length for all")
    samples = next(iter(lengths.values()))
    if not 1 <= chunks <= samples:
        raise Unusable(f"split: saw {chunks} chunks of {samples} samples, needed 1 to {samples} chunks")
    return samples


def _fits(dtype: np.dtype[Any]) -> bool:
    """Return whether tensors can hold numbers of this type."""
    return dtype.kind in KINDS and dtype.itemsize <= WIDEST


def _names(arrays: Arrays, ids: str, samples: int) -> NDArray[Any]:
    if not ids:
        return np.arange(samples)
    if arrays[ids].shape != (samples,):
        raise Unusable(f"--ids: saw {ids!r}, needed an array with one name for each of {samples} samples")
    try:
        return np.strings.decode(arrays[ids], "utf-8") if arrays[ids].dtype.kind == "S" else arrays[ids]
    except UnicodeDecodeError as error:
        raise Unusable(f"--ids: saw {ids!r} with bytes that are no UTF-8 ({error}), needed names") from error
