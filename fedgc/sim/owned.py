"""Processes that work beside this one, and end when it does, however that ends.

A process pool leaves its clients behind when its owner is killed: they wait for work from a pipe that they
themselves hold open.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import Final

CORES: Final = min(2, os.cpu_count() or 1)  # that a bench takes


def processes(count: int = CORES, begin: Callable[[], object] | None = None) -> ProcessPoolExecutor:
    """Return so many processes, each of which calls `begin` first, where there is one."""
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_begin, initargs=(begin,))


def end_with_the_parent() -> None:
    """Let this process, which another has made, end when that one does."""
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
