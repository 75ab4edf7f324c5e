"""Files that a command draws: their paths are checked before the work, the files are written at its end."""

from pathlib import Path

from fedgc.errors import Unusable, system_errors
from fedgc.files import opener


def drawable(*paths: Path | None) -> None:
    """Refuse a path that cannot be a file."""
    for path in paths:
        if path is not None and path.is_dir():
            raise Unusable(f"{path}: saw a folder, needed the name of a file")
        if path is not None and not path.parent.is_dir():
            raise Unusable(f"{path}: saw no folder {path.parent}, needed one that is there")


def keep(path: Path, exchange: bytes) -> None:
    """Write the drawing, for its owner alone: it can have figures of single clients."""
    with system_errors(f"{path}: cannot be written"), open(path, "wb", opener=opener) as file:
        file.write(exchange)
