"""The metrics in the replies of stock clients."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from flwr.app import RecordDict

from fedgc.errors import BadMessage, printable
from fedgc.messages import LARGEST_COUNT, LONGEST_FIGURE, MOST_FIGURES

EXAMPLES: Final = "num-examples"
MOST_NAMED: Final = 8
LOSSES: Final = ("train_loss", "train-loss", "loss")

Metrics = dict[str, float]


def only(records: Mapping[str, Any], what: str) -> Any:  # noqa: ANN401  a record of either kind
    """Return the only record of a kind."""
    if len(records) != 1:
        raise BadMessage(f"reply: saw {len(records)} records of {what}, needed one")
    return next(iter(records.values()))


def metrics_of(content: RecordDict) -> tuple[float, Metrics]:
    """Return num-examples and all metrics that are single numbers, with names that can be shown."""
    record = only(content.metric_records, "metrics")
    metrics = {name: float(value) for name, value in record.items() if isinstance(value, int | float)}
    if EXAMPLES not in metrics:
        raise BadMessage(f"reply: saw the metrics {sorted(record)[:8]}, needed the number {EXAMPLES}")
    examples = metrics.pop(EXAMPLES)
    if not 0 <= examples <= LARGEST_COUNT:
        raise BadMessage(f"{EXAMPLES}: saw {examples}, needed a number of 0 to {LARGEST_COUNT:g}")
    kept = sorted(metrics, key=_rank)[:MOST_FIGURES]  # the same of each reply, whatever the order in it
    return examples, {printable(name, LONGEST_FIGURE): metrics[name] for name in kept}


def _rank(name: str) -> tuple[bool, str]:
    return name not in LOSSES, name


def _named(names: list[str]) -> str:
    """Return the first of these names, as text that can be shown."""
    shown = ", ".join(printable(name, LONGEST_FIGURE) for name in names[:MOST_NAMED])
    return f"{shown} and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else shown


def lists_in(record: Mapping[str, Any]) -> str:
    """Return the names of metrics that are lists, as text; empty without any."""
    return _named(sorted(name for name, value in record.items() if _is_list(value)))


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def left_out(content: RecordDict) -> Iterator[tuple[str, str]]:
    """Yield what `metrics_of` leaves out, in a word and as a text; Flower's strategies leave out nothing."""
    record = only(content.metric_records, "metrics")
    if lists := lists_in(record):
        yield "lists", f"saw lists as metrics ({lists}), needed single numbers: they are left out"
    numbers = sorted((name for name in record.keys() - {EXAMPLES} if not _is_list(record[name])), key=_rank)
    if more := numbers[MOST_FIGURES:]:
        text = f"saw {len(numbers)} metrics, needed at most {MOST_FIGURES}: left out are {_named(more)}"
        yield "many", text


def in_some(replies: list[tuple[float, Metrics]]) -> str:
    """Return a text on the metrics that not all replies have; empty without any."""
    counts = Counter(name for _, metrics in replies for name in metrics)
    names = sorted(name for name, count in counts.items() if count < len(replies))
    seen = f"saw metrics that not all replies have ({_named(names)})"
    return f"{seen}, needed the same of each: they are left out" if names else ""


def mean_of(replies: list[tuple[float, Metrics]]) -> Metrics:
    """Return the mean of each metric common to all replies, weighted by examples."""
    total = sum(examples for examples, _ in replies)
    if not total > 0:
        return {}
    names = set.intersection(*(set(metrics) for _, metrics in replies))
    return {
        name: sum(examples * metrics[name] for examples, metrics in replies) / total for name in sorted(names)
    }
