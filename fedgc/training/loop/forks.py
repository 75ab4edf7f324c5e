"""What a script does when it gets SIGTERM or ends, and its forks do not: a worker of a pool just ends.

Python hands a signal to its handler between two instructions, and forgets in a new fork which signals had
come. A SIGTERM that a fork gets before that would be lost, and `Pool.terminate` would wait for ever. So the
signal is blocked during a fork, and the fork handles it in the system's way before it is unblocked.
"""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.util import Finalize
from types import FrameType
from typing import Any, Final

from fedgc.errors import FedgcError

Handler = Callable[[int, FrameType | None], None]

LATEST: Final = 100  # greater than the priorities of multiprocessing's own, which come after it

_handlers: Final[set[Handler]] = set()  # installed by this module, of which one may be in force
_blocked: Final = threading.local()  # by thread, the signals that were blocked before its fork


def handle_sigterm(handler: Handler) -> None:
    """Call `handler` when this process, and none of its forks, gets SIGTERM; in the main thread only."""
    if not _handlers:
        os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_in_fork)
    _handlers.add(handler)
    signal.signal(signal.SIGTERM, handler)


def leave_at_exit(hand_over: Callable[[], None]) -> None:
    """Call `hand_over` when this process, and none of its forks, ends by itself before the run does."""
    joined = os.getpid()

    def leave() -> None:
        if os.getpid() != joined:
            return
        if getattr(sys, "last_value", None) is not None:
            return  # it ended with an exception: the weights may be half-way through a step
        error = sys.exc_info()[1]  # of a process of multiprocessing, which is no `last_value`
        if error is not None and (not isinstance(error, SystemExit) or error.code):
            return
        with suppress(FedgcError):
            hand_over()

    if multiprocessing.parent_process() is None:
        atexit.register(leave)
    else:
        Finalize(None, leave, exitpriority=LATEST)  # a forked process of multiprocessing calls no atexit


def _is_ours(handler: Any) -> bool:  # noqa: ANN401  a function, a number or None
    return callable(handler) and handler in _handlers


def _block() -> None:
    _blocked.before = (
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        if _is_ours(signal.getsignal(signal.SIGTERM))
        else None
    )


def _unblock() -> None:
    before = _blocked.before
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _in_fork() -> None:
    if _is_ours(signal.getsignal(signal.SIGTERM)):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _unblock()
