"""Records kept aside: a file of lines beside the store, for the time in which it cannot be written.

Lines are added whole or not at all, and forced to the disk: what lies here survives the process. They
are read from the front, in the order in which they happened; the file is removed when the last is written
to the store. A kill in between leaves lines that were written already: their stamps, and the rule that a
round told twice counts once, make that harmless.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from fedgc.errors import BadMessage, EdgeFailed
from fedgc.store import owned
from fedgc.store.engine import address, beside
from fedgc.store.records import Record, from_line, to_line

Entry = tuple[Record, str]  # with its stamp


def aside_path(url: str | None, run: str) -> Path:
    """Return where the records of a run wait when the store at `url` cannot be written."""
    store = beside(address(url, os.environ), os.environ)
    return store.with_name(f"{store.name}.{quote(run, safe='')}.aside")


def left_aside(url: str | None) -> tuple[Path, ...]:
    """Return the files in which records of earlier runs still wait."""
    store = beside(address(url, os.environ), os.environ)
    return tuple(
        sorted(path for path in store.parent.glob("*.aside") if path.name.startswith(f"{store.name}."))
    )


class Aside:
    """The lines of one file that are still to be written. Used from one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._line = b""
        try:
            self.count = _whole_lines(path) if path.exists() else 0
        except OSError as error:
            raise self._failure(error, "a file that can be read and written") from error

    def add(self, entries: Sequence[Entry]) -> None:
        """Add records at the end."""
        data = "".join(to_line(record, stamp) for record, stamp in entries).encode()
        try:
            owned.make_folder(self.path.parent)
            with open(self.path, "ab", buffering=0, opener=owned.opener) as file:
                end = os.fstat(file.fileno()).st_size
                try:
                    _write_whole(file.fileno(), data)
                except OSError:
                    file.truncate(end)
                    raise
        except OSError as error:
            raise self._failure(error, f"space for {len(data)} bytes") from error
        self.count += len(entries)

    def first(self) -> Entry:
        """Return the oldest record; `drop` leaves it behind, and so does a line that cannot be read."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                self._line = file.readline()
        except OSError as error:
            raise self._failure(error, "to read them") from error
        try:
            return from_line(self._line.decode())
        except UnicodeDecodeError as error:
            raise BadMessage(f"rows kept aside in {self.path}: saw a damaged line ({error})") from error

    def drop(self) -> None:
        """Leave the oldest record behind; after the last the file goes."""
        self._offset += len(self._line)
        self.count -= 1
        if self.count <= 0:
            self.path.unlink(missing_ok=True)
            self._offset = self.count = 0

    def _failure(self, error: OSError, needed: str) -> EdgeFailed:
        return EdgeFailed(f"rows kept aside in {self.path}: {error.strerror or error}, needed {needed}")


def _write_whole(handle: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]
    os.fsync(handle)


def _whole_lines(path: Path) -> int:
    """Count the lines; the end of one that was being written when the process died is cut off."""
    count = end = 0
    with path.open("r+b") as file:
        for line in file:
            if line.endswith(b"\n"):
                count, end = count + 1, end + len(line)
        file.truncate(end)
    return count
