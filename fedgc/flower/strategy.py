"""`FedGC`, the Flower strategy: fedgc's rounds over sessions or messages, behind Flower's interface.

Flower's own rounds (configure, send and receive, aggregate) are not used: one Flower message opens a session
per client, and the rest is sent inside the session. So session traffic passes neither Flower's message plane
nor its mods; it is counted in the run's log and rows. A client whose session cannot connect gets its packets
as ordinary Flower messages.
"""

import copy
import os
import queue
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Final, NoReturn

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, TaskFailed, Unusable
from fedgc.flower.app_config import placed, submitted_name
from fedgc.flower.cache_folders import full_name
from fedgc.flower.driver import Driver
from fedgc.flower.evaluate_fn import AppEvaluation, EvaluateFn
from fedgc.flower.initialize import Events, announced_model
from fedgc.flower.job import Evaluate, Job, ServerModel
from fedgc.flower.masked_federation import federation_of
from fedgc.flower.must_fit import must_fit_server
from fedgc.flower.recording import name_of_run
from fedgc.flower.run_memory import Memory, of_start, remembered
from fedgc.flower.scoring import Parts, Scoring
from fedgc.flower.signals import before_signals, why_stopped
from fedgc.flower.sink import Sink
from fedgc.flower.site import gateway_line
from fedgc.flower.stock_driver import StockDriver, StockJob
from fedgc.large_vectors import Scratch
from fedgc.links.links import Links
from fedgc.links.log import LOG
from fedgc.links.message.fleet_size import fleet_size
from fedgc.links.message.grid_loop import GridLoop, Ways
from fedgc.links.message.server import MessageServer
from fedgc.links.quotas import Quotas
from fedgc.links.receivers.receivers import session_link
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Layout, LinkEvent, Stop
from fedgc.processes.available import available_memory, release_memory
from fedgc.run.initialization import Initialization
from fedgc.run.machine import Finished
from fedgc.secagg import Federation
from fedgc.store.engine import runs_folder
from fedgc.store.later_starts import SUBMITTED_ROUNDS
from fedgc.training import AnnouncedModel, CommonModel, Vector
from fedgc.training.export import arrays_of
from fedgc.training.tasks import Task, must_be_task

_begun: Final = Counter[tuple[int, str]]()  # starts of this process, by Flower's run and the run's name
SCRATCH: Final = ".scratch"  # next to the folders of runs, whose names begin with no dot
OF_OWN_CLIENTS: Final = (  # an app may read others, such as learning-rate, from its run config
    "work",
    "optimizer.schedule",
    "optimizer.warmup-steps",
    "optimizer.shared-momentum",
    "timing.upload-deadline-s",
    "timing.late-s",
    "timing.quorum",
    "timing.patience",
    "aggregation.largest-share",
    "aggregation.rollback",
    "aggregation.check-outliers",
    "client.precision",
)
NOT_FOR_STOCK: Final = ("gate.", "data.", "code.", "links.", "quota.")  # groups of settings
ROUND_METHODS: Final = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
SLACK_S: Final = 600.0  # a message must outlive its session's lease, or Flower drops the reply


@dataclass(slots=True)
class _Connected:
    """The links of a run, and how it ended."""

    events: Events
    links: Links
    ways: Ways
    grid_loop: GridLoop
    end: Finished

    def open_links(self) -> None:
        """Let clients come."""
        if self.ways.listener is not None:
            LOG.log(INFO, "sessions at %s", self.ways.listener.start())
        self.grid_loop.start(lambda why: self.events.queue.put(Stop(time.monotonic(), why)))


