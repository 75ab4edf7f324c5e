"""Work that no round waits for: evaluations and checkpoints, one after the other in a thread of their own.

Each holds a whole model while it waits. Where rounds are quicker than this work, it would pile up until the
server has no memory left: so only a few of a kind may wait, and then the one of them that has waited longest
is left out. The last of each kind is always done, since none comes after it.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")

MOST_WAITING: Final = 2  # of a kind, beside the one that is under way


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    kind: str
    round: int
    future: Future[Any]
    call: Callable[[], Any]


class Beside:
    """One thread, and a short queue; `tell` hears of what is left out."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._pool = ThreadPoolExecutor(1, "fedgc-beside")
        self._lock = threading.Lock()
        self._waiting: deque[_Task] = deque()

    def submit(self, kind: str, round_: int, call: Callable[[], T]) -> Future[T]:
        """Have this done when its turn comes; its future is cancelled if it never does."""
        task = _Task(kind, round_, Future(), call)
        with self._lock:
            self._waiting.append(task)
            alike = [each for each in self._waiting if each.kind == kind]
            late = alike[: max(0, len(alike) - MOST_WAITING)]
            self._waiting = deque(each for each in self._waiting if each not in late)
        for each in late:
            each.future.cancel()
            self._tell(f"round {each.round}: its {kind} is left out: rounds are quicker than that")
        self._pool.submit(self._do_next)
        return task.future

    def close(self) -> None:
        """Return once all that waits is done."""
        self._pool.shutdown()

    def _do_next(self) -> None:
        with self._lock:
            if not self._waiting:  # it was left out
                return
            task = self._waiting.popleft()
        try:
            task.future.set_result(task.call())
        except BaseException as error:
            task.future.set_exception(error)
