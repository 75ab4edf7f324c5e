"""Signal handling of the server: stops sessions before Flower's own handlers run.

Flower stops a ServerApp by a signal to its process. Its handler flushes logs for seconds while the main
thread waits, then forces the exit, so clients must be notified before it.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM)
BY_USER: Final = "stopped by the user"


def why_stopped(name: str) -> str:
    """Return why a run ends with a signal of this name; Flower passes on a user's stop as SIGINT.

    >>> why_stopped("SIGINT"), why_stopped("SIGTERM")
    ('stopped by the user', 'the server got SIGTERM')
    """
    return BY_USER if name == signal.SIGINT.name else f"the server got {name}"


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
