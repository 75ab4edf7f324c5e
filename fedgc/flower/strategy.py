"""`FedGC`, the Flower strategy: fedgc's rounds over sessions or messages, behind Flower's interface.

Flower's own rounds (configure, send and receive, aggregate) are not used: one Flower message opens a session
per client, and everything else travels inside the session. Session traffic therefore passes neither Flower's
message plane nor its mods; the run's log and rows account for it. A client whose session cannot connect gets
its packets as ordinary Flower messages.
"""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Final, NoReturn

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, Unusable
from fedgc.flower.cache_folders import full_name
from fedgc.flower.driver import Driver, Job, Save
from fedgc.flower.signals import before_signals
from fedgc.flower.sink import Sink
from fedgc.flower.stock_driver import StockDriver, StockJob
from fedgc.history import Speeds
from fedgc.links.links import Links
from fedgc.links.log import LOG
from fedgc.links.message.grid_loop import GridLoop, Ways
from fedgc.links.message.server import MessageServer
from fedgc.links.session.server import Listener
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Stop
from fedgc.secagg import Federation
from fedgc.store.checkpoint import Checkpoint
from fedgc.store.descriptor import read_descriptor
from fedgc.training import CommonModel
from fedgc.training.export import arrays_of
from fedgc.training.tasks import Task

SLACK_S: Final = 600.0  # a message outlives its session's lease, or Flower throws the reply away


@dataclass(frozen=True, slots=True)
class Memory:
    """What is known from before, and who keeps what is learnt now.

    `run` is the run's own name, which a resume shares: clients keep their work under it. `others` names the
    runs that may have kept clients busy, for the reason of a run that found none.
    """

    run: str = ""
    speeds: Speeds = field(default_factory=Speeds)
    save: Save | None = None
    resume: Checkpoint | None = None
    others: str = ""  # which runs were under way when this one began


