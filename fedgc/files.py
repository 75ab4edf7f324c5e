"""Files that are written whole or not at all, and files and folders that only their owner may read.

Modes do not depend on the umask, but for `SHARED`. An existing folder keeps its mode; only the default state
folder, which fedgc makes itself, is closed again if an earlier version left it open.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

FOLDER: Final = 0o700
FILE: Final = 0o600
SHARED: Final = 0o666  # of a file that others may read as the umask says
OTHERS: Final = 0o077


@contextmanager
def whole(path: Path, mode: int = FILE, *, synced: bool = False) -> Iterator[Path]:
    """Yield an empty file beside `path` that takes its place at the end, and is removed after an error.

    `synced`: its content is on the disk before it has its name.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)  # of a process that was killed
        part.touch(mode, exist_ok=False)  # a file that another user made would stay readable for that user
        yield part
        if synced:
            sync(part)
        part.replace(path)
    finally:
        with suppress(OSError):  # its folder may be a file
            part.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Return once a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder, and its missing parents, for their owner alone."""
    lacking = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(lacking):
        each.mkdir(mode=FOLDER, exist_ok=True)


def make_file(path: Path) -> None:
    """Make an empty file for its owner alone, if it does not exist."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, FILE))


def opener(path: str, flags: int) -> int:
    """An opener for `open`: new files are readable by their owner only."""
    return os.open(path, flags, FILE)


def close_to_others(path: Path) -> None:
    """Remove the permissions of others from a folder or file of this process's user."""
    seen = path.stat()
    if seen.st_uid == os.getuid() and seen.st_mode & OTHERS:
        path.chmod(seen.st_mode & ~OTHERS & 0o7777)


def is_file(path: Path) -> bool:
    """Whether there is such a file; a path that the system refuses, such as a longer one, names none.

    >>> is_file(Path(__file__)), is_file(Path("x" * 5000))
    (True, False)
    """
    try:
        return path.is_file()
    except OSError:
        return False
