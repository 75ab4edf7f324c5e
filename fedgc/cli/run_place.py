"""Where a run takes place: its clients on this machine, or its SuperLink.

It is kept in the run's folder, beside the keys of its clients, so that a resume needs no options for it. The
command that runs it holds a lock there.
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fedgc.cli.clients import NONE, ClientSettings
from fedgc.errors import EdgeFailed, Unusable
from fedgc.files import make_folder, opener, whole
from fedgc.processes.state_folder import state_folder
from fedgc.store.engine import runs_folder
from fedgc.store.liveness import LOCK, read_process, this_process

FILE: Final = "place.json"
POLL_S: Final = 0.2
UNKNOWN: Final = "another command"  # that holds a lock, if it could not write its process id


@dataclass(frozen=True, slots=True)
class RunPlace:
    """So many local clients, some with settings of their own, or a SuperLink; false if nothing is said.

    The clients read relative paths from `folder`. Their keys are in the folder `keys`, by default the run's.
    """

    clients: int | None = None
    superlink: str | None = None
    own: ClientSettings = field(default_factory=lambda: NONE)  # the clients' own settings, by name
    folder: str = ""
    keys: str = ""

    def __bool__(self) -> bool:
        return self.clients is not None or self.superlink is not None or bool(self.own)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "RunPlace":
        """Check values that were kept; raise TypeError or AttributeError if they are no place."""
        found = cls(**values)
        settings = [each for own in found.own.values() for each in own.values()]
        if not (
            isinstance(found.clients, int | None)
            and isinstance(found.superlink, str | None)
            and all(isinstance(each, str) for each in (found.folder, found.keys))
            and all(isinstance(each, str | int | float) for each in settings)
        ):
            raise TypeError("of another type")
        return found

    @property
    def has_paths(self) -> bool:
        """Whether a setting of a client may be a relative path."""
        settings = [each for own in self.own.values() for each in own.values()]
        return any(isinstance(each, str) and not Path(each).is_absolute() for each in settings)


def folder_of(run: str) -> Path:
    """Return the folder of what is kept here of a run, other than checkpoints."""
    return runs_folder("", os.environ) / run


def keys_of(run: str) -> Path:
    """Return the folder of the keys of the clients that are started here for a run."""
    return folder_of(run) / "keys"


def keys_of_queue(store: str) -> Path:
    """Return the folder of the keys of the clients that are started here for the queue of a store."""
    return state_folder(os.environ) / "queues" / hashlib.sha256(store.encode()).hexdigest()[:16]


def claimed(run: str, waits: Callable[[str], bool] = lambda _: False) -> AbstractContextManager[None]:
    """Hold the lock of a run: the store knows of a start only once its server has begun.

    While another command on this machine holds it, `waits` is called again and again with the name of that
    command's process, and says whether to wait longer.

    Raises:
        Unusable: Another command holds it, and `waits` is false.
    """

    def held(by: str) -> None:
        if not waits(by):
            raise Unusable(f"run {run}: saw it running ({by} has started it), needed it to be over")

    return _lock(folder_of(run) / LOCK, held)


def claimed_queue(store: str) -> AbstractContextManager[None]:
    """Hold the lock of the queue of a store; raise Unusable if another command on this machine serves it."""

    def held(by: str) -> None:
        raise Unusable(f"queue of store {store}: saw {by} serving it, needed one server for each store")

    return _lock(keys_of_queue(store) / LOCK, held)


@contextmanager
def _lock(path: Path, held: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock; call `held` with the name of the process that holds it, again and again."""
    with ExitStack() as stack:
        lock = None
        with suppress(OSError):  # as of the place: a folder that cannot be written ends no run
            make_folder(path.parent)
            lock = opener(str(path), os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, lock)
        while lock is not None and not _locked(lock):
            held(_holder(path))
            time.sleep(POLL_S)
        yield


def _locked(lock: int) -> bool:
    """Take the lock and write this process into it; return False if another command holds it."""
    with suppress(OSError):  # a file system without locks, or a full one
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(this_process().words()).encode(), 0)
    return True


def _holder(path: Path) -> str:
    pid = read_process(path).get("pid")
    return f"process {pid}" if pid else UNKNOWN


def keep_place(run: str, place: RunPlace) -> None:
    """Keep where a run takes place; where that cannot be written, a resume needs the options again."""
    path = folder_of(run) / FILE
    own = {name: dict(settings) for name, settings in place.own.items()}
    values = {
        "clients": place.clients, "superlink": place.superlink, "own": own, "folder": place.folder,
        "keys": place.keys,
    }  # fmt: skip
    with suppress(OSError):
        make_folder(path.parent)
        with whole(path) as part:
            part.write_text(json.dumps(values))


def place_of(run: str) -> RunPlace:
    """Return where a run took place; nothing if that was not kept.

    Raises:
        EdgeFailed: The file is damaged.
        Unusable: Settings of its clients may be paths, and this is another folder.
    """
    path = folder_of(run) / FILE
    try:
        found = RunPlace.of(json.loads(path.read_text()))
    except FileNotFoundError:
        return RunPlace()
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise EdgeFailed(
            f"{path}: saw {type(error).__name__}, needed the place of run {run}; give --clients, --client or "
            "--superlink"
        ) from error
    if found.has_paths and found.folder != str(Path.cwd()):
        raise Unusable(
            f"run {run}: saw folder {Path.cwd()}, needed {found.folder}, from which its clients read their "
            "settings; or give --client again"
        )
    return found
