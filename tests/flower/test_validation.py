"""Test the figures of models: means, the best model, early stopping, and figures that nobody reports."""

import json
import logging

import numpy as np
import pytest

from fedgc.errors import Refused
from fedgc.flower.sink import Sink
from fedgc.flower.validation import LEAST_WAIT_S, MOST_SCORES, Validation
from fedgc.history import BestModel
from fedgc.messages import MOST_FIGURES, Scored
from fedgc.store.checkpoint import Checkpoint
from tests.config_of import config_of

ALL = ("a", "b")


class Kept(Sink):
    def __init__(self) -> None:
        self.scores: list[tuple[int, str, int, dict[str, float]]] = []
        self.means: dict[int, dict[str, float]] = {}
        self.bests: list[BestModel] = []

    def scored(self, round_, client, samples, metrics) -> None:
        self.scores.append((round_, client, samples, dict(metrics)))

    def evaluated(self, round_, metrics) -> None:
        self.means[round_] = dict(metrics)

    def improved(self, best) -> None:
        self.bests.append(best)


class Run:
    """A validation with two clients, told of models and figures by the test."""

    def __init__(self, **settings: object) -> None:
        self.sink, self.pinned = Kept(), []
        log = logging.getLogger("test")
        self.judged: dict[int, float] = {}
        self.validation = Validation(
            config_of(settings),
            self.sink,
            log,
            self.pinned.append,
            judge=lambda version, figures, _: self.judged.update({version: figures.get("accuracy")}),
        )
        self.validation.begin(0, 0, checkpoint(0))

    def make(self, version: int, *values: float) -> None:
        self.validation.made(version, version, checkpoint(version))
        self.score(version, *values)

    def score(self, version: int, *values: float, present=ALL) -> None:
        for client, value in zip(ALL, values, strict=False):
            figures = (("accuracy", value),)
            self.validation.scored(Scored(1.0, client, version, 10, figures), client, present)


def checkpoint(version: int) -> Checkpoint:
    return Checkpoint(version, version, np.zeros(2, np.float32), b"", json.dumps({}))


def test_mean_is_weighted_by_samples() -> None:
    run = Run()
    for client, samples, value in (("a", 10, 0.5), ("b", 30, 0.9)):
        event = Scored(1.0, client, 0, samples, (("accuracy", value),))
        run.validation.scored(event, client, ALL)
    assert run.sink.means == {0: {"accuracy": pytest.approx(0.8)}}
    assert run.sink.scores == [(0, "a", 10, {"accuracy": 0.5}), (0, "b", 30, {"accuracy": 0.9})]


def test_one_client_does_not_decide_mean_by_its_samples() -> None:
    run = Run()
    clients = {"a": 10, "b": 10, "liar": 10**15}
    for client, samples in clients.items():
        event = Scored(1.0, client, 0, samples, (("accuracy", 0.9 if client == "liar" else 0.5),))
        run.validation.scored(event, client, clients)
    run.make(1)
    assert run.sink.means[0] == {"accuracy": pytest.approx(0.7)}


def test_model_is_evaluated_every_few_rounds() -> None:
    run = Run(evaluate_every=3)
    assert not any(run.validation.is_evaluated(version, version + 1) for version in range(9))
    run.validation.evaluating(4)
    assert [round_ for round_ in range(9) if run.validation.is_evaluated(round_ - 1, round_)] == [4]
    run.score(0, 0.5, 0.5)
    assert [version for version in range(9) if run.validation.is_evaluated(version, 0)] == [0, 3, 6]


def test_client_cannot_name_new_figures_without_limit() -> None:
    run = Run()
    for version in range(4):
        run.validation.made(version, version, checkpoint(version))
        figures = tuple((f"f{version}-{number}", 0.5) for number in range(40))
        for client, given in (("a", figures), ("b", (("accuracy", 0.5),))):
            run.validation.scored(Scored(1.0, client, version, 10, given), client, ALL)
    assert len({name for mean in run.sink.means.values() for name in mean} - {"accuracy"}) == MOST_FIGURES
    assert len({name for _, _, _, metrics in run.sink.scores for name in metrics}) == MOST_FIGURES + 1
    assert run.sink.means[3] == {"accuracy": 0.5}


