"""Temporary folders: a process that is killed leaves its own, and the next process that makes one removes it.

A folder is locked while its process lives, so one that is not locked is left over.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

LONGEST_PLACE: Final = 74  # bytes; a path of a socket has at most 103 on macOS


def place_of_sockets() -> str:
    """Return the folder for temporary folders of sockets, with a path that leaves room for 29 bytes."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= LONGEST_PLACE else "/tmp"  # noqa: S108  mkdtemp makes it safe


@contextmanager
def temporary_folder(prefix: str, within: Path | None = None) -> Iterator[Path]:
    """Yield a new folder whose name begins with `prefix`, by default in the system's; remove it after use."""
    folder, lock = fresh_folder(prefix, within)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def fresh_folder(prefix: str, within: Path | None = None) -> tuple[Path, int | None]:
    """Return a new folder, and its lock, which lasts until it is closed or the process ends.

    Folders with the same prefix that killed processes have left are removed.
    """
    for each in Path(within or tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            left = _locked(each)
            shutil.rmtree(each, ignore_errors=True)
            os.close(left)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
        try:
            lock = _locked(folder)
        except (BlockingIOError, FileNotFoundError):  # another process took it for one that was left
            continue
        except OSError:  # a file system without locks: nobody can take it for one
            return folder, None
        if folder.exists():
            return folder, lock
        os.close(lock)


def _locked(folder: Path) -> int:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        raise
    return opened
