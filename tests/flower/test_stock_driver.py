"""Test the driver of stock clients on a simulated grid: its messages and the use of answers."""

import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedgc.errors import LONGEST_LINE, BadSetting, BadVector
from fedgc.flower.evaluate_fn import AppEvaluation
from fedgc.flower.stock_driver import StockDriver, StockJob
from fedgc.flower.stock_layout import Layout
from fedgc.messages import MOST_FIGURES
from fedgc.store.checkpoint import Checkpoint
from tests.config_of import config_of
from tests.flower.test_driver import Kept

LOG = logging.getLogger("test")

FIRST = [np.array([1.0, 2.0]), np.array([4])]  # floating numbers and a counter
Client = Callable[[int, Message], RecordDict | None]


def simulated(kind: str, text: str) -> str:
    """Return the reason of an error in Flower's simulation runtime, with the text of Ray."""
    actor = "ray::ClientAppActor.run() (pid=1, ip=192.0.2.2, actor_id=1ced0b1b0cb0e22457f71b3001000000)"
    return f"""<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'{actor}
  File "/app/quick/client_app.py", line 22, in train
    raise
{kind}: {text}

The above exception was the direct cause of the following exception:

{actor}
    raise ClientAppException(str(ex)) from ex
flwr.clientapp.client_app.ClientAppException:\x20
Exception ClientAppException occurred. Message: {text}'>"""


@pytest.fixture(autouse=True)
def task(monkeypatch) -> None:
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class PlayedGrid:
    """A grid that answers at once with the result of `client`: None is error 2, an exception ends it."""

    def __init__(self, client: Client, nodes: int = 2) -> None:
        self.client, self.nodes = client, list(range(1, nodes + 1))
        self.reason = "it raised\nat length"
        self.sent: list[Message] = []
        self.replies: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def push_messages(self, messages) -> list[str]:
        ids = []
        for message in messages:
            ids.append(f"m{len(self.sent)}")
            self.sent.append(message)
            message.metadata.__dict__["_message_id"] = ids[-1]
            content = self.client(message.metadata.dst_node_id, message)
            error = Error(code=2, reason=self.reason)
            said = {"content": content} if content is not None else {"error": error}
            self.replies[ids[-1]] = Message(**said, reply_to=message)
        return ids

    def pull_messages(self, ids) -> list[Message]:
        return [self.replies.pop(each) for each in ids if each in self.replies]


def adds(step: float, examples: float = 10.0) -> Client:
    """A client that adds `step` times its node's number to every array."""

    def client(node: int, message: Message) -> RecordDict:
        metrics = MetricRecord({"num-examples": examples * node, "loss": float(node)})
        if message.metadata.message_type == "evaluate":
            return RecordDict({"metrics": metrics})
        arrays = [each + step * node for each in message.content["arrays"].to_numpy_ndarrays()]
        return RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})

    return client


def run(client: Client, resume: Checkpoint | None = None, **settings):
    config = config_of({"work": "coded", "rounds": 2, "min_clients": 2, "client_app": "stock", **settings})
    grid, sink, saved = PlayedGrid(client), Kept(), []
    job = StockJob(
        config, sink, ArrayRecord(FIRST), ConfigRecord({"lr": 0.5}), ConfigRecord(), saved.append, resume
    )
    driver = StockDriver(grid, job, time.monotonic, logging.getLogger("test"))
    return driver, driver.drive(), grid, sink, saved


def test_round_reports_example_weighted_mean() -> None:
    driver, over, _, sink, _ = run(adds(3.0))
    assert over.complete
    mean = 3.0 * (1 * 1 + 2 * 2) / 3
    weights, counter = driver.result.arrays.to_numpy_ndarrays()
    np.testing.assert_allclose(weights, FIRST[0] + 2 * mean, rtol=1e-6)
    assert weights.dtype == np.float64
    assert counter.dtype == FIRST[1].dtype
    assert counter == FIRST[1] + 2 * mean
    assert [row.outcome for row in sink.rows] == ["synced", "synced"]
    assert sink.rows[0].loss == pytest.approx(5 / 3)
    assert sink.metrics == {1: {"loss": pytest.approx(5 / 3)}, 2: {"loss": pytest.approx(5 / 3)}}
    assert all(row.up_bytes and row.down_bytes for row in sink.rows[0].clients)
    assert sink.phases[-1] == "over"


