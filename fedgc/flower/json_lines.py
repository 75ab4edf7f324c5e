"""The run as JSON lines, for whatever collects logs: one line a round, with the fields of the store's row.

What the store is told is also told here, but for what is too much for a log: how a round under way stands,
and what each client did in it (of which only failures are named). A line has the moment, the run, its kind:

    begun, ended   the run         round       a round is over
    plan           another plan    measured    what the model was worth after a round

and what goes on record (who joined, what was refused, which keys) under the kind that it has there.

A log that cannot be written is told once and does not stop the run.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedgc.history import RoundRow
from fedgc.store import owned
from fedgc.store.records import Appended, Audited, Begun, Decided, Ended, Evaluated, Record

_SUMS = ("finished", "counted", "up_bytes", "down_bytes", "control_bytes", "refused")


class Lines:
    """Appends lines to a file, or to nothing where its path is empty."""

    def __init__(self, path: str, warn: Callable[[str], None]) -> None:
        self._path = Path(path) if path else None
        self._warn = warn

    def tell(self, record: Record) -> None:
        """Write what this record is worth in a log."""
        said = line_of_record(record)
        if self._path is None or said is None:
            return
        try:
            with open(self._path, "a", encoding="utf-8", opener=owned.opener) as opened:
                opened.write(said + "\n")
        except OSError as error:
            self._warn(f"log {self._path}: {error.strerror or error}; the run goes on without it")
            self._path = None


def line_of_record(record: Record) -> str | None:
    """Return the line of a record; None for what no log wants.

    >>> line_of_record(Ended(0.0, "may", "failed"))
    '{"at": "1970-01-01T00:00:00.000+00:00", "run": "may", "kind": "ended", "state": "failed", "reason": ""}'
    """
    says: dict[str, Any]
    match record:
        case Begun():
            kind, says = "begun", {"settings": dict(record.settings)}
        case Appended():
            kind, says = "round", _round(record.row)
        case Evaluated():
            kind, says = "measured", {"round": record.round, "metrics": dict(record.metrics)}
        case Decided():
            kind, says = record.what, {"round": record.round, "reason": record.reason, **_small(record.basis)}
        case Audited():
            kind, says = record.kind, {"who": record.who, "what": record.what}
        case Ended():
            kind, says = "ended", {"state": record.state, "reason": record.reason}
        case _:
            return None
    at = datetime.fromtimestamp(record.now, UTC).isoformat(timespec="milliseconds")
    return json.dumps(_sound({"at": at, "run": record.run, "kind": kind, **says}), ensure_ascii=False)


def _round(row: RoundRow) -> dict[str, Any]:
    own = {
        each.name: getattr(row, each.name) for each in fields(row) if each.name not in ("clients", "metrics")
    }
    sums = {name: sum(getattr(client, name) for client in row.clients) for name in _SUMS}
    failures = {client.client: client.failure for client in row.clients if client.failure}
    return {**own, "clients": len(row.clients), **sums, "failures": failures}


def _small(basis: Mapping[str, object]) -> dict[str, object]:
    """Return what a plan came to, without what it says of each client."""
    return {name: value for name, value in basis.items() if not isinstance(value, Mapping) and name != "rows"}


def _sound(value: object) -> object:
    """Return a value as every reader of JSON takes it: what is not a number is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _sound(each) for name, each in value.items()}
    return [_sound(each) for each in value] if isinstance(value, list | tuple) else value
