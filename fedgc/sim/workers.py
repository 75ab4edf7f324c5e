"""What trains simulated clients: this process, one by one or as a stack, or several processes beside it."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, words_of
from fedgc.processes.available import keep_memory
from fedgc.sim.owned import Processes
from fedgc.training.flat import Vector
from fedgc.training.simulated import ClientTrainer, Stretch, Trained
from fedgc.training.stacked import StackedTrainer
from fedgc.training.tasks import Task

MOST_AHEAD: Final = 64  # stretches
SHARE_AHEAD: Final = 50  # one client in so many is trained ahead
GIVE_UP_AFTER: Final = 3  # times that processes ended one after the other
_TRAINERS: Final[list[ClientTrainer | EdgeFailed]] = []  # of a worker process: one, or why there is none


@dataclass(frozen=True, slots=True)
class Order:
    """A stretch that was ordered, and its result to come."""

    stretch: Stretch
    future: Future[Trained]


class Alone:
    """Trains in this process, at once."""

    def __init__(self, task: Task, config: RunConfig, folder: Path) -> None:
        self._trainer = ClientTrainer(task, config, folder)

    def share(self, models: Mapping[int, Vector]) -> bool:
        """Train from these common models; return whether they need no files."""
        self._trainer.share(models)
        return True

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


@dataclass(slots=True)
class _Waiting:
    """An order, and what is left of its stretch."""

    order: Order
    rest: Stretch

    @property
    def steps(self) -> int:
        """How many steps are left."""
        return self.rest.last - self.rest.first

    def part(self, steps: int) -> Stretch:
        """Return so many steps of what is left."""
        return replace(self.rest, last=min(self.rest.last, self.rest.first + steps))

    def take(self, step: int, trained: Trained) -> None:
        """Enter the result of the steps up to this one."""
        if step == self.rest.last:
            self.order.future.set_result(trained)
        elif not trained.spilled:  # there is a state to go on from
            self.rest = replace(
                self.rest, first=step, kept=trained.kept, losses=trained.losses, led=trained.led
            )


class Stacked:
    """Trains in this process: a stretch that is needed, and as many steps of those that were ordered."""

    def __init__(self, trainer: StackedTrainer, count: int) -> None:
        """`count` clients are trained at a time."""
        self._trainer, self._count = trainer, count
        self._waiting: list[_Waiting] = []

    def share(self, models: Mapping[int, Vector]) -> bool:
        """Train from these common models; return whether they need no files."""
        self._trainer.share(models)
        return True

    def more(self, needed: Order, ordered: int, clients: int) -> int:  # noqa: ARG002  the interface of all workers
        """Return how many stretches to order: a stack, if the needed one is not trained yet."""
        return 0 if needed.future.done() else self._count

    def order(self, stretch: Stretch) -> Order:
        """Have a stretch trained with the next stacks, from the furthest step that one has passed."""
        waiting = _Waiting(Order(stretch, Future()), stretch)
        if (kept := self._trainer.kept(stretch)) is not None:
            waiting.take(*kept)
        if not waiting.order.future.done():
            self._waiting.append(waiting)
        return waiting.order

    def cancel(self, order: Order) -> None:
        """Give up a stretch, unless it is done."""
        if order.future.cancel():
            self._waiting = [each for each in self._waiting if each.order is not order]

    def result(self, order: Order) -> Trained:
        """Return the result; train it first, with those that wait."""
        if not order.future.done():
            self._waiting.sort(key=lambda each: each.order is not order)  # the needed one is the first
            stack = self._waiting[: self._count]
            parts = [each.part(stack[0].steps) for each in stack]
            for each, part, outcome in zip(stack, parts, self._trainer.train(parts), strict=True):
                if isinstance(outcome, Trained):
                    each.take(part.last, outcome)
                else:
                    each.order.future.set_exception(outcome)
            self._waiting = [each for each in self._waiting if not each.order.future.done()]
        return order.future.result()

    def close(self) -> None:
        """Do nothing."""


class Workers:
    """Trains in several processes. One that is killed is replaced, and its stretch done again."""

    def __init__(self, make: Callable[[], Task], config: RunConfig, folder: Path, count: int) -> None:
        """`make` makes the task in each process."""
        self._begin = partial(_prepare, make, config, folder)
        self._count, self._ended = count, 0
        self._pool = Processes(count, self._begin)

    def share(self, models: Mapping[int, Vector]) -> bool:  # noqa: ARG002  the interface of all workers
        """Do nothing: the processes read the files of the common models."""
        return False

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
        self._pool.kill()

    def _replace(self) -> None:
        self._ended += 1
        if self._ended > GIVE_UP_AFTER:
            raise EdgeFailed(
                f"training: processes ended {self._ended} times in a row, needed some that train; "
                "they may have had too little memory"
            )
        self._pool.shutdown(cancel_futures=True)
        self._pool = Processes(self._count, self._begin)


def ahead(processes: int, ordered: int, clients: int) -> int:
    """Return how many stretches to order, so that these processes are always busy.

    >>> ahead(2, 0, 100), ahead(2, 4, 100), ahead(2, 5, 100)
    (4, 4, 0)
    """
    most = min(MOST_AHEAD, max(2 * processes, clients // SHARE_AHEAD))
    return most if 2 * ordered <= most + 2 * processes else 0


def _prepare(make: Callable[[], Task], config: RunConfig, folder: Path) -> None:
    keep_memory()
    try:
        _TRAINERS.append(ClientTrainer(make(), config, folder))
    except Exception as error:  # the user's code may raise anything, and a pool says only that it is broken
        _TRAINERS.append(EdgeFailed(f"training: the task cannot be made in a process: {words_of(error)}"))


def _train(stretch: Stretch) -> Trained:
    trainer = _TRAINERS[0]
    if isinstance(trainer, EdgeFailed):
        raise trainer
    return trainer.train(stretch)
