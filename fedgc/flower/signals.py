"""Signal handling of the server: stops sessions before Flower's own handlers run.

Flower stops a ServerApp by a signal to its process. Its handler flushes logs for seconds while the main
thread waits, then forces the exit, so clients must be notified before it.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from fedgc.store.liveness import SUPERLINK_ENDED

ENDING: Final = (signal.SIGINT, signal.SIGTERM)
BY_USER: Final = "stopped by the user"
PARENT: Final = "--parent-pid"  # Flower's option of a ServerApp: its executor, which ends with the SuperLink


def why_stopped(name: str, words: Sequence[str] | None = None) -> str:
    """Return why a run ends with a signal of this name.

    Flower passes on a user's stop as SIGINT, and raises it as well when the executor of the ServerApp has
    ended. `words` is the command line of the ServerApp, by default that of this process.

    >>> why_stopped("SIGINT", []), why_stopped("SIGTERM", [])
    ('stopped by the user', 'the server got SIGTERM')
    """
    if name != signal.SIGINT.name:
        return f"the server got {name}"
    words = sys.argv if words is None else words
    parent = "".join(words[words.index(PARENT) + 1 :][:1]) if PARENT in words else ""
    return SUPERLINK_ENDED if parent.isdecimal() and not _exists(int(parent)) else BY_USER


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is of another user
        pass
    return True


@contextmanager
def before_signals(tell: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, call `tell` with a signal's name before its present handler.

    Only the main thread can have handlers; in other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}

    def handler(number: int, _: FrameType | None) -> None:
        tell(signal.Signals(number).name)
        signal.signal(number, before[signal.Signals(number)])
        signal.raise_signal(number)

    for number in ENDING:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
