"""What trains simulated clients: this process, one by one or as a stack, or several processes beside it."""

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, words_of
from fedgc.sim.owned import processes
from fedgc.training.simulated import ClientTrainer, Stretch, Trained
from fedgc.training.stacked import StackedTrainer
from fedgc.training.tasks import Task

MOST_AHEAD: Final = 64  # stretches
SHARE_AHEAD: Final = 50  # one client in so many is trained ahead
LONGER: Final = 2  # a stretch of more steps than so many times those of the needed one stays out of its stack
GIVE_UP_AFTER: Final = 3  # times that processes ended one after the other
_TRAINERS: Final[list[ClientTrainer | EdgeFailed]] = []  # of a worker process: one, or why there is none


@dataclass(frozen=True, slots=True)
class Order:
    """A stretch that was ordered, and its result to come."""

    stretch: Stretch
    future: Future[Trained]

    @property
    def steps(self) -> int:
        """How many steps are ordered."""
        return self.stretch.last - self.stretch.first


class Alone:
    """Trains in this process, at once."""

    def __init__(self, task: Task, config: RunConfig, folder: Path) -> None:
        self._trainer = ClientTrainer(task, config, folder)

    def more(self, needed: Order, ordered: int, clients: int) -> int:  # noqa: ARG002  the interface of all workers
        """Return how many stretches to order before they are needed: none."""
        return 0

    def order(self, stretch: Stretch) -> Order:
        """Train a stretch."""
        future: Future[Trained] = Future()
        future.set_result(self._trainer.train(stretch))
        return Order(stretch, future)

    def cancel(self, order: Order) -> None:
        """Do nothing: it is done."""

    def result(self, order: Order) -> Trained:
        """Return the result."""
        return order.future.result()

    def close(self) -> None:
        """Do nothing."""


class Stacked:
    """Trains in this process: a stretch that is needed, together with those that were ordered."""

    def __init__(self, task: Task, config: RunConfig, folder: Path, count: int) -> None:
        """`count` clients are trained at a time."""
        self._trainer, self._count = StackedTrainer(task, config, folder), count
        self._waiting: list[Order] = []

    def more(self, needed: Order, ordered: int, clients: int) -> int:  # noqa: ARG002  the interface of all workers
        """Return how many stretches to order: a stack, if the needed one is not trained yet."""
        return 0 if needed.future.done() else self._count

    def order(self, stretch: Stretch) -> Order:
        """Have a stretch trained with the next stack."""
        self._waiting.append(Order(stretch, Future()))
        return self._waiting[-1]

    def cancel(self, order: Order) -> None:
        """Give up a stretch, unless it is done."""
        if order in self._waiting:
            self._waiting.remove(order)
            order.future.cancel()

    def result(self, order: Order) -> Trained:
        """Return the result; train it first, with those that wait."""
        if not order.future.done():
            self._waiting.remove(order)
            short = [each for each in self._waiting if each.steps <= LONGER * order.steps]
            stack = [order, *short[: self._count - 1]]
            self._waiting = [each for each in self._waiting if each not in stack]
            for each, outcome in zip(
                stack, self._trainer.train([each.stretch for each in stack]), strict=True
            ):
                if isinstance(outcome, Trained):
                    each.future.set_result(outcome)
                else:
                    each.future.set_exception(outcome)
        return order.future.result()

    def close(self) -> None:
        """Do nothing."""


class Workers:
    """Trains in several processes. One that is killed is replaced, and its stretch done again."""

    def __init__(self, make: Callable[[], Task], config: RunConfig, folder: Path, count: int) -> None:
        """`make` makes the task in each process."""
        self._begin = partial(_prepare, make, config, folder)
        self._count, self._ended = count, 0
        self._pool = processes(count, self._begin)

    def more(self, needed: Order, ordered: int, clients: int) -> int:  # noqa: ARG002  the interface of all workers
        """Return how many stretches to order before they are needed, beside those that are ordered."""
        return ahead(self._count, ordered, clients)

    def order(self, stretch: Stretch) -> Order:
        """Have a stretch trained."""
        try:
            return Order(stretch, self._pool.submit(_train, stretch))
        except BrokenProcessPool:
            self._replace()
            return self.order(stretch)

    def cancel(self, order: Order) -> None:
        """Give up a stretch, unless it is under way."""
        order.future.cancel()

    def result(self, order: Order) -> Trained:
        """Wait for the result."""
        try:
            found = order.future.result()
        except BrokenProcessPool:
            return self.result(self.order(order.stretch))
        self._ended = 0
        return found

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)

    def _replace(self) -> None:
        self._ended += 1
        if self._ended > GIVE_UP_AFTER:
            raise EdgeFailed(
                f"training: processes ended {self._ended} times in a row, needed some that train; "
                "they may have had too little memory"
            )
        self._pool.shutdown(cancel_futures=True)
        self._pool = processes(self._count, self._begin)


def ahead(processes: int, ordered: int, clients: int) -> int:
    """Return how many stretches to order, so that these processes are always busy.

    >>> ahead(2, 0, 100), ahead(2, 4, 100), ahead(2, 5, 100)
    (4, 4, 0)
    """
    most = min(MOST_AHEAD, max(2 * processes, clients // SHARE_AHEAD))
    return most if 2 * ordered <= most + 2 * processes else 0


def _prepare(make: Callable[[], Task], config: RunConfig, folder: Path) -> None:
    try:
        _TRAINERS.append(ClientTrainer(make(), config, folder))
    except Exception as error:  # the user's code may raise anything, and a pool says only that it is broken
        _TRAINERS.append(EdgeFailed(f"training: the task cannot be made in a process: {words_of(error)}"))


def _train(stretch: Stretch) -> Trained:
    trainer = _TRAINERS[0]
    if isinstance(trainer, EdgeFailed):
        raise trainer
    return trainer.train(stretch)
