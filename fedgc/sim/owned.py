"""Worker processes that end with their parent, even if it is killed.

The processes of a standard pool outlive a killed owner: they wait for work on a pipe that they hold open.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import Final

CORES: Final = min(2, os.cpu_count() or 1)  # that a benchmark uses


def processes(count: int = CORES, begin: Callable[[], object] | None = None) -> ProcessPoolExecutor:
    """Return a pool of this many processes, each of which first calls `begin`, if given."""
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_begin, initargs=(begin,))


def end_with_the_parent() -> None:
    """End this process when its parent ends."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), name="fedgc-parent", daemon=True).start()


def _begin(begin: Callable[[], object] | None) -> None:
    end_with_the_parent()
    if begin is not None:
        begin()


def _follow(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
