"""Training of simulated clients on a Ray cluster: actors in place of processes of this machine.

An actor that is lost is started again by Ray, which repeats its stretch: a stretch has the same result
wherever it is trained. Models and states are files, so the folder of a simulation must be one that all
machines of the cluster share.
"""

import sys
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from fedgc.config import RunConfig
from fedgc.errors import BadTask, EdgeFailed, Unusable, words_of
from fedgc.processes.available import keep_memory
from fedgc.sim.workers import Order, ahead
from fedgc.training.flat import Vector
from fedgc.training.simulated import ClientTrainer, Stretch, Trained
from fedgc.training.tasks import Task

HERE: Final = "local"  # the address of a cluster that is started for this simulation
RETRIES: Final = 10  # of a stretch whose actor is lost


class Actor:
    """Trains stretches in a process of the cluster."""

    def __init__(self, make: Callable[[], Task], config: RunConfig, folder: Path, path: list[str]) -> None:
        sys.path += [each for each in path if each not in sys.path]  # for tasks in the user's folder
        keep_memory()
        self._trainer = ClientTrainer(make(), config, folder)

    def train(self, stretch: Stretch) -> Trained:
        """Do the steps."""
        return self._trainer.train(stretch)


class RayWorkers:
    """Trains on a Ray cluster."""

    def __init__(
        self, address: str, make: Callable[[], Task], config: RunConfig, folder: Path, count: int
    ) -> None:
        """`address` is that of the cluster, or `local`; `make` makes the task in each actor."""
        self._ray, self._count = _ray(), count
        try:
            self._ray.init(address, log_to_driver=False, include_dashboard=False if address == HERE else None)
        except Exception as error:  # Ray raises what its connection does
            raise EdgeFailed(f"--ray {address}: {words_of(error)}, needed a cluster of Ray") from error
        gpus = 0.0 if config.device == "cpu" else self._ray.cluster_resources().get("GPU", 0.0)
        kind = self._ray.remote(
            num_cpus=1, num_gpus=min(1.0, gpus / count), max_restarts=-1, max_task_retries=RETRIES
        )
        try:
            made = [kind(Actor).remote(make, config, folder, sys.path) for _ in range(count)]
        except Exception as error:  # of the user's task, which pickle refuses in many ways
            self._ray.shutdown()
            raise BadTask(f"task: {words_of(error)}, needed one that can be sent to Ray") from error
        self._actors: deque[Any] = deque(made)

    def share(self, models: Mapping[int, Vector]) -> bool:  # noqa: ARG002  the interface of all workers
        """Do nothing: the processes read the files of the common models."""
        return False

    def more(self, needed: Order, ordered: int, clients: int) -> int:  # noqa: ARG002  the interface of all workers
        """Return how many stretches to order before they are needed, beside those that are ordered."""
        return ahead(self._count, ordered, clients)

    def order(self, stretch: Stretch) -> Order:
        """Have a stretch trained; actors take turns."""
        self._actors.rotate(-1)
        future: Future[Trained] = self._actors[0].train.remote(stretch).future()
        return Order(stretch, future)

    def cancel(self, order: Order) -> None:
        """Do nothing: it may be training already, and its room is in use until it has ended."""

    def result(self, order: Order) -> Trained:
        """Wait for the result."""
        try:
            return order.future.result()
        except Exception as error:
            cause = getattr(error, "cause", None)  # of an actor's error, which has its traceback as text
            if isinstance(cause, EdgeFailed):
                raise cause from None
            reason = words_of(cause if isinstance(cause, Exception) else error)
            raise EdgeFailed(f"training on Ray: {reason}") from error

    def close(self) -> None:
        """Leave the cluster; one that was started for this simulation ends."""
        self._ray.shutdown()


def _ray() -> Any:  # noqa: ANN401  a module without types
    try:
        return import_module("ray")
    except ImportError:
        raise Unusable(
            "--ray: saw no package ray, needed it: pip install '.[ray]' in fedgc's repository"
        ) from None
