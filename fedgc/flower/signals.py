"""Signals that end the server: clients are told before Flower's own handlers take over.

Flower ends a ServerApp whose run was stopped by a signal to its own process; its handler then flushes logs
for seconds while the main thread waits, and forces the exit. So the goodbye must come first.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def before_signals(tell: Callable[[str], None]) -> Iterator[None]:
    """Call `tell` with a signal's name before its present handler, while the block runs.

    Only the main thread can have handlers; in another one nothing is changed.
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
