"""Where on a client's disk its work lies between two processes: a folder for each run and client.

A run is known here by fedgc's own name for it, which a resume shares, and by the settings that shape the
training: what was trained under others is not this run's work. Whoever is admitted to name a run could ask
its client to train just as well, so a name gives nobody more than that.

Folders of runs that were not heard of for days are removed when a client opens its own.

Beside them lies what a process could not hold in memory, which is of use to that process alone. One that is
killed cannot remove it: the next process of the client does.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fedgc.config import RunConfig
from fedgc.training import CacheFiles

STALE_S: Final = 7 * 24 * 3600.0
SEPARATOR: Final = "@"  # between fedgc's name of a run and Flower's number of it
SPILLED: Final = "spilled"  # beside the runs, whose names are digests


def default_root(environment: Mapping[str, str]) -> Path:
    """Return the folder of all caches in the user's state directory.

    >>> default_root({"HOME": "/home/ada"}).as_posix()
    '/home/ada/.local/state/fedgc/cache'
    """
    state = environment.get("XDG_STATE_HOME") or str(Path(environment.get("HOME", "~")) / ".local" / "state")
    return Path(state).expanduser() / "fedgc" / "cache"


def full_name(run: str, flower_run: int) -> str:
    """Return the name under which a client is asked to join: no token or answer of another run fits it.

    >>> full_name("spring", 7)
    'spring@7'
    """
    return f"{run}{SEPARATOR}{flower_run}"


def open_cache(root: Path, full: str, config: RunConfig, client: str, now: float) -> CacheFiles:
    """Return the cache of a client in the run of this full name; `now` is in seconds since 1970."""
    run = full.rpartition(SEPARATOR)[0]
    home = root / hashlib.sha256(json.dumps([run, config.shape.hex()]).encode()).hexdigest()[:16]
    _remove_stale(root, home, now)
    return CacheFiles(home / client)


@contextmanager
def spilled(root: Path, client: str) -> Iterator[Path]:
    """Lend a folder, which need not exist, to the one process that now holds this client's key."""
    folder = root / SPILLED / client
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_stale(root: Path, ours: Path, now: float) -> None:
    """Other clients of this machine make, rename and remove folders meanwhile: what is gone is not there."""
    for home in root.glob("*"):
        if home not in (ours, root / SPILLED) and home.is_dir() and now - _last_used(home, now) > STALE_S:
            shutil.rmtree(home, ignore_errors=True)


def _last_used(home: Path, now: float) -> float:
    """Return when a client wrote there last; `now` where one does at this moment."""
    try:
        return max(path.stat().st_mtime for path in (home, *home.glob("*")))
    except FileNotFoundError:
        return now