class FedGC(Strategy):
    """The Flower strategy that aggregates partial work, with codes, gates and masked sums.

    Use it in a ServerApp of your own; `server_app` wraps it with a store and checkpoints.

    Args:
        task: What is trained. None is allowed with `client_app="stock"`, where `start` gets initial arrays.
        config: Settings of the run.
        sink: Receives rows, live summaries and metrics; by default nothing is recorded.
        memory: Speeds and checkpoint of earlier runs, and where new checkpoints are saved.

    Example:
        @app.main()
        def main(grid, context):
            config = fedgc.RunConfig.read(context.run_config)
            result = fedgc.FedGC(task, config).start(grid)
    """

    def __init__(
        self,
        task: Task | None,
        config: RunConfig,
        sink: Sink | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.config: Final = config
        self._task = task
        self._sink: Final = sink or Sink()
        self._memory = memory or Memory()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        *others: object,
        **named: object,
    ) -> Result:
        """Run all rounds.

        Args:
            grid: Flower's grid, as `@app.main` passes it.
            initial_arrays: Initial model for stock clients; with a task, the task makes the model.
            others: No further positional arguments are accepted.
            named: `train_config` and `evaluate_config` for stock clients. Other arguments of Flower's
                strategies are settings of the run or parts of the task.

        Returns:
            Flower's result: the final model and the metrics of each evaluated round.

        Raises:
            Unusable: An argument is not accepted, or there is neither a task nor initial arrays.
            EdgeFailed: The run ended before its last round.
        """
        stock = self.config.client_app == "stock"
        if others or named.keys() - ({"train_config", "evaluate_config"} if stock else set()):
            said = sorted(named) or "positional arguments"
            raise Unusable(f"FedGC.start: saw {said}; what is not for stock clients is a setting of the run")
        if stock:
            return self._start_stock(grid, initial_arrays, named)
        if initial_arrays is not None:
            raise Unusable("FedGC.start: saw initial arrays, needed the grid alone: the task makes the model")
        return self._start_coded(grid)

    def _start_stock(self, grid: Grid, arrays: ArrayRecord | None, named: Mapping[str, object]) -> Result:
        if arrays is None:
            common = CommonModel(self._with_task(), self.config)
            arrays = _record(common.module(common.first()).state_dict())
        default = ConfigRecord({"lr": self.config.learning_rate})
        job = StockJob(
            self.config,
            self._sink,
            arrays,
            _config_of(named, "train_config", default),
            _config_of(named, "evaluate_config", ConfigRecord()),
            self._memory.save,
            self._memory.resume,
        )
        driver = StockDriver(grid, job, time.monotonic, LOG)
        with before_signals(lambda name: self._sink.stopped(f"the server got {name}")):
            over = driver.drive()
        _end(over.reason, complete=over.complete)
        return driver.result

    def _with_task(self) -> Task:
        if self._task is None:
            raise Unusable("FedGC: saw no task; only stock clients with initial arrays can do without")
        return self._task

    def _start_coded(self, grid: Grid) -> Result:
        past = self._memory
        name = full_name(past.run, grid.run.run_id)
        job = Job(
            self._with_task(),
            self.config,
            self._sink,
            past.speeds,
            past.save,
            past.resume,
            self._federation(),
            name,
        )
        driver = Driver(job, time.monotonic, LOG)
        links, ways = self._links(driver, name)
        grid_loop = GridLoop(grid, ways, time.monotonic, LOG)
        reason = "the server ended early"

        def stopped(signal_name: str) -> None:
            if ways.listener is not None:
                ways.listener.dismiss("the run was stopped")
            self._sink.stopped(f"the server got {signal_name}")

        try:
            if ways.listener is not None:
                LOG.log(INFO, "sessions at %s", ways.listener.start())
            grid_loop.start(lambda why: driver.events.put(Stop(time.monotonic(), why)))
            with before_signals(stopped):
                finished = driver.drive(links)
            if not finished.complete:
                why = (finished.reason, grid_loop.explained(), past.others)
                finished = replace(finished, reason="; ".join(filter(None, why)))
            reason = finished.reason
        finally:
            if ways.listener is not None:
                ways.listener.close(reason)
            grid_loop.stop()
        _end(finished.reason, complete=finished.complete)
        return _result(driver)

    def _federation(self) -> Federation | None:
        """Return what the sites of a masked run agreed on."""
        if self.config.secrecy == "open":
            return None
        return read_descriptor(Path(self.config.federation)).federation

    def _links(self, driver: Driver, run: str) -> tuple[Links, Ways]:
        """Return the links that the settings allow, as the driver and as the gridloop see them."""
        config, numbers = self.config, driver.common.size
        around = Surroundings(time.monotonic, os.urandom, time.time, LOG, self._sink.audited)
        links = Links(driver.events.put, LOG)
        listener = message_server = None
        if config.link != "messages":
            listener = Listener(config, run, numbers, links.heard("session"), around)
            links.add({"session": listener})
        if config.link != "session":
            message_server = MessageServer(run, numbers, links.heard("messages"), around)
            links.add({"messages": message_server})
        return links, Ways(listener, message_server, 2 * config.lease_s + SLACK_S)

    def summary(self) -> None:
        """Log the settings that are not the defaults."""
        defaults = RunConfig().table()
        changed = {name: value for name, value in self.config.table().items() if value != defaults[name]}
        LOG.log(INFO, "FedGC: %s", changed or "all settings are the defaults")

    def configure_train(
        self,
        server_round: int,  # noqa: ARG002  the signature is Flower's
        arrays: ArrayRecord,  # noqa: ARG002  the signature is Flower's
        config: ConfigRecord,  # noqa: ARG002  the signature is Flower's
        grid: Grid,  # noqa: ARG002  the signature is Flower's
    ) -> Iterable[Message]:
        """Not part of an event-driven run."""
        _not_here()

    def aggregate_train(
        self,
        server_round: int,  # noqa: ARG002  the signature is Flower's
        replies: Iterable[Message],  # noqa: ARG002  the signature is Flower's
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Not part of an event-driven run."""
        _not_here()

    def configure_evaluate(
        self,
        server_round: int,  # noqa: ARG002  the signature is Flower's
        arrays: ArrayRecord,  # noqa: ARG002  the signature is Flower's
        config: ConfigRecord,  # noqa: ARG002  the signature is Flower's
        grid: Grid,  # noqa: ARG002  the signature is Flower's
    ) -> Iterable[Message]:
        """Not part of an event-driven run."""
        _not_here()

    def aggregate_evaluate(
        self,
        server_round: int,  # noqa: ARG002  the signature is Flower's
        replies: Iterable[Message],  # noqa: ARG002  the signature is Flower's
    ) -> MetricRecord | None:
        """Not part of an event-driven run."""
        _not_here()


def _end(reason: str, *, complete: bool) -> None:
    LOG.log(INFO, "the run is over: %s", reason)
    if not complete:
        raise EdgeFailed(f"the run did not complete: {reason}")


def _config_of(named: Mapping[str, object], name: str, default: ConfigRecord) -> ConfigRecord:
    given = named.get(name)
    if given is None:
        return default
    if not isinstance(given, ConfigRecord):
        raise Unusable(f"FedGC.start: saw {name}={given!r}, needed a ConfigRecord")
    return given


def _not_here() -> NoReturn:
    raise Unusable("FedGC has no Flower rounds: call start, which runs sessions")


def _result(driver: Driver) -> Result:
    result = Result()
    result.arrays = _record(driver.common.module(driver.model).state_dict())
    for round_, metrics in driver.metrics.items():
        result.evaluate_metrics_serverapp[round_] = MetricRecord(dict(metrics))
    return result


def _record(state: Mapping[str, object]) -> ArrayRecord:
    """Return a state as Flower's record, as far as that can hold it: no run fails for the rest."""
    arrays, left_out = arrays_of(state)
    if left_out:
        LOG.log(WARNING, "Flower's record leaves out what it cannot hold: %s", ", ".join(left_out))
    return ArrayRecord({name: Array(each) for name, each in arrays.items()})
