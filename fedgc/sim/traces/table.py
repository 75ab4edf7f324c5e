"""A plain table of times: CSV with the columns worker, round, chunk, seconds, in any order of rows."""

import csv
import io
from pathlib import Path
from typing import Final

import numpy as np

from fedgc.errors import BadSetting
from fedgc.sim.clock import Scenario
from fedgc.sim.traces.rows import COUNTS, Rows, read_bytes, to_scenario
from fedgc.sim.traces.values import shown

COLUMNS: Final = ["worker", "round", "chunk", "seconds"]


def read_table(path: Path) -> Scenario:
    """Return a round for each round number."""
    try:
        rows = csv.reader(io.StringIO(read_bytes(path).decode()))
        (first, header), *lines = [(rows.line_num, row) for row in rows if row] or [(1, [])]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadSetting(f"trace {path.name}: not a table of text ({error})") from error
    if [name.strip() for name in header] != COLUMNS:
        raise BadSetting(
            f"trace {path.name}, row {first}: saw {shown(','.join(header))}, needed {','.join(COLUMNS)}"
        )
    parsed = [_parsed(f"trace {path.name}, row {at}", line) for at, line in lines]
    names = {w: at for at, w in enumerate(dict.fromkeys(row[0] for row in parsed))}
    table = Rows(
        np.asarray([names[row[0]] for row in parsed], np.int64),
        np.asarray([row[1] for row in parsed], np.int64),
        np.asarray([row[2] for row in parsed], np.int64),
        np.asarray([row[3] for row in parsed], np.float64),
        np.asarray([at for at, _ in lines], np.int64),
        tuple(names),
    )
    return to_scenario(path.name, table)


def _parsed(where: str, line: list[str]) -> tuple[str, int, int, float]:
    if len(line) != len(COLUMNS):
        raise BadSetting(f"{where}: saw {len(line)} values, needed {len(COLUMNS)}")
    w, number, chunk, seconds = (value.strip() for value in line)
    try:
        parsed = (w, int(number), int(chunk), float(seconds))
    except ValueError:
        raise BadSetting(f"{where}: saw {shown(','.join(line))}, needed two counts and seconds") from None
    if not all(count in COUNTS for count in parsed[1:3]):
        raise BadSetting(f"{where}: saw {shown(','.join(line))}, needed counts of at most 64 bits")
    return parsed
