"""The file of a checkpoint: one process has it at a time, and only what it was written of goes on from it."""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Final
from zipfile import BadZipFile

from fedgc.errors import EdgeFailed, FedgcError, Unusable, system_errors, words_of

SHOWN: Final = 3  # settings that differ, in a message


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Say of any error that the file is the reason."""
    try:
        yield
    except FedgcError:
        raise
    except Exception as error:  # zipfile raises many kinds of error for damaged bytes
        seen = "no checkpoint, or a part of one" if isinstance(error, BadZipFile) else words_of(error)
        raise EdgeFailed(f"checkpoint {path}: saw {seen}, needed a whole file") from error


def writing(path: Path) -> AbstractContextManager[None]:
    """Say of an error of the disk that the file cannot be written."""
    return system_errors(f"checkpoint {path}: cannot be written")


def locked(path: Path) -> BinaryIO:
    """Open a file to which another process does not write."""
    file = path.open("r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        file.close()
        raise
    file.close()
    raise Unusable(f"checkpoint {path}: saw another process that writes to it, needed it to end first")


def check_same(path: Path, then: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Refuse a file whose description of then is not that of now."""
    names = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    if names:
        saw, needed = (", ".join(f"{name}={of.get(name)}" for name in names[:SHOWN]) for of in (now, then))
        more = f" (and {len(names) - SHOWN} more)" if len(names) > SHOWN else ""
        raise Unusable(f"checkpoint {path}: saw {saw}{more}, needed {needed} as when it was written")
