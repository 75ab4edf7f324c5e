"""Test the search for the best model of a run, and early stopping."""

import math

import pytest

from fedgc.history import BestModel, KnownBest
from fedgc.run.best_model import BestModelSearch


def entered(search: BestModelSearch, *values: float) -> list[bool]:
    return [search.enter(version, version, value) for version, value in enumerate(values)]


@pytest.mark.parametrize(
    ("figure", "best_is", "best"),
    [
        ("accuracy", "auto", 0.9),
        ("f1", "auto", 0.9),
        ("val_loss", "auto", 0.2),
        ("Perplexity", "auto", 0.2),
        ("test error", "auto", 0.2),
        ("val_mae", "auto", 0.2),
        ("loss", "highest", 0.9),
        ("distance", "lowest", 0.2),
    ],
)
def test_best_value_is_highest_or_lowest(figure: str, best_is: str, best: float) -> None:
    search = BestModelSearch(figure, best_is)
    entered(search, 0.5, 0.9, 0.2, 0.4)
    assert search.best is not None
    assert search.best.value == best


def test_equal_value_is_not_better() -> None:
    search = BestModelSearch("accuracy")
    assert entered(search, 0.5, 0.5) == [True, False]
    assert search.best == BestModel("accuracy", 0, 0, 0.5)


def test_patience_counts_evaluations_since_best() -> None:
    search = BestModelSearch("accuracy", patience=2)
    entered(search, 0.5, 0.4, 0.6, 0.5)
    assert search.why_stop == ""
    search.enter(4, 4, 0.6)
    assert search.why_stop == ("accuracy has not improved for 2 evaluations; best is version 2, round 2, 0.6")


def test_no_patience_never_stops() -> None:
    search = BestModelSearch("accuracy")
    entered(search, 0.5, *[0.4] * 50)
    assert search.why_stop == ""


def test_nan_is_never_best() -> None:
    search = BestModelSearch("loss", patience=1)
    assert entered(search, math.nan, 0.5, math.nan) == [False, True, False]
    assert search.why_stop.startswith("loss has not improved for 1 evaluation;")


def test_resumed_search_continues_from_known_best() -> None:
    known = KnownBest("accuracy", 7, 9, 0.8)
    search = BestModelSearch("accuracy", known=known)
    assert entered(search, 0.7) == [False]
    assert search.best == known


def test_best_model_scored_again_after_resume_does_not_count() -> None:
    search = BestModelSearch("accuracy", patience=1, known=KnownBest("accuracy", 7, 9, 0.8))
    search.enter(7, 9, 0.8)
    assert search.why_stop == ""
    search.enter(8, 10, 0.8)
    assert search.why_stop.startswith("accuracy has not improved for 1 evaluation;")


def test_patience_counts_evaluations_before_resume() -> None:
    search = BestModelSearch("accuracy", patience=3, known=KnownBest("accuracy", 7, 9, 0.8, since=2))
    assert search.why_stop == ""
    search.enter(10, 12, 0.7)
    assert search.why_stop.startswith("accuracy has not improved for 3 evaluations;")


def test_best_model_of_other_figure_is_forgotten() -> None:
    known = KnownBest("accuracy", 7, 9, 0.8)
    assert BestModelSearch("loss", known=known).best is None
