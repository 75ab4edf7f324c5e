"""The driver of runs with stock clients: carries out `stock_rounds` with the messages of Flower's FedAvg.

A train message holds the records `arrays` and `config` (with `server-round`); its reply holds one record of
arrays and one of metrics with `num-examples`. Evaluate messages are alike, so a ClientApp written for
Flower's strategies runs unchanged. Error replies come from the SuperLink, so replies are matched by the id of
their message.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING, Logger
from typing import Final

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedgc.aggregators import result_of
from fedgc.config import RunConfig
from fedgc.errors import (
    BadMessage,
    BadSetting,
    BadVector,
    EdgeFailed,
    ExtensionFailed,
    FedgcError,
    Refused,
    TaskFailed,
    printable,
    words_of,
)
from fedgc.flower.evaluate_fn import AppEvaluation
from fedgc.flower.left_out import LeftOut
from fedgc.flower.sink import Live, LiveClient, Sink
from fedgc.flower.stock_layout import Layout, Vector
from fedgc.flower.stock_metrics import LOSSES, Metrics, in_some, left_out, mean_of, metrics_of, only
from fedgc.flower.stock_rounds import (
    LEAST_DEADLINE_S,
    Aggregate,
    Ask,
    Closed,
    Output,
    StockRounds,
    StockState,
    Trained,
    name_of,
)
from fedgc.flower.warn_once import WarnOnce
from fedgc.guards import guarded
from fedgc.history import RoundRow
from fedgc.links import typed_json as typed
from fedgc.links.message.grid_loop import raised_in
from fedgc.run.outputs import Finished
from fedgc.store.checkpoint import Checkpoint
from fedgc.training import ServerOptimizer

NODES_S: Final = 1.0  # between queries of the connected nodes
POLL_S: Final = 0.04
PRESENT_S: Final = 0.25
NO_EVALUATE: Final = "No evaluate function registered"  # Flower's error of a ClientApp without @app.evaluate
HINTS: Final = (  # by what errors of Flower say; a client_fn looks for the record of old messages
    ("fitins.parameters", "; needed a ClientApp with @app.train, saw one with a client_fn"),
    ("No train function registered", "; needed a ClientApp with @app.train: saw none, as in that of fedgc"),
    ("proximal-mu", "; needed proximal-mu in the train_config of FedGC.start: FedProx adds it by itself"),
)


@dataclass(frozen=True, slots=True)
class StockJob:
    """The inputs of a run with stock clients."""

    config: RunConfig
    sink: Sink
    arrays: ArrayRecord
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    save: Callable[[Checkpoint], None] | None = None
    resume: Checkpoint | None = None
    evaluation: AppEvaluation | None = None


@dataclass(slots=True)
class _Evaluation:
    """The answers to the evaluate messages of one round."""

    awaits: set[int]
    until: float
    asked: int
    replies: list[tuple[float, Metrics]] = field(default_factory=list)


class StockDriver:
    """Runs one run with stock clients."""

    def __init__(self, grid: Grid, job: StockJob, clock: Callable[[], float], log: Logger) -> None:
        self._grid, self._job, self._clock, self._log = grid, job, clock, log
        first = {name: array.numpy() for name, array in job.arrays.items()}
        self._layout = Layout.of(first)
        self._text = self._layout.text()
        self._optimizer = ServerOptimizer(job.config, self._layout.parameters)
        self._model = self._layout.vector(first)
        state = self._restored(job.resume) if job.resume else None
        self._machine = StockRounds(job.config, clock(), state)
        self._models: dict[int, Vector] = {self._machine.version: self._model}
        self._rule = job.config.new_rule()
        self._updates = 0  # that the rule has taken in this round
        self._left_out = LeftOut(log)
        self._out: dict[str, tuple[str, int, int]] = {}  # message id -> kind, node, round
        self._answers: dict[int, Vector] = {}
        self._down: dict[str, int] = {}
        self._train_metrics: list[tuple[float, Metrics]] = []
        self._evaluations: dict[int, _Evaluation] = {}
        self._scoreless: set[int] = set()  # nodes whose ClientApp has no evaluate function
        self._looked = self._shown = -NODES_S
        self._began = clock()
        self._warned: set[str] = set()
        self._warn_once = WarnOnce(log)
        self.result: Final = Result()

    def _restored(self, checkpoint: Checkpoint) -> StockState:
        try:
            state: StockState = typed.read(StockState, typed.loads(checkpoint.state.encode()), {})
        except BadMessage as error:
            raise BadSetting(
                f"setting resume: needed a checkpoint of a run with stock clients ({error})"
            ) from error
        checkpoint.must_fit(self._layout.shapes)
        self._model = checkpoint.model
        self._optimizer.restore(checkpoint.optimizer)
        return state

    # ---- the loop

    def drive(self) -> Finished:
        """Run to the end, and wait for the last evaluation."""
        if self._job.resume is None:
            self._evaluate(0)
            self._machine.carried_out(self._clock())
        while self._machine.finished is None:
            try:
                self._turn()
            except _GridFailed as error:
                self._machine.stop(str(error))
                return self._over()
            time.sleep(POLL_S)
        self._collect_evaluations()
        self.result.arrays = self._record(self._optimizer.average(self._model))
        if self._job.evaluation is not None:
            self.result.evaluate_metrics_serverapp.update(self._job.evaluation.records)
        self._show(self._clock(), force=True)
        return self._over()

    def _over(self) -> Finished:
        finished = self._machine.finished or Finished("it has not begun", complete=False)
        return finished if self._job.resume else self._left_out.ended(finished)

    def _turn(self) -> None:
        now = self._clock()
        if now >= self._looked + NODES_S:
            self._looked = now
            with _grid_call():
                nodes = sorted(self._grid.get_node_ids())
            self._do(self._machine.nodes_seen(now, nodes))
            self._await_only(nodes)
        self._pull()
        self._do(self._machine.tick(self._clock()))
        self._show(now)

    def _collect_evaluations(self) -> None:
        end = self._clock() + self._job.config.start_timeout_s
        with suppress(_GridFailed):  # the run is over, and has its model
            while self._evaluations and self._clock() < end:
                self._turn()
                time.sleep(POLL_S)
        for round_ in sorted(self._evaluations):
            self._report(round_)

    def _do(self, outputs: tuple[Output, ...]) -> None:
        asks = [each for each in outputs if isinstance(each, Ask)]
        for output in outputs:
            match output:
                case Aggregate(node, version, weight):
                    rule = f"aggregation.rule {self._job.config.chosen_rule}"
                    with guarded(rule, f"the update of node {node}", ExtensionFailed):
                        self._rule.begin(self._models[version], self._layout.shapes)
                        self._rule.add(str(node), weight, self._models[version] - self._answers.pop(node))
                    self._updates += 1
                case Closed():
                    self._close(output)
                case Finished() | Ask():
                    pass
        if asks:
            self._send("train", [ask.node for ask in asks], asks[0].round)
        if asks or any(isinstance(each, Closed) for each in outputs):
            self._machine.carried_out(self._clock())
        self._models = {v: m for v, m in self._models.items() if v in self._machine.versions}

    # ---- sending

    def _send(self, kind: str, nodes: list[int], round_: int) -> None:
        train = kind == "train"
        config = ConfigRecord(dict(self._job.train_config if train else self._job.evaluate_config))
        config["server-round"] = round_
        record = RecordDict({"arrays": self._record(self._model), "config": config})
        type_ = MessageType.TRAIN if train else MessageType.EVALUATE
        messages = [Message(content=record, message_type=type_, dst_node_id=node) for node in nodes]
        with _grid_call():
            pushed = list(self._grid.push_messages(messages)) or [""] * len(nodes)
        size = sum(len(array.data) for array in record.array_records["arrays"].values())
        for node, message in zip(nodes, pushed, strict=True):
            self._down[name_of(node)] = self._down.get(name_of(node), 0) + size
            if message:
                self._out[message] = kind, node, round_
            else:
                self._failed(kind, node, round_, "the SuperLink did not take the message")

    def _record(self, vector: Vector) -> ArrayRecord:
        return ArrayRecord({name: Array(array) for name, array in self._layout.arrays(vector).items()})

    # ---- replies

    def _pull(self) -> None:
        if not self._out:
            return
        with _grid_call():
            replies = list(self._grid.pull_messages(list(self._out)))
        for reply in replies:
            about = self._out.pop(reply.metadata.reply_to_message_id, None)
            if about is None:
                continue
            if reply.has_error():
                kind, reason = raised_in(reply.error.reason or "")
                if about[0] == "evaluate" and NO_EVALUATE in reason:
                    self._ask_no_more(about[1], about[2])
                    continue
                hint = next((text for seen, text in HINTS if seen in reason), "")
                said = f"raised {kind}: " if kind else f"failed with code {reply.error.code}, "
                self._failed(*about, f"its ClientApp {said}{printable(reason)}{hint}")
            elif about[0] == "train":
                self._trained(about[1], about[2], reply.content)
            else:
                self._evaluated(about[1], about[2], reply.content)

    def _ask_no_more(self, node: int, round_: int) -> None:
        """Let a node evaluate no more, as its ClientApp has no function for it."""
        self._scoreless.add(node)
        if round_ in self._evaluations:
            self._evaluations[round_].asked -= 1
        self._count(round_, node)

    def _failed(self, kind: str, node: int, round_: int, reason: str) -> None:
        if f"{kind} {reason}" not in self._warned:
            self._warned.add(f"{kind} {reason}")
            text = "round %d: %s: the %s message failed: %s"
            self._log.log(WARNING, text, round_, name_of(node), kind, reason)
        if kind == "train":
            self._do(self._machine.failed(self._clock(), node, round_, reason))
        else:
            self._count(round_, node)

    def _trained(self, node: int, round_: int, content: RecordDict) -> None:
        try:
            with guarded("a reply", name_of(node)):
                trained, metrics = self._read(node, content)
                self._note_left_out(round_, content)
        except Refused as error:
            self._failed("train", node, round_, words_of(error))
            return
        outputs = self._machine.answered(self._clock(), node, round_, trained)
        if outputs:  # else the run is over, or its node was lost
            self._train_metrics.append((trained.examples, metrics))
        self._do(outputs)
        self._answers.pop(node, None)  # if unused

    def _read(self, node: int, content: RecordDict) -> tuple[Trained, Metrics]:
        """Keep the model in a reply; return the rest."""
        arrays = only(content.array_records, "arrays")
        examples, metrics = metrics_of(content)
        try:
            self._answers[node] = self._layout.vector({name: each.numpy() for name, each in arrays.items()})
        except (ValueError, TypeError) as error:
            raise BadVector(str(error)) from error
        loss = next((metrics[name] for name in LOSSES if name in metrics), None)
        return Trained(examples, loss, sum(len(each.data) for each in arrays.values())), metrics

    def _evaluated(self, node: int, round_: int, content: RecordDict) -> None:
        try:
            with guarded("a reply", name_of(node)):
                reply = metrics_of(content)
                self._note_left_out(round_, content)
        except Refused as error:
            self._failed("evaluate", node, round_, words_of(error))
            return
        if round_ in self._evaluations:
            self._evaluations[round_].replies.append(reply)
        self._count(round_, node)

    def _note_left_out(self, round_: int, content: RecordDict) -> None:
        """Warn of metrics that `metrics_of` leaves out; Flower's own strategies take the mean of all."""
        for about, text in left_out(content):
            self._warn_once(about, round_, text)

    def _count(self, round_: int, node: int) -> None:
        """Count one evaluate reply; report the metrics once all are here."""
        evaluation = self._evaluations.get(round_)
        if evaluation is None:
            return
        evaluation.awaits.discard(node)
        if not evaluation.awaits:
            self._report(round_)

    def _await_only(self, nodes: list[int]) -> None:
        """Wait for no evaluate reply of other nodes, or for longer than a round lasts."""
        now = self._clock()
        for round_, evaluation in sorted(self._evaluations.items()):
            evaluation.awaits &= set(nodes)
            if not evaluation.awaits or now >= evaluation.until:
                self._report(round_)

    def _report(self, round_: int) -> None:
        """Report the metrics of the evaluate replies that are here."""
        evaluation = self._evaluations.pop(round_)
        answers, asked = len(evaluation.replies), evaluation.asked
        metrics = self._mean(round_, evaluation.replies)
        figures = " ".join(f"{name}={value:.4g}" for name, value in metrics.items()) or "no figures"
        level = INFO if answers == asked else WARNING
        if asked:
            self._log.log(level, "round %d evaluated: %s answers=%d/%d", round_, figures, answers, asked)
        if answers:
            self.result.evaluate_metrics_clientapp[round_] = MetricRecord(dict(metrics))
        if metrics:
            self._job.sink.evaluated(round_, metrics)

    def _mean(self, round_: int, replies: list[tuple[float, Metrics]]) -> Metrics:
        """Return the mean of the metrics that all replies have, and warn of others."""
        if text := in_some(replies):
            self._warn_once(text, round_, text)
        return mean_of(replies)

    # ---- a round's end

    def _close(self, closed: Closed) -> None:
        row, round_ = self._filled(closed.row), closed.row.round
        if closed.weight > 0:
            try:
                name, size = self._job.config.chosen_rule, self._model.size
                update = result_of(self._rule, name, round_, size, self._updates)
                if update is not None:
                    self._model = self._optimizer.apply(self._model, update)
            except Refused as error:
                self._left_out.note(round_, error)
            self._models[closed.version] = self._model
            mean = self._mean(round_, self._train_metrics)
            self.result.train_metrics_clientapp[round_] = MetricRecord(dict(mean))
        self._rule.clear()
        self._updates = 0
        self._train_metrics = []
        row = self._left_out.row(row)
        self._log.log(INFO, "%s", line_of(row))
        self._name_alike(row)
        self._job.sink.append(row)
        is_evaluated = self._job.config.evaluates_after(round_) and closed.weight > 0
        if is_evaluated:
            self._evaluate(round_)
        self._keep(closed)
        free = {*self._machine.free} - self._scoreless  # a straggler would evaluate before it trains again
        if is_evaluated and free:
            until = self._clock() + max(LEAST_DEADLINE_S, self._machine.limit_s)
            self._evaluations[round_] = _Evaluation(free, until, len(free))
            self._send("evaluate", sorted(free), round_)

    def _name_alike(self, row: RoundRow) -> None:
        """Say how many clients failed in a way of which the log names the first one."""
        failures = Counter(each.failure for each in row.clients if f"train {each.failure}" in self._warned)
        for reason, count in failures.items():
            if count > 1:
                text = f"{count} clients failed alike: {reason}"
                self._warn_once(text, row.round, text)

    def _evaluate(self, round_: int) -> None:
        """Evaluate the present model on the server, if the app does."""
        if self._job.evaluation is None:
            return
        try:
            metrics = self._job.evaluation(round_, self._record(self._optimizer.average(self._model)))
        except TaskFailed as error:
            self._log.log(WARNING, "round %d: %s", round_, error)
            return
        if metrics:
            self._job.sink.evaluated(round_, metrics)

    def _keep(self, closed: Closed) -> None:
        if self._job.save is None or not closed.weight > 0:
            return
        state = typed.dumps(typed.write(replace(self._machine.state(), round=closed.row.round + 1))).decode()
        made = Checkpoint(
            closed.row.round,
            closed.version,
            self._model,
            self._optimizer.state(),
            state,
            self._text,
            shapes=self._layout.shapes,
        )
        try:
            self._job.save(made)
        except FedgcError as error:
            self._log.log(WARNING, "round %d: %s", closed.row.round, error)

    def _filled(self, row: RoundRow) -> RoundRow:
        clients = tuple(replace(each, down_bytes=self._down.get(each.client, 0)) for each in row.clients)
        self._down = {}
        return replace(row, clients=clients)

    # ---- live view

    def _show(self, now: float, *, force: bool = False) -> None:
        if now - self._shown < PRESENT_S and not force:
            return
        self._shown = now
        answered, asked = self._machine.progress
        live = Live(
            round=min(self._machine.number, self._job.config.rounds),
            rounds=self._job.config.rounds,
            version=self._machine.version,
            phase="over" if self._machine.finished else "working" if asked else "gathering",
            elapsed_s=now - self._began,
            covered=answered,
            chunks=asked,
            replicas=0,
            unit="clients",
            clients=tuple(
                LiveClient(
                    name_of(node), name_of(node), True, 0, "messages", awaited=node in self._machine.awaited
                )
                for node in self._machine.present
            ),
            since=self._machine.since,
            needed=self._machine.needed,
        )
        self._job.sink.present(live)


class _GridFailed(EdgeFailed):
    """Flower's grid raised an error: the run was stopped, or the SuperLink is lost."""


@contextmanager
def _grid_call() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Flower may raise anything
        raise _GridFailed(f"Flower's grid: {words_of(error)}") from error


def line_of(row: RoundRow) -> str:
    """Return the log line of a round."""
    late = sum(each.failure.startswith("late") for each in row.clients)
    up = sum(each.up_bytes for each in row.clients)
    down = sum(each.down_bytes for each in row.clients)
    loss = "-" if row.loss is None else f"{row.loss:.4g}"
    return (
        f"round {row.round} {row.outcome} version={row.version} loss={loss}"
        f" answers={row.covered}/{row.chunks}"
        f" late={late} working_s={row.working_s:.3f} up={up} down={down} samples={row.samples}"
    )