def test_names_of_metrics_can_be_shown() -> None:
    def client(node: int, message: Message) -> RecordDict:
        answer = adds(1.0)(node, message)
        answer["metrics"]["\x1b[2Jacc\nuracy"] = 0.5
        answer["metrics"].update({f"f{number}": 0.5 for number in range(100)})
        return answer

    _, _, _, sink, _ = run(client, evaluate_every=1)
    assert sink.metrics[1]["[2Jacc uracy"] == 0.5
    assert len(sink.metrics[1]) == MOST_FIGURES


def test_lists_as_metrics_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Flower's own strategies take their mean, so an app that moves would miss them."""

    def client(node: int, message: Message) -> RecordDict:
        answer = adds(1.0)(node, message)
        answer["metrics"].update({"per-class": [0.5, 1.0], "a": [1]})
        return answer

    driver, *_ = run(client, evaluate_every=1)
    said = [each for each in caplog.messages if "lists" in each]
    assert said == ["round 1: saw lists as metrics (a, per-class), needed single numbers: they are left out"]
    assert dict(driver.result.train_metrics_clientapp[1]) == {"loss": pytest.approx(5 / 3)}


def test_metrics_of_some_clients_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Flower's own strategies refuse to aggregate such replies."""

    def client(node: int, message: Message) -> RecordDict:
        answer = adds(1.0)(node, message)
        if node == 1:
            answer["metrics"]["extra"] = 0.5
        return answer

    driver, *_ = run(client, evaluate_every=1)
    said = [each for each in caplog.messages if "left out" in each]
    text = "saw metrics that not all replies have (extra), needed the same of each: they are left out"
    assert said == [f"round 1: {text}"]
    assert dict(driver.result.train_metrics_clientapp[1]) == {"loss": pytest.approx(5 / 3)}


class Ordered(Kept):
    """A sink that refuses, as the store does, figures of a round that it does not know."""

    def evaluated(self, round_, metrics) -> None:
        assert round_ in {0, *(row.round for row in self.rows)}
        super().evaluated(round_, metrics)


@pytest.mark.parametrize(("every", "rounds"), [(1, [0, 1, 2, 3]), (2, [0, 2, 3]), (0, [0])])
def test_figures_of_server_follow_their_round(every: int, rounds: list[int]) -> None:
    config = config_of(
        {"work": "coded", "rounds": 3, "min_clients": 2, "client_app": "stock", "evaluate_every": every}
    )
    job = StockJob(
        config, Ordered(), ArrayRecord(FIRST), ConfigRecord(), ConfigRecord(),
        evaluation=AppEvaluation(lambda number, _: MetricRecord({"number": number}), LOG),
    )  # fmt: skip
    driver = StockDriver(PlayedGrid(adds(1.0)), job, time.monotonic, logging.getLogger("test"))
    assert driver.drive().complete
    assert {number: each["number"] for number, each in driver.result.evaluate_metrics_serverapp.items()} == {
        each: each for each in rounds
    }


def test_result_has_every_round_that_clients_evaluated() -> None:
    def client(node: int, message: Message) -> RecordDict:
        answer = adds(1.0)(node, message)
        del answer["metrics"]["loss"]
        return answer

    result = run(client, evaluate_every=1)[0].result
    for found in (result.train_metrics_clientapp, result.evaluate_metrics_clientapp):
        assert {round_: dict(each) for round_, each in found.items()} == {1: {}, 2: {}}


