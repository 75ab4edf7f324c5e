"""The processes that train simulated clients: this one alone, or several beside it."""

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed
from fedgc.sim.owned import processes
from fedgc.training.simulated import ClientTrainer, Stretch, Trained
from fedgc.training.tasks import Task

GIVE_UP_AFTER: Final = 3  # times that processes ended one after the other
_TRAINERS: Final[list[ClientTrainer]] = []  # of a worker process: one


@dataclass(frozen=True, slots=True)
class Order:
    """A stretch that was ordered, and its result to come."""

    stretch: Stretch
    future: Future[Trained]


class Alone:
    """Trains in this process, at once."""

    ahead = 0  # how many stretches are worth ordering before they are needed

    def __init__(self, task: Task, config: RunConfig, folder: Path) -> None:
        self._trainer = ClientTrainer(task, config, folder)

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


class Workers:
    """Trains in several processes. One that is killed is replaced, and its stretch done again."""

    def __init__(self, make: Callable[[], Task], config: RunConfig, folder: Path, count: int) -> None:
        """`make` makes the task in each process."""
        self.ahead = 2 * count
        self._begin = partial(_prepare, make, config, folder)
        self._count, self._ended = count, 0
        self._pool = processes(count, self._begin)

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


def _prepare(make: Callable[[], Task], config: RunConfig, folder: Path) -> None:
    _TRAINERS.append(ClientTrainer(make(), config, folder))


def _train(stretch: Stretch) -> Trained:
    return _TRAINERS[0].train(stretch)
