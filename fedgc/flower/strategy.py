"""`FedGC`, the Flower strategy: coded rounds over sessions, behind Flower's own interface.

Flower's rounds (configure, send and receive, aggregate) do not happen here: a Flower message opens one
session per device, and everything else travels inside it. So session traffic passes neither Flower's
message plane nor its mods; the run's log and rows account for it.
"""

import os
import time
from collections.abc import Iterable
from logging import INFO
from typing import Final, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, Unusable
from fedgc.flower.desk import Surroundings
from fedgc.flower.doorman import Doorman
from fedgc.flower.driver import Driver, Job, Save
from fedgc.flower.listener import Listener
from fedgc.flower.log import LOG
from fedgc.flower.signals import before_signals
from fedgc.flower.sink import Silence, Sink
from fedgc.history import Speeds
from fedgc.messages import Stop
from fedgc.store.checkpoint import Checkpoint
from fedgc.task import Task

SLACK_S: Final = 600.0  # a message outlives its session's lease, or Flower throws the reply away


class FedGC(Strategy):
    """Runs a task with these settings; rows, live summaries and metrics go to the sink."""

    def __init__(
        self,
        task: Task,
        config: RunConfig,
        sink: Sink | None = None,
        *,
        speeds: Speeds | None = None,
        save: Save | None = None,
        resume: Checkpoint | None = None,
    ) -> None:
        self.config: Final = config
        self._job = Job(task, config, sink or Silence(), speeds or Speeds(), save, resume)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        *others: object,
        **named: object,
    ) -> Result:
        """Run to the end; the model and the metrics of each evaluated round come back as Flower's result.

        What Flower's other strategies take here are settings of the run or parts of the task.
        """
        if initial_arrays is not None or others or named:
            raise Unusable("FedGC.start: needed the grid alone; the rest are settings, or the task's")
        driver = Driver(self._job, time.monotonic, LOG)
        around = Surroundings(time.monotonic, os.urandom, time.time, LOG)
        listener = Listener(self.config, str(grid.run.run_id), driver.common.size, driver.events.put, around)
        doorman = Doorman(grid, listener, 2 * self.config.lease_s + SLACK_S, time.monotonic, LOG)
        reason = "the server ended early"

        def stopped(signal_name: str) -> None:
            listener.dismiss("the run was stopped")
            self._job.sink.stopped(f"the server got {signal_name}")

        try:
            LOG.log(INFO, "sessions at %s", listener.start())
            doorman.start(lambda why: driver.events.put(Stop(time.monotonic(), why)))
            with before_signals(stopped):
                finished = driver.drive(listener)
            reason = finished.reason
        finally:
            listener.close(reason)
            doorman.stop()
        LOG.log(INFO, "the run is over: %s", finished.reason)
        if not finished.complete:
            raise EdgeFailed(f"the run did not complete: {finished.reason}")
        return _result(driver)

    def summary(self) -> None:
        """Log the settings that are not the defaults."""
        defaults = RunConfig().table()
        changed = {name: value for name, value in self.config.table().items() if value != defaults[name]}
        LOG.log(INFO, "FedGC: %s", changed or "all settings are the defaults")

    def configure_train(
        self,
        server_round: int,  # noqa: ARG002
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,  # noqa: ARG002
        grid: Grid,  # noqa: ARG002
    ) -> Iterable[Message]:
        """Not part of an event-driven run."""
        _not_here()

    def aggregate_train(
        self,
        server_round: int,  # noqa: ARG002
        replies: Iterable[Message],  # noqa: ARG002
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Not part of an event-driven run."""
        _not_here()

    def configure_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,  # noqa: ARG002
        grid: Grid,  # noqa: ARG002
    ) -> Iterable[Message]:
        """Not part of an event-driven run."""
        _not_here()

    def aggregate_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        replies: Iterable[Message],  # noqa: ARG002
    ) -> MetricRecord | None:
        """Not part of an event-driven run."""
        _not_here()


def _not_here() -> NoReturn:
    raise Unusable("FedGC has no Flower rounds: call start, which runs sessions")


def _result(driver: Driver) -> Result:
    result = Result()
    result.arrays = ArrayRecord(driver.common.module(driver.model).state_dict())
    for round_, metrics in driver.metrics.items():
        result.evaluate_metrics_serverapp[round_] = MetricRecord(dict(metrics))
    return result