def test_result_holds_all_that_evaluate_fn_returned() -> None:
    figures = {"n": 1, "per-class": [0.5, 1.0]}
    config, sink = config_of({"rounds": 1, "client_app": "stock"}), Kept()
    job = StockJob(
        config, sink, ArrayRecord(FIRST), ConfigRecord(), ConfigRecord(),
        evaluation=AppEvaluation(lambda number, _: MetricRecord(figures) if number else None, LOG),
    )  # fmt: skip
    driver = StockDriver(PlayedGrid(adds(1.0)), job, time.monotonic, logging.getLogger("test"))
    assert driver.drive().complete
    assert {round_: dict(each) for round_, each in driver.result.evaluate_metrics_serverapp.items()} == {
        1: figures
    }
    assert type(driver.result.evaluate_metrics_serverapp[1]["n"]) is int


class Clock:
    """A clock that goes on by a step each time it is read."""

    now, step = 0.0, 0.1

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Listed(Kept):
    """A sink that keeps the order of rows and figures."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def append(self, row) -> None:
        self.order.append(f"row {row.round}")

    def evaluated(self, round_, metrics) -> None:
        self.order.append(f"figures {round_}")
        super().evaluated(round_, metrics)


class SlowGrid(PlayedGrid):
    """Node N answers N seconds after it is asked, one message after the other; others take their time."""

    def __init__(self, client: Client, clock: Clock, nodes: int = 2, **seconds: float) -> None:
        super().__init__(client, nodes)
        self.clock, self.due, self.free = clock, {}, dict.fromkeys(self.nodes, 0.0)
        self.seconds = seconds  # of the last node, by the kind of message

    def push_messages(self, messages) -> list[str]:
        ids = super().push_messages(messages)
        for message, each in zip(messages, ids, strict=True):
            node = message.metadata.dst_node_id
            seconds = self.seconds if node == self.nodes[-1] else {}
            takes_s = seconds.get(message.metadata.message_type, node)
            self.free[node] = self.due[each] = max(self.free[node], self.clock.now) + takes_s
        return ids

    def pull_messages(self, ids) -> list[Message]:
        return super().pull_messages([each for each in ids if self.due[each] <= self.clock.now])


def test_evaluation_of_server_takes_no_time_of_next_round() -> None:
    config = config_of({"work": "coded", "rounds": 3, "client_app": "stock", "deadline_s": 5.0})
    clock, sink = Clock(), Kept()

    def evaluate(number: int, _: ArrayRecord) -> MetricRecord:
        clock.now += 60.0
        return MetricRecord({"number": number})

    job = StockJob(
        config, sink, ArrayRecord(FIRST), ConfigRecord(), ConfigRecord(),
        evaluation=AppEvaluation(evaluate, LOG),
    )  # fmt: skip
    assert StockDriver(SlowGrid(adds(1.0), clock), job, clock, logging.getLogger("test")).drive().complete
    assert [row.covered for row in sink.rows] == [2, 2, 2]
    assert max(row.working_s for row in sink.rows) < 5.0


@pytest.mark.parametrize(("seconds", "asked"), [({"train": 999.0}, 0), ({"evaluate": 999.0}, 1)])
def test_straggler_delays_no_figures(seconds: dict[str, float], asked: int) -> None:
    config = config_of({"work": "coded", "rounds": 7, "client_app": "stock", "deadline_s": 5.0})
    clock, sink = Clock(), Listed()
    clock.step = 0.3
    grid = SlowGrid(adds(1.0), clock, 3, **seconds)
    job = StockJob(config, sink, ArrayRecord(FIRST), ConfigRecord(), ConfigRecord())
    assert StockDriver(grid, job, clock, logging.getLogger("test")).drive().complete
    assert sink.metrics == {number: {"loss": pytest.approx(5 / 3)} for number in range(1, 8)}
    assert sink.order.index("figures 1") < sink.order.index("row 7")
    kinds = [each.metadata.message_type for each in grid.sent if each.metadata.dst_node_id == 3]
    assert kinds.count("evaluate") == asked


class SilentGrid(PlayedGrid):
    """Node 2 does not answer evaluate messages; if it `leaves`, it does so once it has got one."""

    leaves = False

    def push_messages(self, messages) -> list[str]:
        ids = super().push_messages(messages)
        for message, each in zip(messages, ids, strict=True):
            if (message.metadata.message_type, message.metadata.dst_node_id) == ("evaluate", 2):
                del self.replies[each]
                self.nodes = [1] if self.leaves else self.nodes
        return ids


@pytest.mark.parametrize("leaves", [True, False])
def test_figures_do_not_need_answer_of_every_node(leaves: bool) -> None:
    config = config_of(
        {"work": "coded", "rounds": 3, "min_clients": 2, "client_app": "stock", "start_timeout_s": 20.0}
    )
    grid, sink, now = SilentGrid(adds(1.0)), Listed(), itertools.count()
    grid.leaves = leaves
    job = StockJob(config, sink, ArrayRecord(FIRST), ConfigRecord(), ConfigRecord())
    driver = StockDriver(grid, job, lambda: float(next(now)), logging.getLogger("test"))
    assert driver.drive().complete
    assert sink.metrics == {number: {"loss": 1.0} for number in (1, 2, 3)}
    assert (sink.order.index("figures 1") < sink.order.index("row 3")) is leaves


def test_messages_equal_those_of_fedavg() -> None:
    _, _, grid, _, _ = run(adds(1.0), rounds=1)
    train, evaluate = grid.sent[0], grid.sent[-1]
    assert train.metadata.message_type == "train"
    assert evaluate.metadata.message_type == "evaluate"
    assert dict(train.content["config"]) == {"lr": 0.5, "server-round": 1}
    assert set(train.content) == set(evaluate.content) == {"arrays", "config"}
    for ours, theirs in zip(train.content["arrays"].to_numpy_ndarrays(), FIRST, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def nan(node: int, message: Message) -> RecordDict:
    answer = adds(1.0)(node, message)
    if node == 1 and "arrays" in answer:
        answer["arrays"] = ArrayRecord([np.array([np.nan, 1.0]), np.array([4])])
    return answer


def another_shape(node: int, message: Message) -> RecordDict:
    answer = adds(1.0)(node, message)
    if node == 1 and "arrays" in answer:
        answer["arrays"] = ArrayRecord([np.zeros(3), np.array([4])])
    return answer


def no_archive(node: int, message: Message) -> RecordDict:
    """An array in a format that numpy takes for an archive, which raises an error of its own."""
    answer = adds(1.0)(node, message)
    if node == 1 and "arrays" in answer:
        broken = Array(dtype="float64", shape=(2,), stype="numpy.ndarray", data=b"PK\x03\x04" + bytes(60))
        answer["arrays"] = ArrayRecord(dict.fromkeys(answer["arrays"], broken))
    return answer


def no_examples(node: int, message: Message) -> RecordDict:
    answer = adds(1.0)(node, message)
    if node == 1:
        del answer["metrics"]["num-examples"]
    return answer


def too_many_examples(node: int, message: Message) -> RecordDict:
    return adds(1.0, 1e308 if node == 1 else 10.0)(node, message)


def raises(node: int, message: Message) -> RecordDict | None:
    return None if node == 1 else adds(1.0)(node, message)


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        (nan, "NaN"),
        (another_shape, "needed numbers of (2,)"),
        (no_archive, "a reply (node-1): saw BadZipFile"),
        (no_examples, "num-examples"),
        (too_many_examples, "num-examples: saw 1e+308, needed"),
        (raises, "its ClientApp failed with code 2, it raised"),
    ],
)
def test_invalid_answer_is_left_out_and_others_count(client: Client, reason: str) -> None:
    driver, over, _, sink, _ = run(client, rounds=1)
    assert over.complete
    assert sink.rows[0].outcome == "approximate"
    assert reason in sink.rows[0].clients[0].failure
    np.testing.assert_allclose(driver.result.arrays.to_numpy_ndarrays()[0], FIRST[0] + 2.0)


def test_count_of_clients_that_fail_alike_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The reason is logged for the first of them, so a second one would be known by the answers alone."""
    _, over, _, _, _ = run(lambda *_: None, rounds=2)
    said = [each for each in caplog.messages if "it raised" in each]
    failure = "its ClientApp failed with code 2, it raised at length"
    assert said == [
        f"round 1: node-1: the train message failed: {failure}",
        f"round 1: 2 clients failed alike: {failure}",
    ]
    assert over.reason.startswith(f"node-1 and 1 more: {failure}; ")


