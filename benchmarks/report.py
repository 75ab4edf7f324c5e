"""The report of a benchmark: named figures, the rows that they are computed from, the machine and the seeds.

A figure without data is None (null in JSON), never a substitute; an infinite ratio ("the other never ends")
is the text "inf", since JSON has no infinity.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedgc.processes.available import machine as machine

Value = float | int | str | bool | None
Figure = Value | Mapping[str, float | None]


def number(value: Value) -> float:
    """Return a value of a row as a number."""
    return float(value or 0.0)


def number_or_nan(value: Value) -> float:
    """Return a value of a row as a number; NaN for one that is none."""
    return float(value) if isinstance(value, int | float) else math.nan


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one benchmark."""

    figures: Mapping[str, Figure]
    rows: Sequence[Mapping[str, Value]]
    machine: Mapping[str, Value]
    seeds: Sequence[int] = ()  # that are reported; empty if the benchmark draws nothing by a seed

    def json(self) -> str:
        """Return the one object that `--json` prints.

        >>> Report({"ratio": float("inf"), "lacks": None}, [], {}).json()
        '{"figures": {"ratio": "inf", "lacks": null}, "rows": [], "machine": {}, "seeds": []}'
        """
        return json.dumps(self.table(), allow_nan=False)

    def table(self) -> dict[str, Any]:
        """Return the same object as a table without infinities."""
        parts = (self.figures, self.rows, self.machine, self.seeds)
        return dict(zip(("figures", "rows", "machine", "seeds"), map(_speakable, parts), strict=True))


def _speakable(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _speakable(each) for key, each in value.items()}
    if isinstance(value, list | tuple | range):
        return [_speakable(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf"
    return value
