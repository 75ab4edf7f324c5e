"""`fedgc up` and `fedgc down`: a long-running federation on this machine.

A background process runs it (`fedgc up --foreground`) and holds a lock on a file while it lives, so `down`
never ends another process that reuses its process id. It restarts the SuperLink or a SuperNode that ended by
itself.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Final

from fedgc.cli.clients import nodes_of, parse_clients, with_keys
from fedgc.cli.signals import like_ctrl_c
from fedgc.deploy.local_federation import LocalFederation, Node, exposure
from fedgc.deploy.superlink import tail
from fedgc.errors import EdgeFailed, Unusable, numbered
from fedgc.files import SHARED, make_folder, whole
from fedgc.processes.state_folder import state_folder

NAME: Final = "up"  # its name for `fedgc run --superlink`
START_S: Final = 90.0
END_S: Final = 120.0  # clients hand in what they have before, and runs are stopped
POLL_S: Final = 0.1
LOOK_S: Final = 1.0  # `running_federation` of another command holds the lock for a moment
RESTART_S: Final = 2.0  # between checks for processes that ended
SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class RunningFederation:
    """A running federation."""

    pid: int
    address: str
    home: str
    clients: int
    folder: str = ""  # in which its processes find modules


def _folder() -> Path:
    return state_folder(os.environ) / NAME


def running_federation() -> RunningFederation | None:
    """Return the running federation, if there is one."""
    folder = _folder()
    with suppress(OSError), (folder / "lock").open("rb") as lock:
        if not _free(lock):
            with suppress(OSError, ValueError, TypeError, RecursionError):
                return RunningFederation(**json.loads((folder / "standing.json").read_text()))
    return None


def up(clients: int | None, own: Sequence[str] = (), *, foreground: bool) -> None:
    """Start a federation; return once it listens or, with `foreground`, once it has ended.

    `own` are the clients' own settings, as NAME:key=value.
    """
    nodes = nodes_of(clients, parse_clients(own))
    running = running_federation()
    if running is not None:
        raise Unusable(
            f"saw {running.clients} clients up at {running.address}, needed none: `fedgc down` first"
        )
    if foreground:
        _hold(nodes)
    else:
        _start(
            len(nodes), [f"--client={each}" for each in own] + ([f"--clients={clients}"] if clients else [])
        )


def down() -> None:
    """End the running federation."""
    running = running_federation()
    if running is None:
        raise Unusable("saw no federation up, needed one; `fedgc up` starts one")
    os.kill(running.pid, signal.SIGTERM)
    end = time.monotonic() + END_S
    while running_federation() is not None:
        if time.monotonic() > end:
            raise EdgeFailed(f"the federation at {running.address} (process {running.pid}) has not ended")
        time.sleep(POLL_S)
    sys.stdout.write(f"the federation at {running.address} is down\n")


def _start(clients: int, options: Sequence[str]) -> None:
    folder = _folder()
    make_folder(folder)
    log = folder / "up.log"
    words = ["up", "--foreground", *options]
    with log.open("wb") as out:
        holder = subprocess.Popen(  # noqa: S603  this program
            [sys.executable, "-m", "fedgc.cli", *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        with like_ctrl_c():
            running = _started(holder, log)
    except BaseException:  # also Ctrl-C, which does not reach the holder in its own session
        holder.terminate()
        with suppress(subprocess.TimeoutExpired):
            holder.wait(END_S)
        holder.kill()
        raise
    sys.stdout.write(
        f"{numbered(clients, 'client')} at {running.address}; `fedgc run --superlink {NAME}` trains on them, "
        f"`fedgc down` ends them\n{exposure(running.address)}\n"
    )


def _started(holder: subprocess.Popen[bytes], log: Path) -> RunningFederation:
    """Return the federation of this process once it listens."""
    end = time.monotonic() + START_S
    while (running := running_federation()) is None or running.pid != holder.pid:
        if holder.poll() is not None or time.monotonic() > end:
            raise EdgeFailed(f"the federation did not start: {tail(log) or 'nothing'}")
        time.sleep(POLL_S)
    return running


def _ignore() -> None:
    """Ignore signals from here on, while the processes are ended."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _hold(wanted: Sequence[Node]) -> None:
    folder, over = _folder(), threading.Event()
    processes = folder / "processes"
    with like_ctrl_c(), _locked(folder):  # while it starts; then `end` is the handler
        shutil.rmtree(processes, ignore_errors=True)
        clients = len(wanted)
        with LocalFederation(with_keys(wanted, folder / "keys"), folder=processes) as federation:
            ended_by: list[int] = []

            def end(number: int, _: FrameType | None) -> None:
                ended_by.append(number)
                if over.is_set():  # asked again: nothing is waited for
                    _ignore()
                    raise KeyboardInterrupt
                over.set()

            for number in SIGNALS:
                signal.signal(number, end)
            running = RunningFederation(
                os.getpid(), federation.address, str(federation.home), clients, str(Path.cwd())
            )
            with whole(folder / "standing.json", SHARED) as part:
                part.write_text(json.dumps(asdict(running)))
            up = f"{numbered(clients, 'client')} at {running.address}, until Ctrl-C"
            sys.stdout.write(f"{up}\n{exposure(running.address)}\n")
            sys.stdout.flush()
            while not over.wait(RESTART_S):
                for name, how in federation.restart_ended().items():
                    with suppress(OSError):  # its reader may have ended
                        sys.stdout.write(f"{name} {how} and is restarted; its log: {federation.log(name)}\n")
                        sys.stdout.flush()
            if signal.SIGINT not in ended_by:
                federation.leave()
            federation.stop_servers()
            _ignore()
        (folder / "standing.json").unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    make_folder(folder)
    (folder / "standing.json").unlink(missing_ok=True)
    with (folder / "lock").open("wb") as lock:
        end = time.monotonic() + LOOK_S
        while not _taken(lock):
            if time.monotonic() > end:
                raise Unusable("saw another federation that is starting, needed none")
            time.sleep(POLL_S)
        yield


def _taken(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _free(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True
