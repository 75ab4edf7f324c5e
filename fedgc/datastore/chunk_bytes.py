"""A chunk as bytes: arrays of one length in the format of safetensors, encrypted if the site wants it.

Beside the arrays of the samples lies `RECORD`: a digest for each sample, by which a record is found again.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedgc.datastore.keys import NONCE_BYTES, opened, sealed
from fedgc.datastore.manifest import Chunk, Manifest
from fedgc.errors import Refused

Arrays = Mapping[str, NDArray[Any]]

RECORD: Final = "fedgc.record"
RECORD_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Form:
    """How the bytes of a site's chunks are made; without a key they are not encrypted."""

    site: bytes
    key: bytes | None = field(repr=False)

    def data(self, arrays: Arrays, draw: Callable[[int], bytes]) -> bytes:
        """Return the bytes of a chunk; `draw` gives random bytes."""
        plain = save({name: np.ascontiguousarray(each) for name, each in arrays.items()})
        return plain if self.key is None else sealed(plain, self.key, draw(NONCE_BYTES), self.site)

    def arrays(self, chunk: Chunk, data: bytes, manifest: Manifest) -> Arrays:
        """Return the arrays of a chunk, or raise Refused with its name."""
        try:
            must_match(chunk, data)
            found = load(data if self.key is None else opened(data, self.key, self.site))
        except (Refused, SafetensorError) as error:
            raise Refused(f"{chunk.name}: {error}") from error
        lengths = {name: len(found[name]) for name in manifest.columns if name in found}
        if lengths != dict.fromkeys(manifest.columns, chunk.samples):
            raise Refused(f"{chunk.name}: saw samples {lengths}, needed {chunk.samples} of each column")
        return found


def digest_of(data: bytes) -> str:
    """Return the digest that names a chunk."""
    return hashlib.sha256(data).hexdigest()


def must_match(chunk: Chunk, data: bytes) -> None:
    """Raise Refused if these are not the bytes that the manifest names."""
    if len(data) != chunk.size_bytes:
        what = "truncated" if len(data) < chunk.size_bytes else "too long"
        raise Refused(f"{what}: saw {len(data)} bytes, needed {chunk.size_bytes}")
    if digest_of(data) != chunk.digest:
        raise Refused(f"corrupted, or another chunk: needed bytes of digest {chunk.digest[:16]}")


def record_digests(records: Iterable[object]) -> NDArray[np.uint8]:
    """Return a digest of each record's name, one a row."""
    digests = b"".join(
        hashlib.blake2b(str(each).encode(), digest_size=RECORD_BYTES).digest() for each in records
    )
    return np.frombuffer(digests, np.uint8).reshape(-1, RECORD_BYTES)
