"""The `evaluate_fn` of a Flower app: its numbers are figures of the run, its records are in the result."""

from collections.abc import Callable, Mapping
from logging import Logger
from typing import Final

from flwr.app import ArrayRecord, MetricRecord

from fedgc.errors import TaskFailed, words_of
from fedgc.flower.stock_metrics import Metrics, lists_in
from fedgc.flower.warn_once import WarnOnce

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class AppEvaluation:
    """Calls an `evaluate_fn`, and keeps what it returns."""

    def __init__(self, evaluate_fn: EvaluateFn, log: Logger) -> None:
        self._evaluate_fn = evaluate_fn
        self._warn_once = WarnOnce(log)
        self.records: Final[dict[int, MetricRecord]] = {}  # the last of each round

    def __call__(self, round_: int, arrays: ArrayRecord) -> Metrics:
        """Return the metrics that are single numbers, or raise TaskFailed."""
        try:
            record = self._evaluate_fn(round_, arrays)
        except Exception as error:  # the user's code may raise anything
            raise TaskFailed(f"evaluate_fn raised {words_of(error)}") from error
        if record is None:
            return {}
        if not isinstance(record, MetricRecord):
            saw = type(record).__name__
            raise TaskFailed(f"evaluate_fn returned a {saw}, needed a MetricRecord or None")
        self.records[round_] = record
        if lists := lists_in(record):
            text = f"saw lists as metrics of evaluate_fn ({lists}), needed single numbers"
            self._warn_once("lists", round_, f"{text}: only the result has them")
        return _numbers(record)

    def record(self, round_: int, metrics: Mapping[str, float]) -> MetricRecord:
        """Return the record of these metrics; a round may have others, of models that were compared."""
        record = self.records.get(round_)
        return record if record is not None and _numbers(record) == metrics else MetricRecord(dict(metrics))


def _numbers(record: MetricRecord) -> Metrics:
    return {name: float(value) for name, value in record.items() if isinstance(value, int | float)}
