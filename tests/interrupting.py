"""Interrupts a call as a signal handler would, at a chosen line of a module."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any


@contextmanager
def at_line(number: int, module: ModuleType, act: Callable[[], object]) -> Iterator[list[int]]:
    """While the block runs, act before this line of those that a module executes in this thread.

    Yields the lines so far: no more than `number` of them if the block has ended before that.
    """
    lines: list[int] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line":
            lines.append(frame.f_lineno)
            if len(lines) == number + 1:
                act()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)
