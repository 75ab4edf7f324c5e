"""Folders and files that only their owner may read, whatever the umask of the process.

A folder that is there already keeps its mode, as somebody chose it; only the default state folder, which
fedgc makes for itself, is closed again where an earlier version left it open.
"""

import os
from pathlib import Path
from typing import Final

FOLDER: Final = 0o700
FILE: Final = 0o600
OTHERS: Final = 0o077


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are lacking, for their owner alone."""
    lacking = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(lacking):
        each.mkdir(mode=FOLDER, exist_ok=True)


def make_file(path: Path) -> None:
    """Make an empty file for its owner alone, where there is none."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, FILE))


def opener(path: str, flags: int) -> int:
    """Open as `open` does; a new file is its owner's alone."""
    return os.open(path, flags, FILE)


def close_to_others(path: Path) -> None:
    """Take from others what a folder or file of this process's user allows them."""
    seen = path.stat()
    if seen.st_uid == os.getuid() and seen.st_mode & OTHERS:
        path.chmod(seen.st_mode & ~OTHERS & 0o7777)
