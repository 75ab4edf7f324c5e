"""A supervisor: runs one program and takes all that it started down with it, whatever happens.

Flower's processes start others (a SuperNode starts a SuperExec, which starts a ClientApp for each
message), some of them detached into sessions of their own. This small program stands above each tree:
it adopts orphans of its tree (PR_SET_CHILD_SUBREAPER), and when its own parent is gone, even by SIGKILL,
its standard input ends and it kills every process below. Where the system has no such adoption, the
parent watch that Flower's own processes keep is what is left.

Run by path, so that it starts in a few hundredths of a second: standard library only.
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
        threading.Event().wait(0.01)  # a process that is being killed can still be seen for a moment
    return tuple(killed)


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _reap() -> dict[int, int]:
    """Return the exit codes of what has ended; 128 and more are signals."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(found[1])
            ended[found[0]] = code if code >= 0 else 128 - code
    return ended


def main(command: list[str]) -> int:
    """Run `command` until it ends or standard input does; then end all that is left of it.

    Returned is its exit code, or 0 where the supervisor was let go.
    """
    _control(ADOPT_ORPHANS, 1)
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent decides
    program = subprocess.Popen(  # noqa: S603  the caller's own command line
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: _control(DIE_WITH_PARENT, signal.SIGKILL),
    )
    code = None
    while code is None:
        ready = select.select([sys.stdin, told], [], [])[0]
        if told in ready:
            os.read(told, 4096)
            code = _reap().get(program.pid)
        if code is None and sys.stdin in ready and not os.read(sys.stdin.fileno(), 4096):
            code = 0
    kill_below(os.getpid())
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)  # where processes cannot be listed
    with suppress(ChildProcessError):
        while os.waitpid(-1, 0):
            pass
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
