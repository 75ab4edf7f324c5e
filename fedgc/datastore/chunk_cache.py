"""The chunks on a client's disk: as they lie in the store (encrypted, if they are there), within a quota.

The folder belongs to one client, whose threads and processes share it, such as the ranks of a script: a chunk
that is here does not wait for one that is being fetched. A file `.part` is locked while it is being written,
so one without a lock was left by a process that was killed.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Condition
from typing import IO, Final

from fedgc.datastore.chunk_store import ChunkStore
from fedgc.datastore.manifest import Chunk
from fedgc.errors import EdgeFailed, Refused, system_errors, text_of

PART: Final = ".part"
LOOK_S: Final = 0.2  # between two looks at what other processes fetch


class ChunkCache:
    """Files by digest; the least recently used make room for new ones."""

    def __init__(self, folder: Path, quota_bytes: int, store: ChunkStore) -> None:
        """Take over what an earlier process left, as far as the quota allows."""
        self.quota_bytes: Final = quota_bytes
        self._folder, self._store, self._changed = folder, store, Condition()
        self._fetching: set[str] = set()  # digests
        self._fetched = 0, 0, 0.0
        with system_errors(f"chunks {folder}", "a folder to write"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._alone():
                self._make_room(0, self._sizes())

    @property
    def digests(self) -> frozenset[str]:
        """The digests of the chunks that are here."""
        return frozenset(path.name for path in self._folder.iterdir() if path.suffix != PART)

    def has(self, chunk: Chunk) -> bool:
        """Return whether a chunk is here."""
        return (self._folder / chunk.digest).exists()

    def bytes_of(self, chunk: Chunk) -> bytes:
        """Return the bytes of a chunk, fetched if they are not here; the reader verifies them.

        Raises:
            Refused: The store has other bytes under this name.
            EdgeFailed: The store or the disk failed, or the quota is smaller than the chunk.
        """
        path = self._folder / chunk.digest
        while True:
            self.fetch(chunk)
            try:
                os.utime(path)
                return path.read_bytes()
            except FileNotFoundError:
                continue  # another one has taken its room
            except OSError as error:
                raise EdgeFailed(f"{chunk.name}: {text_of(error)}, needed a file to read") from error

    def fetch(self, chunk: Chunk, *, evicts: bool = True) -> bool:
        """Fetch a chunk; return whether it is here. Unless `evicts`, it takes only room that is free."""
        with system_errors(chunk.name, "a disk to write to"):
            part = self._begun(chunk, evicts=evicts)
            if part is None:
                return self.has(chunk)
            self._complete(chunk, part)
        return True

    def _begun(self, chunk: Chunk, *, evicts: bool) -> IO[bytes] | None:
        """Return a file that takes the room of a chunk; None if the chunk is here, or there is no room."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: chunk.digest not in self._fetching)
                with self._alone():
                    sizes = self._sizes()
                    lacks = sum(sizes.values()) + chunk.size_bytes > self.quota_bytes
                    if chunk.digest in sizes or (lacks and not evicts):
                        return None
                    arriving = sum(size for name, size in sizes.items() if name.endswith(PART))
                    if not arriving or arriving + chunk.size_bytes <= self.quota_bytes:
                        self._make_room(chunk.size_bytes, sizes)
                        return self._part(chunk)
                self._changed.wait(LOOK_S)

    def _part(self, chunk: Chunk) -> IO[bytes]:
        """Return a new file of the size of a chunk, which is locked until it is closed."""
        name, folder = f"{chunk.digest}.", self._folder
        part = NamedTemporaryFile(prefix=name, suffix=PART, dir=folder, delete=False)  # noqa: SIM115  by _complete
        fcntl.flock(part, fcntl.LOCK_EX)
        part.truncate(chunk.size_bytes)
        self._fetching.add(chunk.digest)
        return part

    def _complete(self, chunk: Chunk, part: IO[bytes]) -> None:
        """Write the bytes of a chunk from the store; the file then has its final name."""
        path, began = Path(part.name), time.monotonic()
        try:
            with part:
                self._write(chunk, part)
                part.flush()
                with self._changed, self._alone():
                    path.replace(self._folder / chunk.digest)
            with self._changed:
                self._count(chunk.size_bytes, time.monotonic() - began)
        finally:
            path.unlink(missing_ok=True)
            with self._changed:
                self._fetching.discard(chunk.digest)
                self._changed.notify_all()

    def _sizes(self) -> dict[str, int]:
        """Return the sizes of all files, the least recently used first; remove those that are left over."""
        found = []
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):
                if path.name.endswith(PART) and not _is_locked(path):
                    path.unlink()
                status = path.stat()
                found.append((status.st_mtime_ns, path.name, status.st_size))
        return {name: size for _, name, size in sorted(found)}

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let no other process begin or complete a file meanwhile."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # a file system that locks no folders
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            with suppress(OSError):  # a process that was forked meanwhile has the folder open as well
                fcntl.flock(folder, fcntl.LOCK_UN)
            os.close(folder)

    def fetched(self) -> tuple[int, int, float]:
        """Return the chunks, bytes and seconds of what was fetched since the last call."""
        with self._changed:
            done, self._fetched = self._fetched, (0, 0, 0.0)
        return done

    def forget(self, digests: Collection[str]) -> None:
        """Remove these chunks."""
        for digest in digests:
            (self._folder / digest).unlink(missing_ok=True)

    def _count(self, size_bytes: int, seconds: float) -> None:
        chunks, size, taken_s = self._fetched
        self._fetched = chunks + 1, size + size_bytes, taken_s + seconds

    def _write(self, chunk: Chunk, file: IO[bytes]) -> None:
        """Write the bytes of a chunk from the store, at most as many as it has, and verify them."""
        hashed, size = hashlib.sha256(), 0
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

    def _make_room(self, size_bytes: int, sizes: Mapping[str, int]) -> None:
        """Remove the least recently used chunks until `size_bytes` are free."""
        if size_bytes > self.quota_bytes:
            raise EdgeFailed(f"chunks: saw a quota of {self.quota_bytes} bytes, needed {size_bytes}")
        free = self.quota_bytes - sum(sizes.values())
        for name, size in sizes.items():
            if free < size_bytes and not name.endswith(PART):
                self.forget({name})
                free += size


def _is_locked(path: Path) -> bool:
    """Return whether a process fetches into this file."""
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
