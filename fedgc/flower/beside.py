"""Work that no round waits for: evaluations and checkpoints, one after the other in a thread of their own.

Each holds a whole model while it waits. Where rounds are quicker than this work, it would pile up until the
server has no memory left: so only a few may wait, and then the one that has waited longest is left out. The
last is always done, since nothing comes after it.

May import: nothing of fedgc.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

T = TypeVar("T")

MOST_WAITING: Final = 4  # beside the one that is under way


class Beside:
    """One thread, and a short queue; `tell` hears of what is left out."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._pool = ThreadPoolExecutor(1, "fedgc-beside")
        self._lock = threading.Lock()
        self._waiting: deque[tuple[str, Future[Any], Callable[[], Any]]] = deque()

    def submit(self, what: str, call: Callable[[], T]) -> Future[T]:
        """Have this done when its turn comes; its future is cancelled if it never does."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.append((what, future, call))
            oldest = self._waiting.popleft() if len(self._waiting) > MOST_WAITING else None
        if oldest is not None:
            oldest[1].cancel()
            self._tell(f"{oldest[0]} is left out: rounds are quicker than what is done beside them")
        self._pool.submit(self._do_next)
        return future

    def close(self) -> None:
        """Return once all that waits is done."""
        self._pool.shutdown()

    def _do_next(self) -> None:
        with self._lock:
            if not self._waiting:  # it was left out
                return
            _, future, call = self._waiting.popleft()
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
