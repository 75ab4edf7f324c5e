"""Traces of GPU training jobs by micro-batch (parquet; ByteDance-Seed/StragglerAnalysis).

One row is one operation of one rank in one step. A client is a rank, a round is a step, and a piece is the
forward and backward computation of a micro-batch. Reading parquet needs the extra pyarrow. Every row is
validated before times are summed.
"""

import io
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedgc.errors import BadSetting, EdgeFailed, text_of
from fedgc.sim.clock import Scenario
from fedgc.sim.traces.table import COUNTS, Rows, read_bytes, to_scenario
from fedgc.sim.traces.values import number, shown

COMPUTES: Final = ("forward-compute", "backward-compute")
COLUMNS: Final = ("rank", "step", "mb_id", "optype", "duration")


def read_micro_batches(path: Path) -> Scenario:
    """Return a round for each step."""
    operations = zip(*_columns(path), strict=True)
    checked = [_checked(f"trace {path.name}, row {at}", row) for at, row in enumerate(operations, 1)]
    found = [(at, *row[:3], row[4]) for at, row in enumerate(checked, 1) if row[3] in COMPUTES]
    if not found:
        seen = shown(sorted({row[3] for row in checked}))
        raise BadSetting(f"trace {path.name}: saw operations {seen}, needed {' and '.join(COMPUTES)}")
    at, ranks, steps, batches, durations = zip(*found, strict=True)
    keys = np.asarray([ranks, steps, batches], np.int64)
    places, first, place_of = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    seconds = np.bincount(place_of.reshape(-1), weights=np.asarray(durations, np.float64)).astype(np.float64)
    return to_scenario(
        path.name, Rows(places[0], places[1], places[2], seconds, np.asarray(at, np.int64)[first])
    )


def _checked(where: str, row: tuple[object, ...]) -> tuple[int, int, int, str, float]:
    *counts, kind, duration = row
    rank, step, batch = (
        _count(f"{where}, {name}", value) for name, value in zip(COLUMNS, counts, strict=False)
    )
    if not isinstance(kind, str):
        raise BadSetting(f"{where}, optype: saw {shown(kind)}, needed the name of an operation")
    seconds = number(duration, f"{where}, duration")
    if not 0 <= seconds < float("inf"):
        raise BadSetting(f"{where}, duration: saw {seconds} s, needed a finite time of 0 or more")
    return rank, step, batch, kind, seconds


def _count(where: str, value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value not in COUNTS:
        raise BadSetting(f"{where}: saw {shown(value)}, needed a whole number of at most 64 bits")
    return value


def _columns(path: Path) -> list[list[Any]]:
    try:
        parquet, arrow = import_module("pyarrow.parquet"), import_module("pyarrow")
    except ImportError as error:
        raise EdgeFailed(f"trace {path.name}: parquet needs pyarrow (pip install pyarrow)") from error
    content = read_bytes(path)
    try:
        table = parquet.read_table(io.BytesIO(content), columns=list(COLUMNS))
        return [table[name].to_pylist() for name in COLUMNS]
    except (arrow.ArrowException, KeyError, ValueError, OSError) as error:
        raise BadSetting(f"trace {path.name}: {text_of(error, path)}") from error
