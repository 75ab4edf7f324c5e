"""A supervisor: runs one program and ends all processes that it started, even after SIGKILL.

Flower's processes start others (a SuperNode starts a SuperExec, which starts a ClientApp for each message),
some of them in sessions of their own; so does torchrun with the ranks of a training script. This small
program is the parent of such a tree: it adopts orphans (PR_SET_CHILD_SUBREAPER), and when its own parent
ends, even by SIGKILL, its standard input closes and it kills every process below. It passes SIGTERM on to the
program. On systems without adoption, only the program's process group is ended.

It is run by path and uses only the standard library, so that it starts in a few hundredths of a second.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

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


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _prepare() -> None:
    """Make the new process ready to become the program."""
    _control(DIE_WITH_PARENT, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


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


def main(command: list[str]) -> int:
    """Run `command` until it ends or standard input closes; then end all processes that are left.

    Returns its exit code, or 0 if the standard input closed.
    """
    _control(ADOPT_ORPHANS, 1)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent decides
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until there is a program to pass it on to
    program = subprocess.Popen(  # noqa: S603  the caller's own command line
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_prepare
    )
    signal.signal(signal.SIGTERM, lambda *_: _signal_group(program.pid, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    code = None
    while code is None:
        ready = select.select([sys.stdin, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            code = _reap().get(program.pid)
        if code is None and sys.stdin in ready and not os.read(sys.stdin.fileno(), 4096):
            code = 0
    kill_below(os.getpid())
    _signal_group(program.pid, signal.SIGKILL)  # if processes cannot be listed
    with suppress(ChildProcessError):
        while os.waitpid(-1, 0):
            pass
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
