"""SIGTERM and SIGHUP end a command like Ctrl-C: processes are ended, temporary files removed."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from fedgc.cli import INTERRUPTED

ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
SPOKEN_TO: Final = (1, 2)
NOTHING_STARTED: Final = "nothing was started"


class Terminated(KeyboardInterrupt):
    """The command was asked to end by a signal, not by Ctrl-C: its machine may be about to end."""


@contextmanager
def like_ctrl_c() -> Iterator[None]:
    """Turn the first of these signals into Ctrl-C while the block runs; ignore later ones during its cleanup.

    An ignored signal (`nohup`) stays ignored. Only the main thread can have handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    ours = [number for number in ENDING if before[number] is signal.SIG_DFL]
    terminals = [number for number in SPOKEN_TO if os.isatty(number)]

    def handler(number: int, _: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGHUP:
            _unheard(terminals)
        raise Terminated

    for number in ours:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


@contextmanager
def after_ctrl_c(how: Callable[[], str]) -> Iterator[None]:
    """Say after Ctrl-C what is left and how to go on, in one line, unless that is empty."""
    try:
        yield
    except KeyboardInterrupt:
        if not (words := how()):
            raise
        sys.stderr.write(f"fedgc: interrupted; {words}\n")
        raise SystemExit(INTERRUPTED) from None


def _unheard(terminals: list[int]) -> None:
    """Discard further output: writing to a closed terminal would fail in the middle of the cleanup."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in terminals:
        os.dup2(nowhere, number)
    os.close(nowhere)
