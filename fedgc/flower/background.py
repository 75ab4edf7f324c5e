"""Background evaluations and checkpoints: one thread with a bounded queue, so that rounds do not wait.

Each queued task holds a whole model. If rounds are faster than the tasks, at most `MOST_WAITING` of a kind
wait, or one if the models are large, and the oldest of that kind is dropped. The last task of each kind is
always done.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")

MOST_WAITING: Final = 2  # tasks of a kind in the queue, without the running one
LARGE_BYTES: Final = 64 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    kind: str
    round: int
    future: Future[Any]
    call: Callable[[], Any]


def most_waiting(task_bytes: int) -> int:
    """Return how many tasks of a kind wait at most, if each holds so much memory.

    >>> most_waiting(1000), most_waiting(10**9)
    (2, 1)
    """
    return MOST_WAITING if task_bytes < LARGE_BYTES else 1


class BackgroundQueue:
    """One thread with a bounded queue; `warn` receives a message for each dropped task."""

    def __init__(self, warn: Callable[[str], None], task_bytes: int = 0) -> None:
        """`task_bytes` is the memory that a queued task holds."""
        self._warn = warn
        self._most_waiting = most_waiting(task_bytes)
        self._pool = ThreadPoolExecutor(1, "fedgc-background")
        self._lock = threading.Lock()
        self._waiting: deque[_Task] = deque()

    def submit(self, kind: str, round_: int, call: Callable[[], T]) -> Future[T]:
        """Queue a task; its future is cancelled if the task is dropped."""
        task = _Task(kind, round_, Future(), call)
        with self._lock:
            self._waiting.append(task)
            alike = [each for each in self._waiting if each.kind == kind]
            late = alike[: max(0, len(alike) - self._most_waiting)]
            self._waiting = deque(each for each in self._waiting if each not in late)
        for each in late:
            each.future.cancel()
            self._warn(f"round {each.round}: its {kind} is left out, because rounds are faster")
        self._pool.submit(self._do_next)
        return task.future

    def close(self) -> None:
        """Finish all queued tasks."""
        self._pool.shutdown()

    def _do_next(self) -> None:
        with self._lock:
            if not self._waiting:  # its task was dropped
                return
            task = self._waiting.popleft()
        try:
            task.future.set_result(task.call())
        except BaseException as error:
            task.future.set_exception(error)
