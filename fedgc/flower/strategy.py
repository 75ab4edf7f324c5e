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
from fedgc.errors import EdgeFailed, TaskFailed, Unusable
from fedgc.flower.cache_folders import full_name
from fedgc.flower.driver import Driver, Evaluate, Job, Save
from fedgc.flower.recording import name_of_run, recorded
from fedgc.flower.signals import before_signals
from fedgc.flower.sink import Sink
from fedgc.flower.stock_driver import EvaluateFn, StockDriver, StockJob, figures_of
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
from fedgc.store.database import Store
from fedgc.store.descriptor import read_descriptor
from fedgc.training import CommonModel, Vector
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

    It replaces a strategy of Flower in a ServerApp of your own: `start` takes the same arguments.
    `server_app` is a complete ServerApp, with checkpoints and resume.

    Args:
        task: What is trained. Without a task the clients are unmodified Flower ClientApps.
        config: Settings of the run; by default those of `RunConfig`, with stock clients if there is no task.
        sink: Receives rows, live summaries and metrics. By default the run is recorded in the store;
            `Sink()` records nothing.
        memory: Speeds and checkpoint of earlier runs, and where new checkpoints are saved.

    Example:
        @app.main()
        def main(grid, context):
            strategy = fedgc.FedGC()  # was FedAvg()
            result = strategy.start(grid, initial_arrays, num_rounds=3, evaluate_fn=evaluate)
    """

    def __init__(
        self,
        task: Task | None = None,
        config: RunConfig | None = None,
        sink: Sink | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.config = config or RunConfig(client_app="fedgc" if task else "stock")
        self._task = task
        self._sink = sink
        self._memory = memory or Memory()

    def start(  # noqa: PLR0913, PLR0917  the signature is Flower's
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run all rounds.

        Args:
            grid: Flower's grid, as `@app.main` passes it.
            initial_arrays: The initial model; by default the one that the task makes.
            num_rounds: Rounds to run; by default the setting `rounds`.
            timeout: Longest time of a round's work in seconds; by default the setting `timing.deadline-s`.
            train_config: What stock clients receive with each train message.
            evaluate_config: What stock clients receive with each evaluate message.
            evaluate_fn: Evaluates the common model on the server: `evaluate_fn(round, arrays)` returns a
                MetricRecord or None. It is called before the first round and after each new model, in place
                of the task's `evaluate`.

        Returns:
            Flower's result: the final model and the metrics of each evaluated round.

        Raises:
            Unusable: An argument is not accepted, or there is neither a task nor initial arrays.
            EdgeFailed: The run ended before its last round.
        """
        if num_rounds is not None:
            self.config = replace(self.config, rounds=num_rounds)
        if timeout is not None:
            self.config = replace(self.config, deadline_s=float(timeout))
        self._check_configs(train_config, evaluate_config)
        if self._sink is not None:
            return self._run(grid, self._sink, initial_arrays, (train_config, evaluate_config), evaluate_fn)
        run = self._memory.run or name_of_run(self.config, grid.run.run_id)
        with Store.open() as store:
            speeds = store.speeds(self.config.task)
        self._memory = replace(self._memory, run=run, speeds=speeds)
        with recorded(self.config, run, grid.run.run_id) as recording:
            return self._run(
                grid, recording.sink, initial_arrays, (train_config, evaluate_config), evaluate_fn
            )

    def _check_configs(self, *configs: ConfigRecord | None) -> None:
        for name, given in zip(("train_config", "evaluate_config"), configs, strict=True):
            if given is None:
                continue
            if not isinstance(given, ConfigRecord):
                raise Unusable(f"FedGC.start: saw {name}={given!r}, needed a ConfigRecord")
            if self.config.client_app != "stock":
                raise Unusable(
                    f"FedGC.start: saw {name}, needed none with fedgc's own clients, which take the run's "
                    "settings (settings of a task are named task.NAME)"
                )

    def _run(
        self,
        grid: Grid,
        sink: Sink,
        arrays: ArrayRecord | None,
        configs: tuple[ConfigRecord | None, ConfigRecord | None],
        evaluate_fn: EvaluateFn | None,
    ) -> Result:
        if self.config.client_app == "stock":
            return self._start_stock(grid, sink, arrays, configs, evaluate_fn)
        return self._start_fedgc(grid, sink, arrays, evaluate_fn)

    def _start_stock(
        self,
        grid: Grid,
        sink: Sink,
        arrays: ArrayRecord | None,
        configs: tuple[ConfigRecord | None, ConfigRecord | None],
        evaluate_fn: EvaluateFn | None,
    ) -> Result:
        if arrays is None:
            common = CommonModel(self._with_task(), self.config)
            arrays = _record(common.module(common.first()).state_dict())
        train_config, evaluate_config = configs
        job = StockJob(
            self.config,
            sink,
            arrays,
            train_config or ConfigRecord({"lr": self.config.learning_rate}),
            evaluate_config or ConfigRecord(),
            self._memory.save,
            self._memory.resume,
            evaluate_fn,
        )
        driver = StockDriver(grid, job, time.monotonic, LOG)
        with before_signals(lambda name: sink.stopped(f"the server got {name}")):
            over = driver.drive()
        _end(over.reason, complete=over.complete)
        return driver.result

    def _with_task(self) -> Task:
        if self._task is None:
            raise Unusable("FedGC: saw no task; only stock clients with initial arrays can do without")
        return self._task

    def _start_fedgc(
        self, grid: Grid, sink: Sink, arrays: ArrayRecord | None, evaluate_fn: EvaluateFn | None
    ) -> Result:
        past, task = self._memory, self._with_task()
        name = full_name(past.run, grid.run.run_id)
        common = CommonModel(task, self.config)
        job = Job(
            task,
            self.config,
            sink,
            past.speeds,
            past.save,
            past.resume,
            self._federation(),
            name,
            first=_vector_of(common, arrays) if arrays is not None else None,
            evaluate=_on_server(common, evaluate_fn) if evaluate_fn is not None else None,
        )
        driver = Driver(job, time.monotonic, LOG)
        links, ways = self._links(driver, name, sink)
        grid_loop = GridLoop(grid, ways, time.monotonic, LOG)
        reason = "the server ended early"

        def stopped(signal_name: str) -> None:
            if ways.listener is not None:
                ways.listener.dismiss("the run was stopped")
            sink.stopped(f"the server got {signal_name}")

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

    def _links(self, driver: Driver, run: str, sink: Sink) -> tuple[Links, Ways]:
        """Return the links that the settings allow, as the driver and as the gridloop see them."""
        config, numbers = self.config, driver.common.size
        around = Surroundings(time.monotonic, os.urandom, time.time, LOG, sink.audited)
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
        changed = {name: value for name, value in self.config.table().items() if value != defaults.get(name)}
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


def _vector_of(common: CommonModel, arrays: ArrayRecord) -> Vector:
    """Return the model in these arrays; raise Unusable if it is not one of the task."""
    try:
        return common.vector({name: array.numpy() for name, array in arrays.items()})
    except TaskFailed as error:
        raise Unusable(f"FedGC.start: initial arrays: {error}") from error


def _on_server(common: CommonModel, evaluate_fn: EvaluateFn) -> Evaluate:
    """Return a function that evaluates a vector by Flower's kind of function."""

    def evaluate(round_: int, vector: Vector) -> Mapping[str, float]:
        return figures_of(evaluate_fn, round_, _record(common.module(vector).state_dict()))

    return evaluate


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