def test_client_that_scores_one_model_too_often_is_refused() -> None:
    """Each score is written to the store and logged: a flood of them delayed rounds, and rows were lost."""
    run = Run()
    for number in range(MOST_SCORES):
        run.validation.scored(Scored(1.0, "a", 0, 10, (("accuracy", number / 10),)), "a", ALL)
    with pytest.raises(Refused, match="saw more than 8 scores of model 0, needed one"):
        run.validation.scored(Scored(1.0, "a", 0, 10, (("accuracy", 0.9),)), "a", ALL)
    assert len(run.sink.scores) == MOST_SCORES
    run.validation.scored(Scored(1.0, "b", 0, 10, (("accuracy", 0.5),)), "b", ALL)
    run.make(1)
    run.validation.scored(Scored(1.0, "a", 1, 10, (("accuracy", 0.9),)), "a", ALL)
    assert [each[:2] for each in run.sink.scores[MOST_SCORES:]] == [(0, "b"), (1, "a")]


def test_mean_waits_for_all_clients() -> None:
    run = Run()
    run.score(0, 0.5)
    assert run.sink.means == {}
    run.make(1)
    assert run.sink.means == {0: {"accuracy": 0.5}}


def test_best_model_is_reported_and_pinned() -> None:
    run = Run(best="accuracy")
    run.score(0, 0.1, 0.1)
    for version, value in ((1, 0.5), (2, 0.4), (3, 0.6)):
        run.make(version, value, value)
    assert [best.version for best in run.sink.bests] == [0, 1, 3]
    assert [each.version for each in run.pinned] == [0, 1, 3]


def test_model_counts_once_without_slow_client() -> None:
    run = Run(best="accuracy", best_patience=3)
    run.score(0, 0.5, 0.5)
    for version in (1, 2, 3, 4):
        run.make(version, 0.4)  # b never answers in time
    assert run.validation.ending is None
    run.make(5)
    assert run.validation.ending is not None


def test_client_that_is_behind_counts_with_its_last_figures() -> None:
    """Else a model that the clients with easy data alone have scored would be the best one."""
    run = Run(best="accuracy", work="local", late_updates="count")
    run.score(0, 0.1, 0.1)
    run.make(1, 0.5, 0.3)
    run.make(2, 0.9)
    run.make(3, 0.8, 0.7)
    run.make(4, 0.75)
    run.make(5)
    run.make(6)
    means = {round_: pytest.approx(mean["accuracy"]) for round_, mean in run.sink.means.items()}
    assert means == {0: 0.1, 1: 0.4, 2: 0.6, 3: 0.75, 4: 0.725}
    assert [best.version for best in run.sink.bests] == [0, 1, 2, 3]
    assert run.judged == means, "so a collapse is seen although some client is always behind"


def test_client_that_is_gone_counts_no_more() -> None:
    run = Run(work="local", late_updates="count")
    run.score(0, 0.1, 0.1)
    run.validation.made(1, 1, checkpoint(1))
    run.score(1, 0.5, present=("a",))
    run.make(2, 0.6)
    run.make(3)
    run.make(4)
    assert run.sink.means[2] == {"accuracy": 0.6}


def test_patience_ends_run_as_complete() -> None:
    run = Run(best="accuracy", best_patience=2)
    run.score(0, 0.1, 0.1)
    for version, value in ((1, 0.5), (2, 0.4)):
        run.make(version, value, value)
        assert run.validation.ending is None
    run.make(3, 0.3, 0.3)
    ending = run.validation.ending
    assert ending is not None
    assert ending.complete
    assert ending.reason == "accuracy has not improved for 2 evaluations; best is version 1, round 1, 0.5"


def test_unknown_figure_ends_run_once_all_have_scored() -> None:
    run = Run(best="f1")
    run.score(0, 0.5)
    assert run.validation.ending is None
    run.score(0, 0.5, 0.6)
    ending = run.validation.ending
    assert ending is not None
    assert not ending.complete
    assert ending.reason == "setting validate.best: needed the figure f1, saw figures accuracy"


def test_unknown_figure_waits_for_evaluation_of_server() -> None:
    run = Run(best="f1")
    run.validation.evaluating(0)
    run.score(0, 0.5, 0.6)
    assert run.validation.ending is None
    run.validation.evaluated(0, {"loss": 1.0})
    ending = run.validation.ending
    assert ending is not None
    assert ending.reason.endswith("saw figures accuracy, loss")