class FedGC(Strategy):
    """The Flower strategy that aggregates partial work, with codes, gates and masked sums.

    It replaces a strategy of Flower in a ServerApp of your own: `start` takes the same arguments.
    The run is recorded in the store, and keeps checkpoints, from which the setting `resume` goes on.
    `server_app` is a complete ServerApp.

    Args:
        task: The training task. Without a task the clients are unmodified Flower ClientApps.
        config: Settings of the run; by default those of `RunConfig`, with stock clients if there is no task.
        sink: A `fedgc.flower.sink.Sink`: receives rounds, live summaries and figures. By default the run is
            recorded in the store; `Sink()` records nothing.
        memory: With `sink`, a `fedgc.flower.run_memory.Memory`: the run's name, the measured speeds, the
            checkpoint to resume from, and the function that saves new ones. Without it there are none.

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
        must_be_task(task)
        if memory is not None and sink is None:
            raise Unusable("FedGC: saw memory without sink, needed both or none")
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
            num_rounds: Rounds to run. It replaces the setting `rounds`, which holds by default.
            timeout: Longest time of a round's training in seconds. It replaces the setting
                `timing.deadline-s`, which holds by default.
            train_config: What stock clients receive with each train message.
            evaluate_config: What stock clients receive with each evaluate message.
            evaluate_fn: Evaluates the common model on the server: `evaluate_fn(round, arrays)` returns a
                MetricRecord or None. It is called before the first round and after a new model, as often as
                `history.evaluate-every` says, in place of the task's `evaluate`.

        Returns:
            Flower's result: the final model and the metrics of each evaluated round.

        Raises:
            Unusable: An argument is not accepted, or there is neither a task nor initial arrays.
            EdgeFailed: The run ended before its last round.
        """
        self._check_methods()
        one = copy.copy(self)
        one.config = self._settings(grid, num_rounds, timeout)
        one._check_given(initial_arrays, train_config, evaluate_config)
        configs = (train_config, evaluate_config)
        if self._sink is not None:
            if one.config.resume and self._memory.resume is None:
                raise Unusable(
                    f"setting resume: saw {one.config.resume}, needed none with a sink of one's own"
                )
            return one._run(grid, self._sink, initial_arrays, configs, evaluate_fn)()
        first = name_of_run(one.config, grid.run.run_id)
        number = _begun[grid.run.run_id, first] + 1
        one.config = of_start(one.config, first, number)
        named = replace(one.config, run=first)
        more = {SUBMITTED_ROUNDS: self.config.rounds} if num_rounds is not None else {}
        with remembered(named, one.config.run, grid.run.run_id, more) as (sink, one._memory):
            _begun[grid.run.run_id, first] = number
            return one._run(grid, sink, initial_arrays, configs, evaluate_fn)()

    def _settings(self, grid: Grid, num_rounds: int | None, timeout: float | None) -> RunConfig:
        """Return the settings of one start, with the names of the run that it was submitted with."""
        config = self.config
        if num_rounds is not None:
            config = replace(config, rounds=num_rounds)
        if timeout is not None:
            config = replace(config, deadline_s=float(timeout))
        place = grid.run.override_config, sys.path
        run = config.run or submitted_name("run", *place)
        config = replace(config, run=run, resume=config.resume or submitted_name("resume", *place))
        return config if config.client_app == "stock" else placed(config, os.environ)

    def run(self, grid: Grid, sink: Sink) -> None:
        """Run all rounds, as `start` does, without a result: the final model is in the last checkpoint.

        Flower's result holds the model in other forms, which takes as much memory as several models.
        """
        self._run(grid, sink, None, (None, None), None)

    def _check_methods(self) -> None:
        own = [name for name in ROUND_METHODS if getattr(type(self), name) is not getattr(FedGC, name)]
        if own:
            raise Unusable(
                f"{type(self).__name__}: saw {', '.join(own)} of its own, needed none: FedGC calls no method "
                "for one round"
            )

    def _check_given(self, arrays: ArrayRecord | None, *configs: ConfigRecord | None) -> None:
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
        if arrays is None and not self.config.script:
            self._with_task()
        if arrays is not None and not isinstance(arrays, ArrayRecord):
            raise Unusable(
                f"FedGC.start: saw initial_arrays of {type(arrays).__name__}, needed an ArrayRecord"
            )

    def _run(
        self,
        grid: Grid,
        sink: Sink,
        arrays: ArrayRecord | None,
        configs: tuple[ConfigRecord | None, ConfigRecord | None],
        evaluate_fn: EvaluateFn | None,
    ) -> Callable[[], Result]:
        """Run all rounds; return a function that makes the result."""
        evaluation = AppEvaluation(evaluate_fn, LOG) if evaluate_fn is not None else None
        if self.config.client_app == "stock":
            stock = self._start_stock(grid, sink, arrays, configs, evaluation)
            return lambda: stock.result
        driver = self._start_fedgc(grid, sink, arrays, evaluation)
        return lambda: _result(driver, evaluation)

    def _start_stock(
        self,
        grid: Grid,
        sink: Sink,
        arrays: ArrayRecord | None,
        configs: tuple[ConfigRecord | None, ConfigRecord | None],
        evaluation: AppEvaluation | None,
    ) -> StockDriver:
        if unused := _unused_by_stock(self.config):
            LOG.log(WARNING, "without effect on stock clients: %s", ", ".join(unused))
        if arrays is None:
            common = CommonModel(self._with_task(), self.config)
            arrays = _record(common.state(common.first()))
        train_config, evaluate_config = configs
        job = StockJob(
            self.config,
            sink,
            arrays,
            train_config or ConfigRecord(),
            evaluate_config or ConfigRecord(),
            self._memory.save,
            self._memory.resume,
            evaluation,
        )
        driver = StockDriver(grid, job, time.monotonic, LOG)
        with before_signals(lambda name: sink.stopped(why_stopped(name))):
            over = driver.drive()
        _end(over.reason, complete=over.complete)
        return driver

    def _with_task(self) -> Task:
        if self._task is None:
            raise Unusable("FedGC: saw no task; only stock clients with initial arrays can do without")
        return self._task

    def _start_fedgc(
        self, grid: Grid, sink: Sink, arrays: ArrayRecord | None, evaluation: AppEvaluation | None
    ) -> Driver:
        name = full_name(self._memory.run, grid.run.run_id)
        with (
            gateway_line(self.config.site_gateway) as gateway,
            self._connected(grid, name, sink) as connected,
        ):
            model = self._model(connected)
            job = replace(self._job(model, sink, name, arrays, evaluation), gateway=gateway)
            driver = Driver(job, time.monotonic, LOG, connected.events.queue)
            connected.grid_loop.has_begun = lambda: driver.has_gathered
            release_memory()  # of the module that gave the first vector
            end = driver.drive(connected.links)
            connected.end = self._explained(end, connected.grid_loop, begun=driver.begun)
        _end(connected.end.reason, complete=connected.end.complete)
        return driver

    def score(self, grid: Grid) -> Mapping[str, Any]:
        """Have the clients score the model in the memory's checkpoint, without training.

        Raises:
            Unusable: There is no checkpoint.
            EdgeFailed: Too few clients joined, or none returned figures.
        """
        saved = self._memory.resume
        if saved is None:
            raise Unusable("FedGC.score: saw no checkpoint, needed the model to score")
        name = full_name(self._memory.run, grid.run.run_id)
        with self._connected(grid, name, Sink()) as connected:
            model = self._model(connected)
            parts = Parts(connected.events.queue, time.monotonic, LOG)
            scoring = Scoring(self.config, saved, Initialization(model.layout), parts)
            result = scoring.drive(connected.links)
            connected.end = Finished("the model is scored", complete=True)
        return result

    @contextmanager
    def _connected(self, grid: Grid, name: str, sink: Sink) -> Iterator[_Connected]:
        """Yield the links of a run; say goodbye to the clients at the end."""
        events = Events(queue.SimpleQueue(), time.monotonic, LOG)
        links, ways = self._links(events.queue, name, sink)
        grid_loop = GridLoop(grid, ways, time.monotonic, LOG, sink.audited)
        end = Finished("the server ended early", complete=False)
        connected = _Connected(events, links, ways, grid_loop, end)

        def stopped(signal_name: str) -> None:
            if ways.listener is not None:
                ways.listener.dismiss("the run was stopped")
            sink.stopped(why_stopped(signal_name))

        try:
            with before_signals(stopped):
                yield connected
        except EdgeFailed as error:
            connected.end = self._explained(Finished(str(error), complete=False), grid_loop)
            raise EdgeFailed(connected.end.reason) from error
        finally:
            if ways.listener is not None:
                ways.listener.close(connected.end.reason, complete=connected.end.complete)
            grid_loop.stop()

    def _explained(self, end: Finished, grid_loop: GridLoop, *, begun: bool = False) -> Finished:
        """Add why clients took no part to the reason of an incomplete run; first, if it had no round."""
        if end.complete:
            return end
        absent = grid_loop.explained(lacks_clients=end.lacks_clients or not begun)
        why = (end.reason, absent) if begun else (absent, end.reason)
        return replace(end, reason="; ".join(filter(None, (*why, self._memory.others))))

    def _model(self, connected: _Connected) -> ServerModel:
        """Return the common model, and let clients come: before it is known with a script, else after."""
        if not self.config.script:
            task = self._with_task()
            task.allow(self.config.placement)
            made = CommonModel(task, self.config)
            self._must_fit(made.size)
            connected.links.expect(made.size, made.layout.buffer_size)
            connected.open_links()
            return made
        connected.open_links()
        resumed = self._memory.resume
        if resumed is None:
            return announced_model(self.config, connected.events, connected.links, self._must_fit)
        announced = AnnouncedModel(Layout.read(resumed.layout), resumed.model)
        connected.links.expect(announced.size, announced.layout.buffer_size)
        return announced

    def _must_fit(self, numbers: int) -> None:
        folder = runs_folder(self.config.checkpoint_dir, os.environ)
        resumes = self._memory.resume is not None
        must_fit_server(self.config, numbers, folder, resumes=resumes)

    def _job(
        self,
        model: ServerModel,
        sink: Sink,
        name: str,
        arrays: ArrayRecord | None,
        evaluation: AppEvaluation | None,
    ) -> Job:
        past = self._memory
        return Job(
            model,
            self.config,
            sink,
            past.speeds,
            past.save,
            past.resume,
            self._federation(),
            name,
            first=_vector_of(model, arrays) if arrays is not None else None,
            evaluate=_on_server(model, evaluation) if evaluation is not None else None,
            pin=past.pin,
            best=past.best,
            scratch=self._scratch(),
            fleet=fleet_size(os.environ),
        )

    def _federation(self) -> Federation | None:
        """Return the federation of a masked run."""
        if self.config.secrecy == "open":
            return None
        return federation_of(Path(self.config.federation), self.config)

    def _scratch(self) -> Scratch:
        folder = runs_folder(self.config.checkpoint_dir, os.environ) / SCRATCH
        return Scratch(folder, available=available_memory)

    def _links(self, events: "queue.SimpleQueue[LinkEvent]", run: str, sink: Sink) -> tuple[Links, Ways]:
        """Make the links that the settings allow, for the driver and for the grid loop."""
        config, numbers = self.config, 0  # the length of vectors is not known yet
        quotas = Quotas(config.lines_per_s, config.bytes_per_s)
        clocks = time.monotonic, os.urandom, time.time
        around = Surroundings(*clocks, LOG, sink.audited, quotas, self._scratch())
        links = Links(events.put, LOG)
        listener = message_server = None
        if config.link != "messages":
            listener = session_link(config, run, links.heard("session"), around)
            links.add({"session": listener})
        if config.link != "session" and not config.script:  # a script outlives no message
            message_server = MessageServer(run, numbers, links.heard("messages"), around)
            links.add({"messages": message_server})
        ttl_s = 2 * config.session_lease_s + SLACK_S
        return links, Ways(listener, message_server, ttl_s, config.min_clients, fleet_size(os.environ))

    def summary(self) -> None:
        """Log the settings that are not the defaults."""
        defaults = RunConfig().table()
        changed = {name: value for name, value in self.config.table().items() if value != defaults.get(name)}
        LOG.log(INFO, "FedGC: %s", changed or "all settings are the defaults")

    def configure_train(self, *_: Any, **__: Any) -> NoReturn:  # noqa: ANN401  the signatures are Flower's
        """Not part of an event-driven run."""
        raise Unusable("FedGC: saw a call for one round, as by a strategy around it, needed FedGC.start")

    aggregate_train = configure_evaluate = aggregate_evaluate = configure_train


