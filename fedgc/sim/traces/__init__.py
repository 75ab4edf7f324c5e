"""Traces of real machines: each loader reads one format and hands arrays to the replay."""

from pathlib import Path

from fedgc.errors import BadSetting
from fedgc.sim.clock import Scenario
from fedgc.sim.traces.behavior import Absences, read_behavior, read_capacity
from fedgc.sim.traces.lambda_pickle import read_lambda
from fedgc.sim.traces.links import Links, read_links
from fedgc.sim.traces.micro_batches import read_micro_batches
from fedgc.sim.traces.table import read_table

__all__ = [
    "read_scenario",
    "read_micro_batches",
    "read_lambda",
    "read_table",
    "read_capacity",
    "read_behavior",
    "Absences",
    "read_links",
    "Links",
]

_READERS = {".parquet": read_micro_batches, ".pkl": read_lambda, ".pickle": read_lambda, ".csv": read_table}


def read_scenario(path: Path) -> Scenario:
    """Return the rounds of a trace of times, its format told by its suffix."""
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise BadSetting(
            f"trace {path.name}: saw suffix {path.suffix!r}, needed one of {', '.join(_READERS)}"
        )
    return reader(path)
