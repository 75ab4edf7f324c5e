"""The chunks on a client's disk: as they lie in the store (encrypted, if they are there), within a quota.

One process at a time uses the folder: it belongs to one client, whose identity is locked. Threads of that
process may share it: a chunk that is here does not wait for one that is being fetched.
"""

import hashlib
import os
import time
from collections.abc import Collection
from pathlib import Path
from threading import Condition
from typing import Final

from fedgc.datastore.chunk_store import ChunkStore
from fedgc.datastore.manifest import Chunk
from fedgc.errors import EdgeFailed, Refused, text_of


class ChunkCache:
    """Files by digest; the least recently used make room for new ones."""

    def __init__(self, folder: Path, quota_bytes: int, store: ChunkStore) -> None:
        """Take over what an earlier process left, as far as the quota allows."""
        self.quota_bytes: Final = quota_bytes
        self._folder, self._store, self._changed = folder, store, Condition()
        self._fetching: dict[str, int] = {}  # sizes by digest
        self._fetched = 0, 0, 0.0
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
            self._sizes = {path.name: path.stat().st_size for path in files}  # the least recently used first
            self.forget({name for name in self._sizes if name.endswith(".part")})
            self._make_room(0)
        except OSError as error:
            raise EdgeFailed(
                f"chunks {folder}: {text_of(error, folder)}, needed a folder to write"
            ) from error

    @property
    def used_bytes(self) -> int:
        """The bytes of all files, and of those that are being fetched."""
        return sum(self._sizes.values()) + sum(self._fetching.values())

    @property
    def digests(self) -> frozenset[str]:
        """The digests of the chunks that are here."""
        return frozenset(self._sizes)

    def bytes_of(self, chunk: Chunk) -> bytes:
        """Return the bytes of a chunk, fetched if they are not here; the reader verifies them.

        Raises:
            Refused: The store has other bytes under this name.
            EdgeFailed: The store or the disk failed, or the quota is smaller than the chunk.
        """
        while True:
            self.fetch(chunk)
            with self._changed:
                if chunk.digest not in self._sizes:
                    continue  # another one has taken its room
                try:
                    os.utime(self._folder / chunk.digest)
                    self._sizes[chunk.digest] = self._sizes.pop(chunk.digest)
                    return (self._folder / chunk.digest).read_bytes()
                except OSError as error:
                    raise EdgeFailed(f"{chunk.name}: {text_of(error)}, needed a file to read") from error

    def fetch(self, chunk: Chunk, *, evicts: bool = True) -> bool:
        """Fetch a chunk; return whether it is here. Unless `evicts`, it takes only room that is free."""
        with self._changed:
            self._changed.wait_for(lambda: self._may_begin(chunk, evicts=evicts))
            if chunk.digest in self._sizes:
                return True
            if not evicts and self.used_bytes + chunk.size_bytes > self.quota_bytes:
                return False
            self._make_room(chunk.size_bytes)
            self._fetching[chunk.digest] = chunk.size_bytes
        part = self._folder / f"{chunk.digest}.part"
        try:
            began = time.monotonic()
            self._write(chunk, part)
            with self._changed:
                part.replace(self._folder / chunk.digest)
                self._sizes[chunk.digest] = chunk.size_bytes
                self._count(chunk.size_bytes, time.monotonic() - began)
        except OSError as error:
            raise EdgeFailed(f"{chunk.name}: {text_of(error)}, needed a disk to write to") from error
        finally:
            with self._changed:
                part.unlink(missing_ok=True)
                del self._fetching[chunk.digest]
                self._changed.notify_all()
        return True

    def _may_begin(self, chunk: Chunk, *, evicts: bool) -> bool:
        """Whether no other thread fetches this chunk, or what leaves no room for it."""
        arriving = sum(self._fetching.values())
        too_many = arriving > 0 and arriving + chunk.size_bytes > self.quota_bytes
        return chunk.digest not in self._fetching and not (evicts and too_many)

    def fetched(self) -> tuple[int, int, float]:
        """Return the chunks, bytes and seconds of what was fetched since the last call."""
        with self._changed:
            done, self._fetched = self._fetched, (0, 0, 0.0)
        return done

    def forget(self, digests: Collection[str]) -> None:
        """Remove these chunks."""
        with self._changed:
            for digest in digests:
                (self._folder / digest).unlink(missing_ok=True)
                self._sizes.pop(digest, None)

    def _count(self, size_bytes: int, seconds: float) -> None:
        chunks, size, taken_s = self._fetched
        self._fetched = chunks + 1, size + size_bytes, taken_s + seconds

    def _write(self, chunk: Chunk, path: Path) -> None:
        """Write the bytes of a chunk from the store, at most as many as it has, and verify them."""
        hashed, size = hashlib.sha256(), 0
        with path.open("wb") as file:
            for block in self._store.blocks(chunk):
                size += len(block)
                if size > chunk.size_bytes:
                    break
                hashed.update(block)
                file.write(block)
        if size != chunk.size_bytes:
            what = "truncated" if size < chunk.size_bytes else "too long"
            raise Refused(f"{chunk.name}: {what}: saw {size} bytes, needed {chunk.size_bytes}")
        if hashed.hexdigest() != chunk.digest:
            raise Refused(f"{chunk.name}: corrupted, or another chunk: saw digest {hashed.hexdigest()[:16]}")

    def _make_room(self, size_bytes: int) -> None:
        if size_bytes > self.quota_bytes:
            raise EdgeFailed(f"chunks: saw a quota of {self.quota_bytes} bytes, needed {size_bytes}")
        while self._sizes and self.used_bytes + size_bytes > self.quota_bytes:
            self.forget({next(iter(self._sizes))})
