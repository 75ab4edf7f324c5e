"""Traces of GPU training jobs, micro-batch by micro-batch (parquet; ByteDance-Seed/StragglerAnalysis).

One row is one operation of one rank in one step. A worker is a rank, a round is a step, a piece is a
micro-batch: the time of its forward and backward computation. Reading parquet needs pyarrow, which is
an extra.

May import: replay; rows.
"""

import io
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedgc.errors import BadSetting, EdgeFailed
from fedgc.replay import Weather
from fedgc.sim.traces.rows import read_bytes, to_weather

COMPUTES: Final = ("forward-compute", "backward-compute")
COLUMNS: Final = ("rank", "step", "mb_id", "optype", "duration")


def read_micro_batches(path: Path) -> Weather:
    """Return a round for each step."""
    table = _columns(path)
    column = {name: np.asarray(table[name].to_pylist()) for name in COLUMNS}
    computes = np.isin(column["optype"], COMPUTES)
    if not computes.any():
        seen = sorted(set(column["optype"].tolist()))
        raise BadSetting(f"trace {path.name}: saw operations {seen[:8]}, needed {' and '.join(COMPUTES)}")
    if not np.isfinite(column["duration"].astype(np.float64)).all():
        row = int(np.flatnonzero(~np.isfinite(column["duration"].astype(np.float64)))[0])
        raise BadSetting(f"trace {path.name}, row {row + 1}: saw no duration, needed seconds")
    keys = np.stack([column[name][computes].astype(np.int64) for name in ("rank", "step", "mb_id")])
    places, place_of = np.unique(keys, axis=1, return_inverse=True)
    seconds = np.bincount(place_of.reshape(-1), weights=column["duration"][computes].astype(np.float64))
    return to_weather(path.name, list(places.astype(np.int64)), seconds.astype(np.float64))


def _columns(path: Path) -> Any:  # noqa: ANN401 - pyarrow is not typed
    try:
        parquet, arrow = import_module("pyarrow.parquet"), import_module("pyarrow")
    except ImportError as error:
        raise EdgeFailed(f"trace {path.name}: parquet needs pyarrow (pip install 'fedgc[traces]')") from error
    try:
        return parquet.read_table(io.BytesIO(read_bytes(path)), columns=list(COLUMNS))
    except (arrow.ArrowException, KeyError, ValueError) as error:
        raise BadSetting(f"trace {path.name}: {str(error).splitlines()[0]}") from error
