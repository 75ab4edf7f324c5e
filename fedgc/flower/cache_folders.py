"""The folders of the client cache, one for each run and client; and a client's account of its privacy.

A folder is identified by fedgc's name of the run, which a resume shares, and by the settings that shape
training. Knowing a run's name gives a server no more than it could get by asking the client to train. Folders
of runs unused for a week are removed when a client opens its own.

What a client has spent of its privacy is kept for good, in the folder `accounts` beside its key, by run and
client alone: a resume with other settings goes on spending it, and so does a client whose cache was cleared.

The folder `spilled` holds vectors that do not fit into memory. They are of use to one process only; if it is
killed, the client's next process removes them.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fedgc.config import RunConfig
from fedgc.processes.state_folder import state_folder
from fedgc.training import AccountFile, CacheFiles

STALE_S: Final = 7 * 24 * 3600.0
SEPARATOR: Final = "@"  # between fedgc's name of a run and Flower's number of it
SPILLED: Final = "spilled"  # next to the runs' folders, whose names are digests
ACCOUNTS: Final = "accounts"  # beside the key; earlier versions had it next to the runs' folders


def default_root(environment: Mapping[str, str]) -> Path:
    """Return the default root of all caches, in the user's state directory.

    >>> default_root({"HOME": "/home/ada"}).as_posix()
    '/home/ada/.local/state/fedgc/cache'
    """
    return state_folder(environment) / "cache"


def full_name(run: str, flower_run: int) -> str:
    """Return the run's name for sessions and packets, so that tokens and answers of another run do not fit.

    >>> full_name("spring", 7)
    'spring@7'
    """
    return f"{run}{SEPARATOR}{flower_run}"


def open_cache(root: Path, full: str, config: RunConfig, client: str, now: float) -> CacheFiles:
    """Return the cache of a client in the run of this full name; `now` is in seconds since 1970."""
    run = full.rpartition(SEPARATOR)[0]
    home = root / _digest(json.dumps([run, config.shape.hex()]))
    _remove_stale(root, home, now)
    return CacheFiles(home / client)


def open_account(home: Path, root: Path, full: str, client: str) -> AccountFile:
    """Return the account of a client's privacy in the run of this full name.

    It lies in `home`, the folder of the client's key. One that an earlier version has left among the caches
    is moved there.
    """
    name = f"{_digest(full.rpartition(SEPARATOR)[0])}-{client}.json"
    return AccountFile(home / ACCOUNTS / name, root / ACCOUNTS / name)


@contextmanager
def spilled(root: Path, client: str) -> Iterator[Path]:
    """Give the path of an empty spill folder to the process that holds this client's key."""
    folder = root / SPILLED / client
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_stale(root: Path, ours: Path, now: float) -> None:
    """Remove unused folders; other clients of this machine may change them at the same time."""
    others = (ours, root / SPILLED, root / ACCOUNTS)
    for home in root.glob("*"):
        if home not in others and home.is_dir() and now - _last_used(home, now) > STALE_S:
            shutil.rmtree(home, ignore_errors=True)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _last_used(home: Path, now: float) -> float:
    """Return the time of the last write; `now` if a client is changing the folder."""
    try:
        return max(path.stat().st_mtime for path in (home, *home.glob("*")))
    except FileNotFoundError:
        return now