def long_array_name(node: int, message: Message) -> RecordDict:
    answer = adds(1.0)(node, message)
    if node == 1 and "arrays" in answer:
        answer["arrays"] = ArrayRecord({"x" * 10**6: Array(np.zeros(2))})
    return answer


def long_metric_name(node: int, message: Message) -> RecordDict:
    answer = adds(1.0)(node, message)
    if node == 1:
        answer["metrics"] = MetricRecord({"x" * 10**6: 1.0})
    return answer


@pytest.mark.parametrize("client", [long_array_name, long_metric_name])
def test_refusal_of_answer_repeats_no_long_name(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    _, over, _, sink, _ = run(client, rounds=1)
    assert over.complete
    assert len(sink.rows[0].clients[0].failure) <= LONGEST_LINE
    told = [each.getMessage() for each in caplog.records if "message failed" in each.getMessage()]
    assert told
    assert max(map(len, told)) < 2 * LONGEST_LINE


def test_figures_with_too_many_examples_are_left_out() -> None:
    _, over, _, sink, _ = run(too_many_examples, rounds=1)
    assert over.complete
    assert sink.metrics == {1: {"loss": 2.0}}


def test_nothing_counts_in_round_whose_update_is_left_out() -> None:
    driver, over, _, sink, _ = run(adds(1.0), rounds=1, aggregator="krum", aggregator_options="f=1")
    assert not over.complete
    assert over.reason.startswith("aggregator krum: saw 2 updates")
    assert over.reason.endswith("; 1 round done, and every update was left out")
    assert (sink.rows[0].outcome, sink.rows[0].counted_samples) == ("approximate", 0)
    assert "the mean update is left out: aggregator krum: saw 2 updates" in sink.rows[0].reason
    np.testing.assert_array_equal(driver.result.arrays.to_numpy_ndarrays()[0], FIRST[0])


def test_resumed_run_equals_uninterrupted_run() -> None:
    momentum = {"server_momentum": 0.9, "evaluate_every": 0}
    whole, _, _, _, _ = run(adds(1.0), rounds=3, **momentum)
    _, _, _, _, saved = run(adds(1.0), rounds=1, **momentum)
    second, over, _, sink, _ = run(adds(1.0), saved[-1], rounds=3, **momentum)
    assert over.complete
    assert [row.round for row in sink.rows] == [2, 3]
    for ours, theirs in zip(
        second.result.arrays.to_numpy_ndarrays(), whole.result.arrays.to_numpy_ndarrays(), strict=True
    ):
        np.testing.assert_allclose(ours, theirs)


def test_checkpoint_holds_names_and_types_of_arrays() -> None:
    driver, _, _, _, saved = run(adds(1.0), rounds=1)
    read = Layout.read(saved[-1].layout).arrays(saved[-1].model)
    for (name, ours), theirs in zip(read.items(), driver.result.arrays.items(), strict=True):
        assert (name, ours.dtype, ours.tolist()) == (
            theirs[0],
            theirs[1].numpy().dtype,
            theirs[1].numpy().tolist(),
        )


def test_checkpoint_of_other_run_kind_or_model_is_refused() -> None:
    _, _, _, _, saved = run(adds(1.0), rounds=1)
    made = saved[-1]
    assert [shape for _, shape in made.shapes] == [each.shape for each in FIRST]
    for off, reason in (
        (Checkpoint(1, 1, made.model, made.optimizer, '["other"]'), "stock clients"),
        (Checkpoint(1, 1, made.model[:-1], made.optimizer, made.state), "numbers"),
        (replace(made, shapes=made.shapes[::-1]), r"saw a model with 1 of shape \[1\], needed 0 of shape"),
    ):
        with pytest.raises(BadSetting, match=reason):
            run(adds(1.0), off)


@pytest.mark.parametrize(
    ("reason", "said", "hint"),
    [
        (
            "<class 'KeyError'>:<'fitins.parameters'>",
            "raised KeyError: fitins.parameters",
            "with a client_fn",
        ),
        (
            "<class 'ValueError'>:<\"No train function registered with name 'default'\">",
            "raised ValueError: ",
            "saw none, as in that of fedgc",
        ),
        (
            simulated("ValueError", "No train function registered with name 'default'"),
            "raised ValueError: No train function",
            "saw none, as in that of fedgc",
        ),
        (
            simulated("KeyError", "'proximal-mu'"),
            "raised KeyError: 'proximal-mu'; ",
            "FedProx adds it by itself",
        ),
    ],
)
def test_clientapp_that_does_not_fit_is_named_as_cause(reason: str, said: str, hint: str) -> None:
    grid, sink = PlayedGrid(raises), Kept()
    grid.reason = reason
    config = config_of({"work": "coded", "rounds": 1, "min_clients": 2})
    job = StockJob(config, sink, ArrayRecord(FIRST), ConfigRecord(), ConfigRecord())
    assert StockDriver(grid, job, time.monotonic, logging.getLogger("test")).drive().complete
    failure = sink.rows[0].clients[0].failure
    assert failure.startswith(f"its ClientApp {said}")
    assert "; needed " in failure
    assert failure.endswith(hint)


NO_EVALUATE = "No evaluate function registered with name 'default'"


@pytest.mark.parametrize(
    "reason", [f"<class 'ValueError'>:<'{NO_EVALUATE}'>", simulated("ValueError", NO_EVALUATE)]
)
def test_client_without_evaluate_function_is_asked_once(
    reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    def trains_alone(node: int, message: Message) -> RecordDict | None:
        return None if message.metadata.message_type == "evaluate" else adds(1.0)(node, message)

    grid, sink = PlayedGrid(trains_alone), Kept()
    grid.reason = reason
    config = config_of({"rounds": 3, "min_clients": 2})
    scored = []

    def evaluate(round_: int, _: ArrayRecord) -> MetricRecord:
        scored.append(round_)
        return MetricRecord({"loss": 1.0 / (1 + round_)})

    job = StockJob(
        config,
        sink,
        ArrayRecord(FIRST),
        ConfigRecord(),
        ConfigRecord(),
        evaluation=AppEvaluation(evaluate, LOG),
    )
    assert StockDriver(grid, job, time.monotonic, logging.getLogger("test")).drive().complete
    asked = [each.metadata.dst_node_id for each in grid.sent if each.metadata.message_type == "evaluate"]
    assert sorted(asked) == [1, 2]
    assert "evaluated" not in caplog.text
    assert scored == [0, 1, 2, 3]
    assert not any(client.failure for row in sink.rows for client in row.clients)


def test_rounds_say_how_many_clients_evaluated(caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged once, and a client that fails each time is not missed."""

    def client(node: int, message: Message) -> RecordDict | None:
        fails = node == 1 and message.metadata.message_type == "evaluate"
        return None if fails else adds(1.0)(node, message)

    run(client, evaluate_every=1)
    said = [
        (each.levelname, each.getMessage()) for each in caplog.records if "evaluated" in each.getMessage()
    ]
    assert said == [("WARNING", f"round {n} evaluated: loss=2 answers=1/2") for n in (1, 2)]


class StoppedGrid(PlayedGrid):
    def push_messages(self, messages) -> list[str]:
        raise RuntimeError("the run was stopped")


def test_unreachable_grid_ends_run() -> None:
    job = StockJob(config_of({"min_clients": 2}), Kept(), ArrayRecord(FIRST), ConfigRecord(), ConfigRecord())
    over = StockDriver(StoppedGrid(adds(1.0)), job, time.monotonic, logging.getLogger("test")).drive()
    assert not over.complete
    assert over.reason == "Flower's grid: RuntimeError: the run was stopped"


class LostGrid(PlayedGrid):
    """A grid that is lost once it has taken evaluate messages."""

    def pull_messages(self, ids) -> list[Message]:
        if self.sent[-1].metadata.message_type == "evaluate":
            raise ConnectionError("the SuperLink is gone")
        return super().pull_messages(ids)


def test_run_is_complete_without_figures_of_last_model() -> None:
    config = config_of({"work": "coded", "rounds": 1, "min_clients": 2})
    job = StockJob(config, Kept(), ArrayRecord(FIRST), ConfigRecord(), ConfigRecord())
    driver = StockDriver(LostGrid(adds(1.0)), job, time.monotonic, logging.getLogger("test"))
    assert driver.drive().complete
    assert driver.result.arrays


class FullDisk(Kept):
    def append(self, row) -> None:
        raise OSError("no space left")


def test_error_of_sink_is_not_called_one_of_grid() -> None:
    config = config_of({"work": "coded", "min_clients": 2})
    job = StockJob(config, FullDisk(), ArrayRecord(FIRST), ConfigRecord(), ConfigRecord())
    with pytest.raises(OSError, match="no space left"):
        StockDriver(PlayedGrid(adds(1.0)), job, time.monotonic, logging.getLogger("test")).drive()


def test_layout_inverts_only_its_own_vectors() -> None:
    arrays = {"n": np.array([3]), "w": np.ones((2, 2), np.float32)}
    layout = Layout.of(arrays)
    for name, array in layout.arrays(layout.vector(arrays)).items():
        np.testing.assert_array_equal(array, arrays[name])
    with pytest.raises(BadVector, match="saw"):
        layout.vector({"w": arrays["w"]})
    with pytest.raises(BadVector, match="real numbers"):
        Layout.of({"c": np.array([1j])})


def test_arrays_of_large_model_that_differ_are_named() -> None:
    first = {f"layer-{number:02}": np.ones(2) for number in range(20)}
    others = {**{f"new-{number}": np.ones(2) for number in range(6)}, **first}
    del others["layer-17"]
    with pytest.raises(BadVector) as raised:
        Layout.of(first).vector(others)
    assert str(raised.value) == (
        "arrays: saw 25 without 'layer-17' with 'new-0', 'new-1', 'new-2', 'new-3' and 2 more, "
        "needed the 20 of the first model"
    )


@pytest.mark.parametrize(
    "array",
    [
        np.array(3),  # the counter of a BatchNorm
        np.array([2**31 - 1, -(2**31)], np.int32),
        np.array([2**40 + 1, 2**63 - 1, -(2**63)]),
        np.array([2**32 - 1], np.uint32),
        np.array([2**64 - 1], np.uint64),
        np.array([True, False]),
        np.array([1 / 3, 1e-50, 1e300]),
        np.array([-np.inf, 0.5], np.float32),
        np.array([65504.0, -np.inf], np.float16),
        np.zeros((0, 3), np.float32),
    ],
)
def test_array_that_no_client_changes_keeps_its_digits(array: np.ndarray) -> None:
    first = {"w": np.ones(2, np.float32), "a": array}

    def client(node: int, message: Message) -> RecordDict:
        metrics = MetricRecord({"num-examples": 10 * node})
        return RecordDict({"arrays": message.content["arrays"], "metrics": metrics})

    config = config_of({"rounds": 2, "min_clients": 2, "client_app": "stock", "evaluate_every": 0})
    arrays = ArrayRecord({name: Array(each) for name, each in first.items()})
    job = StockJob(config, Kept(), arrays, ConfigRecord(), ConfigRecord())
    driver = StockDriver(PlayedGrid(client), job, time.monotonic, logging.getLogger("test"))
    assert driver.drive().complete
    kept = driver.result.arrays["a"].numpy()
    assert kept.dtype == array.dtype
    np.testing.assert_array_equal(kept, array, strict=True)


def test_layout_limits_means_to_range_and_names_arrays() -> None:
    layout = Layout.of({"n": np.array([250], np.uint8), "m": np.array([-np.inf, 0.0], np.float32)})
    assert layout.arrays(np.float32([0, 0, 300]))["n"] == 255
    for changed, says in (([0, 0], "'m': saw a change of -inf"), ([-np.inf, np.nan], "'m': saw NaN")):
        with pytest.raises(BadVector, match=says):
            layout.vector({"n": np.array([1], np.uint8), "m": np.float32(changed)})
    with pytest.raises(BadVector, match="saw none"):
        Layout.of({})