def _unused_by_stock(config: RunConfig) -> list[str]:
    """Return the settings, other than their defaults, that have no effect on rounds of stock clients."""
    usual = RunConfig().table()
    changed = (name for name, value in config.table().items() if name in usual and value != usual[name])
    unused = [name for name in changed if name in OF_OWN_CLIENTS or name.startswith(NOT_FOR_STOCK)]
    return [name for name in unused if (name, config.link) != ("links.kind", "messages")]


def _end(reason: str, *, complete: bool) -> None:
    LOG.log(INFO, "the run is over: %s", reason)
    if not complete:
        raise EdgeFailed(f"the run did not complete: {reason}")


def _vector_of(common: ServerModel, arrays: ArrayRecord) -> Vector:
    """Return the model in these arrays; raise Unusable if it does not fit the task's model."""
    if isinstance(common, AnnouncedModel):
        raise Unusable(
            "FedGC.start: saw initial arrays, needed none with a script, whose clients bring the model"
        )
    try:
        return common.vector({name: array.numpy() for name, array in arrays.items()})
    except TaskFailed as error:
        raise Unusable(f"FedGC.start: initial arrays: {error}") from error


def _on_server(common: ServerModel, evaluation: AppEvaluation) -> Evaluate:
    """Return a function that evaluates a vector by the app."""

    def evaluate(round_: int, vector: Vector) -> Mapping[str, float]:
        return evaluation(round_, _record(common.state(vector)))

    return evaluate


def _result(driver: Driver, evaluation: AppEvaluation | None) -> Result:
    """Return Flower's result, with the records that the app's `evaluate_fn` returned."""
    result = Result()
    result.arrays = _record(driver.common.state(driver.average))
    made = evaluation.record if evaluation is not None else lambda _, metrics: MetricRecord(dict(metrics))
    of_server, of_clients = driver.figures
    for round_, metrics in of_server.items():
        result.evaluate_metrics_serverapp[round_] = made(round_, metrics)
    for round_, metrics in of_clients.items():
        result.evaluate_metrics_clientapp[round_] = MetricRecord(dict(metrics))
    return result


def _record(state: Mapping[str, object]) -> ArrayRecord:
    """Return a `state_dict` as an ArrayRecord; entries that it cannot hold are left out with a warning."""
    arrays, left_out = arrays_of(state)
    if left_out:
        LOG.log(WARNING, "Flower's record leaves out what it cannot hold: %s", ", ".join(left_out))
    return ArrayRecord({name: Array(each) for name, each in arrays.items()})
