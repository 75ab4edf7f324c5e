"""Test the figures of clients and the metrics of the initial model in the store."""

import pytest

from fedgc.history import BestModel, Score
from fedgc.store.reading import SCORED_LATELY
from fedgc.store.records import Appended, Begun, Decided, Evaluated, Scored


@pytest.fixture
def begun(store, a_row, a_client):
    store.write(Begun(1.0, "r1", {"task": "digits"}))
    for number in (1, 2, 3):
        store.write(Appended(1.0 + number, "r1", a_row(number, a_client("a"), a_client("b"))))
    return store


def score(round_: int, client: str, value: float, samples: int = 10) -> Scored:
    return Scored(5.0, "r1", round_, client, samples, {"accuracy": value})


def test_scores_are_read_by_round_and_client(begun):
    for each in (score(1, "b", 0.5), score(0, "a", 0.1), score(1, "a", 0.4), score(2, "a", 0.6)):
        begun.write(each)
    assert [(each.round, each.client, each.metrics["accuracy"]) for each in begun.scores("r1")] == [
        (0, "a", 0.1),
        (1, "a", 0.4),
        (1, "b", 0.5),
        (2, "a", 0.6),
    ]


def test_last_scores_hold_newest_of_each_client(begun):
    for each in (score(1, "a", 0.4), score(1, "b", 0.5), score(2, "a", 0.6)):
        begun.write(each)
    assert {each.client: each.round for each in begun.last_scores("r1")} == {"a": 2, "b": 1}


def test_last_scores_leave_out_clients_that_scored_long_ago(begun):
    for each in (score(1, "a", 0.4), score(1 + SCORED_LATELY, "b", 0.5)):
        begun.write(each)
    assert [each.client for each in begun.last_scores("r1")] == ["b"]


def test_repeated_score_replaces_first(begun):
    begun.write(score(1, "a", 0.4))
    begun.write(score(1, "a", 0.7, samples=12))
    assert begun.scores("r1") == (Score(1, "a", 12, {"accuracy": 0.7}),)


def test_score_of_unknown_client_makes_client(begun):
    begun.write(score(1, "new", 0.4))
    assert "new" in {each.client for each in begun.clients()}


def test_repeated_round_drops_its_old_scores(begun, a_row, a_client):
    begun.write(score(3, "a", 0.9))
    begun.write(Appended(9.0, "r1", a_row(3, a_client("a"))))
    assert begun.scores("r1") == ()


def test_metrics_of_initial_model_are_kept_and_joined(begun):
    begun.write(Evaluated(2.0, "r1", 0, {"accuracy": 0.1}))
    begun.write(Evaluated(2.0, "r1", 0, {"loss": 2.3}))
    assert begun.run("r1").initial_metrics == {"accuracy": 0.1, "loss": 2.3}


def test_newest_best_model_is_returned(begun):
    for version, value in ((1, 0.5), (3, 0.75)):
        basis = {"figure": "accuracy", "version": version, "round": version, "value": value}
        begun.write(Decided(2.0, "r1", version, "best", basis))
    begun.write(Decided(2.0, "r1", 3, "plan", {"replicas": 2}))
    assert begun.best("r1") == BestModel("accuracy", 3, 3, 0.75)
    assert [each.what for each in begun.decisions("r1", what="plan")] == ["plan"]


def test_new_score_changes_pulse(begun):
    before = begun.pulse("r1")
    begun.write(score(3, "a", 0.4))
    assert begun.pulse("r1") != before


def test_fold_drops_old_scores_and_keeps_last(begun):
    for number in (1, 2, 3):
        begun.write(score(number, "a", 0.1 * number))
    begun.fold(keep_rounds=1)
    assert [each.round for each in begun.scores("r1")] == [3]
