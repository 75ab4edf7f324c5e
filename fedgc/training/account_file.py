"""What a client has spent of the privacy of its records in one run, on disk."""

import hashlib
import json
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

from fedgc.errors import EdgeFailed, system_errors, text_of
from fedgc.files import sync, whole
from fedgc.secagg.renyi import Release, with_release

Releases = tuple[Release, ...]


class AccountFile:
    """The noised steps of a run, and those of them that the log of the site's policy does not have yet.

    The file is replaced as a whole, and begins with the digest of the rest. One process at a time uses it.
    What an earlier version of fedgc has left in another file, `earlier`, is taken over when it is read.
    """

    def __init__(self, path: Path, earlier: Path | None = None) -> None:
        self._path, self._earlier = path, earlier

    def put(self, spent: Sequence[Release], undelivered: Sequence[Release]) -> None:
        """Write both, on the disk once this returns, or raise EdgeFailed."""
        content = json.dumps([spent, undelivered]).encode()
        with system_errors(f"account {self._path}: could not be written"):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with whole(self._path, synced=True) as part:
                part.write_bytes(_digest(content) + content)
            for folder in (self._path.parent, self._path.parent.parent):  # which may be new, too
                sync(folder)

    def read(self) -> tuple[Releases, Releases]:
        """Return what was written last, nothing without a file; raise EdgeFailed if it cannot be read."""
        if self._earlier is not None and self._earlier.exists():
            self._take_over(self._earlier)
        return _read(self._path)

    def _take_over(self, earlier: Path) -> None:
        """Move the account of another file here; the sum of both if an earlier version has gone on there.

        A kill in between leaves two equal accounts, which are one. It may count a sum twice, and never loses
        what is spent.
        """
        if self._path.exists() and earlier.samefile(self._path):
            return
        theirs, ours = _read(earlier), _read(self._path)
        if theirs != ours:
            self.put(*(reduce(with_release, new, old) for old, new in zip(theirs, ours, strict=True)))
        with system_errors(f"account {earlier}: is now {self._path}, and could not be removed"):
            earlier.unlink()
            sync(earlier.parent)


def _read(path: Path) -> tuple[Releases, Releases]:
    try:
        spent, undelivered = json.loads(_content(path.read_bytes()))
        return _releases(spent), _releases(undelivered)
    except FileNotFoundError:
        return (), ()
    except (OSError, ValueError) as error:
        raise EdgeFailed(
            f"account {path}: cannot be read ({text_of(error, path)}), and what this client "
            "has spent of its privacy is in it; needed it, or another name of the run"
        ) from error


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _content(written: bytes) -> bytes:
    content = written[hashlib.sha256().digest_size :]
    if written != _digest(content) + content:
        raise ValueError("its digest is another one")
    return content


def _releases(rows: Sequence[Release]) -> Releases:
    return tuple((noise, rate, count) for noise, rate, count in rows)
