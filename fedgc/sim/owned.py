"""Worker processes that end with their parent, even if it is killed, or when an exception ends their use.

The processes of a standard pool outlive a killed owner: they wait for work on a pipe that they hold open. An
owner that is interrupted waits for their work, and Ctrl-C in a terminal interrupts each of them as well.
"""

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Final

CORES: Final = min(2, os.cpu_count() or 1)  # that a benchmark uses


class Processes(ProcessPoolExecutor):
    """A pool of processes that Ctrl-C does not interrupt; an exception in its `with` block kills them."""

    def __init__(self, count: int = CORES, begin: Callable[[], object] | None = None) -> None:
        """Each process first calls `begin`, if given."""
        self._context = _Context()
        super().__init__(count, mp_context=self._context, initializer=_begin, initargs=(begin,))

    def kill(self) -> None:
        """End the processes without waiting for what they do."""
        self.shutdown(wait=False, cancel_futures=True)
        for each in self._context.started:
            each.kill()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Wait for the end of all work, or kill the processes after an exception."""
        if kind is not None:
            self.kill()
        return super().__exit__(kind, error, trace)


class _Context(SpawnContext):
    """Starts processes, and keeps them."""

    def __init__(self) -> None:
        self.started: Final[list[_Process]] = []

    def Process(  # type: ignore[override]  # noqa: N802  a class in the stubs
        self,
        *args: Any,  # noqa: ANN401  what pools pass on
        **more: Any,  # noqa: ANN401
    ) -> SpawnProcess:
        """Return a new process."""
        self.started.append(_Process(*args, **more))
        return self.started[-1]


class _Process(SpawnProcess):
    """A process that does not receive SIGINT: its owner decides."""

    def start(self) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
