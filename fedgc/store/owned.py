"""Folders and files that only their owner may read, independent of the umask.

An existing folder keeps its mode; only the default state folder, which fedgc makes itself, is closed again if
an earlier version left it open.
"""

import os
from pathlib import Path
from typing import Final

FOLDER: Final = 0o700
FILE: Final = 0o600
OTHERS: Final = 0o077


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
