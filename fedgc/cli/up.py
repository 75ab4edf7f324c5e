"""`fedgc up` and `fedgc down`: a federation on this machine that stays, to play with.

A process of its own holds it (`fedgc up --foreground`), and while it lives it holds a lock on a file: so
`down` ends no other process, whatever became of the number that was written down. It restarts the SuperLink
or a SuperNode that ended by itself.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

from fedgc.deploy.local_federation import LocalFederation, Node, exposure
from fedgc.deploy.superlink import tail
from fedgc.errors import EdgeFailed, Unusable
from fedgc.store import owned
from fedgc.store.engine import default_path

NAME: Final = "up"  # what `fedgc run --superlink` calls it
START_S: Final = 90.0
END_S: Final = 30.0
POLL_S: Final = 0.1
RESTART_S: Final = 2.0  # between two looks for processes that ended


@dataclass(frozen=True, slots=True)
class Standing:
    """A federation that is up."""

    pid: int
    address: str
    home: str
    clients: int


def _folder() -> Path:
    return default_path(os.environ).parent / NAME


def standing() -> Standing | None:
    """Return the federation that is up, if one is."""
    folder = _folder()
    with suppress(OSError), (folder / "lock").open("rb") as lock:
        if not _free(lock):
            with suppress(OSError, ValueError, TypeError):
                return Standing(**json.loads((folder / "standing.json").read_text()))
    return None


def up(clients: int, *, foreground: bool) -> None:
    """Start a federation; return once it listens, or with `foreground` once it has been ended."""
    if clients < 1:
        raise Unusable(f"--clients: saw {clients}, needed at least 1")
    there = standing()
    if there is not None:
        raise Unusable(f"saw {there.clients} clients up at {there.address}, needed none: `fedgc down` first")
    if foreground:
        _hold(clients)
    else:
        _start(clients)


def down() -> None:
    """End the federation that is up."""
    there = standing()
    if there is None:
        raise Unusable("saw no federation up, needed one; `fedgc up` starts one")
    os.kill(there.pid, signal.SIGTERM)
    end = time.monotonic() + END_S
    while standing() is not None:
        if time.monotonic() > end:
            raise EdgeFailed(f"the federation at {there.address} (process {there.pid}) has not ended")
        time.sleep(POLL_S)
    sys.stdout.write(f"the federation at {there.address} is down\n")


def _start(clients: int) -> None:
    folder = _folder()
    owned.make_folder(folder)
    log = folder / "up.log"
    words = ["up", "--foreground", "--clients", str(clients)]
    with log.open("wb") as out:
        holder = subprocess.Popen(  # noqa: S603  this program
            [sys.executable, "-m", "fedgc.cli", *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    end = time.monotonic() + START_S
    while (there := standing()) is None or there.pid != holder.pid:
        if holder.poll() is not None or time.monotonic() > end:
            holder.kill()
            raise EdgeFailed(f"the federation did not start; it said: {tail(log) or 'nothing'}")
        time.sleep(POLL_S)
    sys.stdout.write(
        f"{clients} clients at {there.address}; `fedgc run --superlink {NAME}` trains on them, "
        f"`fedgc down` ends them\n{exposure(there.address)}\n"
    )


def _hold(clients: int) -> None:
    folder, over = _folder(), threading.Event()
    processes = folder / "processes"
    with _locked(folder):
        shutil.rmtree(processes, ignore_errors=True)
        names = [f"client-{number}" for number in range(1, clients + 1)]
        # Keys outlive the federation, so that the next one's clients are known again.
        nodes = [Node(name, {"identity": str(folder / "keys" / f"{name}.key")}) for name in names]
        with LocalFederation(nodes, folder=processes) as federation:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: over.set())
            there = Standing(os.getpid(), federation.address, str(federation.home), clients)
            (folder / "standing.part").write_text(json.dumps(asdict(there)))
            (folder / "standing.part").replace(folder / "standing.json")
            sys.stdout.write(
                f"{clients} clients at {there.address}, until Ctrl-C\n{exposure(there.address)}\n"
            )
            sys.stdout.flush()
            while not over.wait(RESTART_S):
                for name in federation.restart_ended():
                    sys.stdout.write(f"{name} ended and is restarted; its log: {federation.log(name)}\n")
                    sys.stdout.flush()
        (folder / "standing.json").unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    owned.make_folder(folder)
    (folder / "standing.json").unlink(missing_ok=True)
    with (folder / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Unusable("saw another federation that is starting, needed none") from error
        yield


def _free(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True
