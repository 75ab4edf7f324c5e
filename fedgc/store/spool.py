"""The spool: a file of records beside the store, used while the store cannot be written.

Lines are appended atomically and synced, so they survive the process. They are read from the front, in order;
the file is removed once its last line is in the store. A kill in between leaves lines that are already
stored: their stamps, and the rule that a round is counted once, make that harmless.
"""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from fedgc.errors import BadMessage, system_errors
from fedgc.files import make_folder, opener
from fedgc.store.records import Record, from_line, to_line

Entry = tuple[Record, str]  # a record with its stamp


class Aside:
    """The lines of one file that are not yet stored. Used from one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._line = b""
        with self._errors("a file that can be read and written"):
            self.count = _whole_lines(path) if path.exists() else 0

    def add(self, entries: Sequence[Entry]) -> None:
        """Append records."""
        data = "".join(to_line(record, stamp) for record, stamp in entries).encode()
        with self._errors(f"space for {len(data)} bytes"):
            make_folder(self.path.parent)
            with open(self.path, "ab", buffering=0, opener=opener) as file:
                end = os.fstat(file.fileno()).st_size
                try:
                    _write_whole(file.fileno(), data)
                except OSError:
                    file.truncate(end)
                    raise
        self.count += len(entries)

    def first(self) -> Entry:
        """Return the oldest record; `drop` passes it, and unreadable lines are skipped."""
        with self._errors("to read them"), self.path.open("rb") as file:
            file.seek(self._offset)
            self._line = file.readline()
        try:
            return from_line(self._line.decode())
        except UnicodeDecodeError as error:
            raise BadMessage(f"rows kept aside in {self.path}: saw a damaged line ({error})") from error

    def drop(self) -> None:
        """Pass the oldest record; after the last one the file is removed."""
        self._offset += len(self._line)
        self.count -= 1
        if self.count <= 0:
            self.path.unlink(missing_ok=True)
            self._offset = self.count = 0

    def _errors(self, needed: str) -> AbstractContextManager[None]:
        return system_errors(f"rows kept aside in {self.path}", needed)


def _write_whole(handle: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]
    os.fsync(handle)


def _whole_lines(path: Path) -> int:
    """Count the lines; cut off an incomplete last line, left when the process died."""
    count = end = 0
    with path.open("r+b") as file:
        for line in file:
            if line.endswith(b"\n"):
                count, end = count + 1, end + len(line)
        file.truncate(end)
    return count
