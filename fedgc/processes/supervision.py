"""A supervisor: runs one program and ends all processes that it started, even after SIGKILL.

Flower's processes start others (a SuperNode starts a SuperExec, which starts a ClientApp for each message),
some of them in sessions of their own; so does torchrun with the ranks of a training script. This small
program is the parent of such a tree: it adopts orphans (PR_SET_CHILD_SUBREAPER), and when its own parent
ends, even by SIGKILL, its standard input closes and it kills every process below. It passes SIGTERM on to the
program. On systems without adoption, only the program's process group is ended.

Before a SuperNode ends, its client may hand in what it has (`--leave`). At SIGTERM or SIGHUP the supervisor
writes the deadline into a folder, asks the ClientApp processes that serve a run (they have a file there) to
leave, and passes SIGTERM on to the SuperNode once they are done, or the grace time is over, or a second
signal comes.

It is run by path and uses only the standard library, so that it starts in a few hundredths of a second.
"""

import argparse
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

LEAVE_FOLDER: Final = "FEDGC_LEAVE"  # variable with the folder by which a client is asked to leave
ASKED: Final = "asked"  # file: until when the client may stay, by the monotonic clock, which processes share
OWES: Final = "owes"  # file: work that a client over Flower messages can hand in when the next one comes
ANSWERED: Final = "answered"  # file, written with each answer to a Flower message
SERVES: Final = "serves-"  # begin of the name of a ClientApp process's file, before its id
CLIENT_APP: Final = "flwr-clientapp"
DELIVERY_S: Final = 2.0  # for a SuperNode to send the answer of a ClientApp that has ended
POLL_S: Final = 0.2
DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG
ADOPT_ORPHANS: Final = 36  # PR_SET_CHILD_SUBREAPER


def descendants(root: int) -> tuple[int, ...]:
    """Return every living process below `root`, parents before children."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(folder.name))
    found: list[int] = []
    level = [root]
    while level:
        level = [child for parent in level for child in children.get(parent, ())]
        found += level
    return tuple(found)


def kill_below(root: int) -> tuple[int, ...]:
    """SIGKILL every process below `root` until none is left; return their ids."""
    killed: dict[int, None] = {}
    while living := descendants(root):
        for pid in living:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            killed[pid] = None
        threading.Event().wait(0.01)  # a process that is being killed is still visible for a moment
    return tuple(killed)


def ask_to_leave(folder: Path, root: int, grace_s: float) -> None:
    """Ask the client of the SuperNode below `root` to hand in what it has within `grace_s` seconds.

    The folder is made again if old temporary files were removed. A full disk leaves the signals.
    """
    fresh = folder / f"{ASKED}.new"
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        fresh.write_text(f"{time.monotonic() + grace_s}\n")
        fresh.replace(folder / ASKED)
    for pid in _serving(folder, root):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)


def is_leaving(folder: Path, root: int) -> bool:
    """Whether the client of the SuperNode below `root` still has something to hand in."""
    apps = any(CLIENT_APP in command_of(pid) for pid in descendants(root))
    if apps or _serving(folder, root) or (folder / OWES).exists():
        return True
    with suppress(OSError):
        answered_s = abs(time.time() - (folder / ANSWERED).stat().st_mtime)  # the clock may be set back
        return answered_s < DELIVERY_S
    return False


def _serving(folder: Path, root: int) -> tuple[int, ...]:
    """Return the ClientApp processes that serve a run and can be asked by a signal."""
    below = set(descendants(root))
    named = (each.name.removeprefix(SERVES) for each in folder.glob(f"{SERVES}*"))
    pids = (int(each) for each in named if each.isdecimal())
    return tuple(pid for pid in pids if pid in below)


def command_of(pid: int) -> str:
    """Return the command line of a process; empty if there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _prepare() -> None:
    """Make the new process ready to become the program."""
    _control(DIE_WITH_PARENT, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGHUP})


def _reap() -> dict[int, int]:
    """Return the exit codes of ended children; 128 and more are signals."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(found[1])
            ended[found[0]] = code if code >= 0 else 128 - code
    return ended


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


class _Leave:
    """What is left to do before the program is asked to end."""

    def __init__(self, grace_s: float | None) -> None:
        self.folder = None if grace_s is None else Path(tempfile.mkdtemp(prefix="fedgc-leave-"))
        self._grace_s = grace_s or 0.0
        self._requests = 0  # signals so far
        self._until: float | None = None  # the client is leaving

    def asked(self) -> None:
        """Note a request to end; safe in a signal handler."""
        self._requests += 1

    def poll_s(self) -> float | None:
        """Return after how long to look again; None without a limit."""
        return None if self._until is None else POLL_S

    def is_over(self) -> bool:
        """Whether the program should be asked to end now; returns True once for each request."""
        if not self._requests:
            return False
        if self.folder is None or self._requests > 1:
            self._requests, self._until = 0, None
            return True
        if self._until is None:
            self._until = time.monotonic() + self._grace_s
            ask_to_leave(self.folder, os.getpid(), self._grace_s)
        if time.monotonic() < self._until and is_leaving(self.folder, os.getpid()):
            return False
        self._requests, self._until = 0, None
        return True

    def close(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def main(command: list[str], *, grace_s: float | None = None, alone: bool = False) -> int:
    """Run `command` until it ends or standard input closes; then end all processes that are left.

    Returns its exit code, or 0 if the standard input closed. With `grace_s` the command is a SuperNode, whose
    client has so long to hand in what it has. With `alone`, standard input does not matter, and SIGINT ends
    the program.
    """
    _control(ADOPT_ORPHANS, 1)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent decides
    leave = _Leave(grace_s)
    program = _started(command, leave)
    if alone:
        signal.signal(signal.SIGINT, lambda *_: _signal_group(program.pid, signal.SIGTERM))
    watched = [woken] if alone else [sys.stdin, woken]
    code = None
    while code is None:
        ready = select.select(watched, [], [], leave.poll_s())[0]
        if woken in ready:
            os.read(woken, 4096)
            code = _reap().get(program.pid)
        if leave.is_over():
            _signal_group(program.pid, signal.SIGTERM)
        if code is None and sys.stdin in ready and not os.read(sys.stdin.fileno(), 4096):
            code = 0
    kill_below(os.getpid())
    _signal_group(program.pid, signal.SIGKILL)  # if processes cannot be listed
    with suppress(ChildProcessError):
        while os.waitpid(-1, 0):
            pass
    leave.close()
    return code


def _started(command: list[str], leave: _Leave) -> "subprocess.Popen[bytes]":
    """Start the program, and pass on requests to end from now on."""
    ending = {signal.SIGTERM} if leave.folder is None else {signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)  # until there is a program to pass them on to
    folder = {} if leave.folder is None else {LEAVE_FOLDER: str(leave.folder)}
    program = subprocess.Popen(  # noqa: S603  the caller's own command line
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_prepare,
        env={**os.environ, **folder},
    )
    for number in ending:
        signal.signal(number, lambda *_: leave.asked())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ending)
    return program


def _run(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run a program and end all that it has started.")
    parser.add_argument("--leave", type=float, metavar="SECONDS", help="what a SuperNode's client may take")
    parser.add_argument("--alone", action="store_true", help="do not end with standard input")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(words)
    return main(options.command, grace_s=options.leave, alone=options.alone)


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1:]))