def test_problem_of_validate_is_named_if_no_figure_is_reported() -> None:
    run = Run(best="accuracy")
    for client in ALL:
        problem = Scored(1.0, client, 0, 1, (), "validate() raised KeyError: 'x'")
        run.validation.scored(problem, f"site-{client}", ALL)
    ending = run.validation.ending
    assert ending is not None
    assert ending.reason.endswith("saw figures none (site-a: validate() raised KeyError: 'x')")


def test_figure_of_server_counts_if_no_client_reports_it() -> None:
    run = Run(best="accuracy")
    run.validation.evaluating(0)
    run.validation.evaluated(0, {"accuracy": 0.2})
    run.make(1)
    for version, value in ((1, 0.5), (2, 0.4)):
        run.validation.evaluating(version)
        run.validation.evaluated(version, {"accuracy": value})
        run.make(version + 1)
    assert run.sink.bests == [BestModel("accuracy", 0, 0, 0.2), BestModel("accuracy", 1, 1, 0.5)]


def test_late_evaluation_of_server_still_counts() -> None:
    run = Run(best="accuracy")
    run.validation.evaluating(0)
    for version in range(1, 6):
        run.make(version)
    assert run.validation.ending is None
    run.validation.evaluated(0, {"accuracy": 0.2})
    assert run.sink.bests == [BestModel("accuracy", 0, 0, 0.2)]


def test_figure_of_clients_counts_before_that_of_server() -> None:
    run = Run(best="accuracy")
    run.validation.evaluating(0)
    run.validation.evaluated(0, {"accuracy": 0.9})
    run.score(0, 0.5, 0.5)
    assert run.sink.bests == [BestModel("accuracy", 0, 0, 0.5)]


@pytest.mark.parametrize("server_first", [True, False])
def test_figure_of_clients_is_shown_before_that_of_server(*, server_first: bool) -> None:
    run = Run()
    run.validation.evaluating(0)
    if server_first:
        run.validation.evaluated(0, {"accuracy": 0.9, "loss": 0.3})
    run.score(0, 0.5, 0.7)
    if not server_first:
        run.validation.evaluated(0, {"accuracy": 0.9, "loss": 0.3})
    assert run.sink.means[0] == {"accuracy": pytest.approx(0.6), "loss": 0.3}


def test_evaluation_without_figures_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    run = Run()
    with caplog.at_level(logging.INFO):
        run.validation.evaluating(0)
        run.validation.evaluated(0, {})
    assert (run.validation.of_server, run.sink.means, caplog.messages) == ({}, {}, [])


def test_figures_of_unknown_version_are_ignored() -> None:
    run = Run()
    run.score(10**12, 0.9, 0.9)
    run.score(10**12 + 1, 0.9, 0.9)
    assert (run.sink.scores, run.sink.means) == ([], {})
    run.score(0, 0.5, 0.5)
    assert run.sink.means == {0: {"accuracy": 0.5}}


def test_last_model_lacks_clients_that_scored_before() -> None:
    run = Run()
    run.score(0, 0.5, 0.5)
    run.make(1, 0.5)
    assert run.validation.lacking(ALL) == {"b"}
    assert run.validation.lacking(("a", "c")) == frozenset()


def test_wait_for_last_figures_grows_with_longest_answer() -> None:
    run = Run()
    assert run.validation.wait_s == LEAST_WAIT_S
    run.validation.work_sent("a", 100.0)
    run.validation.scored(Scored(104.0, "a", 0, 10, (("accuracy", 0.5),)), "a", ALL)
    assert run.validation.wait_s == 20.0


def test_figure_of_few_clients_is_not_judged() -> None:
    """A client could else choose by a name of its own which figure the run goes back for."""
    judged: list[dict[str, float]] = []
    validation = Validation(
        config_of({}),
        Sink(),
        logging.getLogger("test"),
        judge=lambda _, found, _source: judged.append(dict(found)),
    )
    validation.begin(0, 0, checkpoint(0))
    clients = ("a", "b", "c", "d")
    for number, client in enumerate(clients):
        own = {"a": [("a_loss", 0.0)], "d": []}.get(client, [("loss", float(number))])
        validation.scored(Scored(1.0, client, 0, 10, tuple(own)), client, clients)
    assert judged == [{"loss": 1.5}]
