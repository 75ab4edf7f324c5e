"""Traces of other projects: each loader reads one format and returns arrays for the virtual clock.

A trace of times is converted to fedgc's own table by `python -m benchmarks convert-trace`.
"""

import csv
from pathlib import Path

from benchmarks.traces.fedscale import Absences, read_behavior, read_capacity
from benchmarks.traces.lambda_pickle import read_lambda
from benchmarks.traces.micro_batches import read_micro_batches
from fedgc.errors import BadSetting, EdgeFailed
from fedgc.sim.clock import Scenario
from fedgc.sim.traces.table import COLUMNS, read_table

__all__ = [
    "READERS",
    "read_scenario",
    "convert",
    "read_micro_batches",
    "read_lambda",
    "read_capacity",
    "read_behavior",
    "Absences",
]

READERS = {".parquet": read_micro_batches, ".pkl": read_lambda, ".pickle": read_lambda, ".csv": read_table}


def read_scenario(path: Path) -> Scenario:
    """Return the rounds of a trace of times; the file's suffix selects the format."""
    reader = READERS.get(path.suffix)
    if reader is None:
        raise BadSetting(f"trace {path.name}: saw suffix {path.suffix!r}, needed one of {', '.join(READERS)}")
    return reader(path)


def convert(trace: Path, table: Path) -> None:
    """Write a trace of times as the table that `fedgc sim --trace` and `fedgc plan --trace` read."""
    scenario = read_scenario(trace)
    try:
        with table.open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(COLUMNS)
            for number, conditions in enumerate(scenario, 1):
                seconds_wk = conditions.pace_wk * conditions.slice_units
                for w, seconds_k in enumerate(seconds_wk.tolist()):
                    rows.writerows((w, number, chunk, seconds) for chunk, seconds in enumerate(seconds_k))
    except OSError as error:
        raise EdgeFailed(f"table {table}: {error.strerror}") from error
