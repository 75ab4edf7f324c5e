"""A plain table of times: CSV with the columns worker, round, chunk, seconds, in any order of rows.

May import: replay; rows.
"""

import csv
import io
from pathlib import Path
from typing import Final

import numpy as np

from fedgc.errors import BadSetting
from fedgc.replay import Weather
from fedgc.sim.traces.rows import read_bytes, to_weather

COLUMNS: Final = ["worker", "round", "chunk", "seconds"]


def read_table(path: Path) -> Weather:
    """Return a round for each round number."""
    try:
        rows = csv.reader(io.StringIO(read_bytes(path).decode()))
        header, *lines = [row for row in rows if row] or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadSetting(f"trace {path.name}: not a table of text ({error})") from error
    if [name.strip() for name in header] != COLUMNS:
        raise BadSetting(
            f"trace {path.name}, row 1: saw {','.join(header)[:60]!r}, needed {','.join(COLUMNS)}"
        )
    parsed = [_parsed(f"trace {path.name}, row {at}", line) for at, line in enumerate(lines, start=2)]
    names = {worker: at for at, worker in enumerate(dict.fromkeys(row[0] for row in parsed))}
    keys = [
        np.asarray([names[row[0]] for row in parsed], np.int64),
        np.asarray([row[1] for row in parsed], np.int64),
        np.asarray([row[2] for row in parsed], np.int64),
    ]
    return to_weather(path.name, keys, np.asarray([row[3] for row in parsed]))


def _parsed(where: str, line: list[str]) -> tuple[str, int, int, float]:
    if len(line) != len(COLUMNS):
        raise BadSetting(f"{where}: saw {len(line)} values, needed {len(COLUMNS)}")
    worker, number, chunk, seconds = (value.strip() for value in line)
    try:
        parsed = (worker, int(number), int(chunk), float(seconds))
    except ValueError:
        raise BadSetting(f"{where}: saw {','.join(line)[:60]!r}, needed two counts and seconds") from None
    if not 0 < parsed[3] < float("inf"):
        raise BadSetting(f"{where}: saw {seconds} s, needed a finite time above 0")
    return parsed
