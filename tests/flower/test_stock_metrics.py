"""Metrics in the replies of stock clients."""

from flwr.app import MetricRecord, RecordDict

from fedgc.flower.stock_metrics import left_out, metrics_of
from fedgc.messages import MOST_FIGURES

MANY = [(f"f{number:02}", 0.5) for number in range(MOST_FIGURES + 1)]


def reply(metrics: list[tuple[str, float]]) -> RecordDict:
    return RecordDict({"metrics": MetricRecord({**dict(metrics), "train_loss": 2.0, "num-examples": 3})})


def test_metrics_beyond_limit_are_named() -> None:
    """Flower's own strategies take the mean of all, so an app that moves would miss them."""
    text = "saw 66 metrics, needed at most 64: left out are f63, f64"
    assert list(left_out(reply(MANY))) == [("many", text)]
    assert not list(left_out(reply(MANY[: MOST_FIGURES - 1])))


def test_metrics_within_limit_are_equal_in_any_order() -> None:
    """So all replies have them, and the loss of the round is among them."""
    kept = {"train_loss": 2.0, **dict(MANY[: MOST_FIGURES - 1])}
    assert metrics_of(reply(MANY)) == metrics_of(reply(MANY[::-1])) == (3.0, kept)
