"""The report of a benchmark: named figures, the rows that they are computed from, and the machine.

A figure without data is None (null in JSON), never a substitute; an infinite ratio ("the other never ends")
is the text "inf", since JSON has no infinity.
"""

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Value = float | int | str | bool | None
Figure = Value | Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one benchmark."""

    figures: Mapping[str, Figure]
    rows: Sequence[Mapping[str, Value]]
    machine: Mapping[str, Value]

    def json(self) -> str:
        """Return the one object that `--json` prints.

        >>> Report({"ratio": float("inf"), "lacks": None}, [], {}).json()
        '{"figures": {"ratio": "inf", "lacks": null}, "rows": [], "machine": {}}'
        """
        table = {"figures": self.figures, "rows": list(self.rows), "machine": self.machine}
        return json.dumps(_speakable(table), allow_nan=False)


def machine() -> dict[str, Value]:
    """Return a description of this machine."""
    return {
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
    }


def _speakable(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _speakable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_speakable(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf"
    return value
