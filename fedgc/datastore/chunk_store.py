"""The store of a site's chunks: a folder of fsspec, on a disk, in an object store, or behind HTTP.

manifest                the signed manifest
chunks/DIGEST           the bytes of one chunk, by their SHA-256
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import fsspec

from fedgc.datastore.manifest import MOST_BYTES, Chunk, Manifest, read_manifest
from fedgc.errors import EdgeFailed, FedgcError, Unusable, text_of
from fedgc.guards import guarded
from fedgc.links.identity import Identity

BLOCK_BYTES: Final = 2 << 20
LOGIN: Final = re.compile(r"(?<=://)[^/\s]*@")  # user and password in a URL: errors travel to the server


class ChunkStore:
    """Reads and writes the files of one store."""

    def __init__(self, url: str) -> None:
        """Raise Unusable if no installed package knows this kind of URL."""
        self.url: Final = LOGIN.sub("", url)  # as messages name it
        self._root = ""
        with self._access():
            self._files, root = fsspec.core.url_to_fs(url)
            self._root = root.rstrip("/")

    def manifest(self, site: str = "") -> Manifest:
        """Return the manifest, which must be signed by `site`."""
        with self._access():
            data = self._files.cat_file(f"{self._root}/manifest", start=0, end=MOST_BYTES)
        return read_manifest(data, site)

    def must_be_empty(self) -> None:
        """Raise Unusable if there is a manifest, or chunks, as of a `split` that was interrupted."""
        with self._access():
            if self._files.exists(f"{self._root}/manifest"):
                raise Unusable(f"chunk store {self.url}: saw a manifest, needed an empty store")
            if self._files.exists(f"{self._root}/chunks") and (left := self.digests()):
                raise Unusable(
                    f"chunk store {self.url}: saw {len(left)} files in chunks and no manifest, needed an "
                    "empty store; remove them if an interrupted split has left them"
                )

    def put_manifest(self, manifest: Manifest, site: Identity) -> None:
        """Replace the manifest at once."""
        with self._access():
            self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(f"{self._root}/manifest.part", manifest.signed(site))
            self._files.mv(f"{self._root}/manifest.part", f"{self._root}/manifest")

    def put(self, digest: str, data: bytes) -> None:
        """Write the bytes of a chunk."""
        with self._access():
            self._files.makedirs(f"{self._root}/chunks", exist_ok=True)
            self._files.pipe_file(self._path(digest), data)

    def remove(self, digest: str) -> None:
        """Remove the bytes of a chunk."""
        with self._access():
            self._files.rm_file(self._path(digest))

    def blocks(self, chunk: Chunk) -> Iterator[bytes]:
        """Yield the bytes of a chunk, never more than one beyond its size."""
        left = chunk.size_bytes + 1
        options = {"block_size": BLOCK_BYTES, "cache_type": "none"}  # each block is read once
        with self._access(), self._files.open(self._path(chunk.digest), "rb", **options) as file:
            while left and (block := file.read(min(BLOCK_BYTES, left))):
                left -= len(block)
                yield block

    def digests(self) -> frozenset[str]:
        """Return the digests of all chunk files that are there."""
        with self._access():
            return frozenset(
                path.rpartition("/")[2] for path in self._files.ls(f"{self._root}/chunks", False)
            )

    def _path(self, digest: str) -> str:
        return f"{self._root}/chunks/{digest}"

    @contextmanager
    def _access(self) -> Iterator[None]:
        """Turn the errors of fsspec and its packages into those of fedgc."""
        with guarded("a chunk store", self.url, EdgeFailed):
            try:
                yield
            except FedgcError:
                raise
            except (ImportError, ValueError) as error:  # another package is needed; an unknown protocol
                raise Unusable(f"chunk store {self.url}: {_shown(error)}") from error
            except OSError as error:
                raise EdgeFailed(f"chunk store {self.url}: {_shown(error, self._root)}") from error


def _shown(error: Exception, root: str = "") -> str:
    """Return the text of an error without the login in a URL."""
    return LOGIN.sub("", text_of(error, root))
