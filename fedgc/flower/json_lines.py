"""A run's history as JSON lines, for log collectors: one line per round, with the fields of the store's row.

The lines hold the records of the store without live states and without the rows of single clients (only their
failures). A line has the time, the run and its kind:

    begun, ended   of the run        round       a finished round
    plan           a new plan        measured    metrics of the model after a round
    best           the best model    scored      metrics of that model on the data of one client

Security events (joins, refusals, keys) have the kind that they have in the store.

If the file cannot be written, a warning is logged once and the run continues.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedgc.files import opener
from fedgc.history import RoundRow
from fedgc.store.records import Appended, Audited, Begun, Decided, Ended, Evaluated, Record, Scored

_SUMS = ("finished", "counted", "up_bytes", "down_bytes", "control_bytes", "refused")


class Lines:
    """Appends lines to a file; with an empty path it does nothing."""

    def __init__(self, path: str, warn: Callable[[str], None]) -> None:
        self._path = Path(path) if path else None
        self._warn = warn

    def tell(self, record: Record) -> None:
        """Append the line of a record, if it has one."""
        line = line_of_record(record)
        if self._path is None or line is None:
            return
        try:
            with open(self._path, "a", encoding="utf-8", opener=opener) as opened:
                opened.write(line + "\n")
        except OSError as error:
            self._warn(f"log {self._path}: {error.strerror or error}; the run goes on without it")
            self._path = None


def line_of_record(record: Record) -> str | None:
    """Return the line of a record; None for records that are not logged.

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
        case Scored():
            kind = "scored"
            says = {name: getattr(record, name) for name in ("round", "client", "samples", "metrics")}
        case Decided():
            kind, says = record.what, {"round": record.round, "reason": record.reason, **_small(record.basis)}
        case Audited():
            kind, says = record.kind, {"who": record.who, "what": record.what}
        case Ended():
            kind, says = "ended", {"state": record.state, "reason": record.reason}
        case _:
            return None
    at = datetime.fromtimestamp(record.now, UTC).isoformat(timespec="milliseconds")
    return json.dumps(_json_safe({"at": at, "run": record.run, "kind": kind, **says}), ensure_ascii=False)


def _round(row: RoundRow) -> dict[str, Any]:
    own = {
        each.name: getattr(row, each.name) for each in fields(row) if each.name not in ("clients", "metrics")
    }
    sums = {name: sum(getattr(client, name) for client in row.clients) for name in _SUMS}
    failures = {client.client: client.failure for client in row.clients if client.failure}
    return {**own, "clients": len(row.clients), **sums, "failures": failures}


def _small(basis: Mapping[str, object]) -> dict[str, object]:
    """Return the basis of a plan without its values for single clients."""
    return {name: value for name, value in basis.items() if not isinstance(value, Mapping) and name != "rows"}


def _json_safe(value: object) -> object:
    """Return a value as standard JSON: NaN and infinities become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _json_safe(each) for name, each in value.items()}
    return [_json_safe(each) for each in value] if isinstance(value, list | tuple) else value
