"""Times of real machines: a CSV table with the columns client, round, chunk, seconds, in any order of rows.

A client's share of the data in one round is a unit, for any number of pieces. Other formats are converted to
this one by `python -m benchmarks convert-trace`.

Shape letters: n rows, w clients, r rounds, k pieces.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from fedgc.errors import BadSetting, EdgeFailed
from fedgc.guards import guarded
from fedgc.sim.clock import Scenario, working
from fedgc.sim.clock.conditions import Float, Int
from fedgc.sim.traces.values import shown

COLUMNS: Final = ["client", "round", "chunk", "seconds"]
MOST_S: Final = 1e12  # 30,000 years: sums of such times stay finite
COUNTS: Final = range(-(2**63), 2**63)  # the range of int64


@dataclass(frozen=True, slots=True)
class Rows:
    """The times of a file; `at_n` is the row number of each.

    If clients have `names`, a client's number is its index in them.
    """

    workers_n: Int
    rounds_n: Int
    pieces_n: Int
    seconds_n: Float
    at_n: Int
    names: Sequence[str] = ()

    def w(self, number: int) -> str:
        """Return the file's name for a client."""
        return shown(self.names[number]) if self.names else str(number)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, or raise with the reason in one line."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise BadSetting(f"trace {path}: saw no such file, needed a table of times or links") from error
    except OSError as error:
        raise EdgeFailed(f"trace {path}: {error.strerror}") from error


def read_text(path: Path) -> io.StringIO:
    """Return the text of a table; the mark at its beginning that spreadsheets write is left out."""
    return io.StringIO(read_bytes(path).decode("utf-8-sig"))


def to_scenario(trace: str, rows: Rows) -> Scenario:
    """Return a round for every round number; rows may be in any order, one per client, round and piece.

    >>> clients_w, rounds = np.array([0, 1, 0, 1]), np.array([7, 7, 8, 8])
    >>> rows = Rows(clients_w, rounds, np.zeros(4, int), np.array([1.0, 2.0, 3.0, 4.0]), np.arange(1, 5))
    >>> [each.pace_wk.tolist() for each in to_scenario("t", rows)]
    [[[1.0], [2.0]], [[3.0], [4.0]]]
    """
    if not rows.seconds_n.size:
        raise BadSetting(f"trace {trace}: no rows")
    bad = np.flatnonzero(~((rows.seconds_n > 0) & (rows.seconds_n <= MOST_S)))
    if bad.size:
        raise BadSetting(
            f"trace {trace}, row {rows.at_n[bad[0]]}: saw {rows.seconds_n[bad[0]]:g} s, "
            f"needed a time above 0 and at most {MOST_S:g} s"
        )
    keys = (rows.workers_n, rows.rounds_n, rows.pieces_n)
    ids = [np.unique(key, return_inverse=True) for key in keys]
    places_3n = np.stack([place for _, place in ids])
    order = np.lexsort(places_3n[::-1])
    _check_once(trace, rows, places_3n, order)
    missing = _missing(places_3n[:, order], tuple(len(known) for known, _ in ids))
    if missing is not None:
        w, number, piece = (int(known[at]) for (known, _), at in zip(ids, missing, strict=True))
        raise BadSetting(f"trace {trace}: saw no time for client {rows.w(w)}, round {number}, chunk {piece}")
    pieces = len(ids[2][0])
    times_wrk = rows.seconds_n[order].reshape([len(known) for known, _ in ids])
    return tuple(
        working(times_wrk[:, number] * pieces, slice_units=1.0 / pieces)
        for number in range(times_wrk.shape[1])
    )


def _check_once(trace: str, rows: Rows, places_3n: Int, order: Int) -> None:
    again = (np.diff(places_3n[:, order], axis=1) == 0).all(axis=0)
    if again.any():
        twice = rows.at_n[order[1:][again].min()]
        raise BadSetting(f"trace {trace}, row {twice}: saw this client, round and chunk before")


def _missing(places_3n: Int, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the first missing key, if there is one; the rows are sorted and unique.

    Memory is proportional to the rows, not to the range of keys, which can be very large.

    >>> _missing(np.array([[0, 1], [0, 0], [0, 2]]), (2, 1, 3))
    (0, 0, 1)
    """
    _, rounds, pieces = shape
    rows = places_3n.shape[1]
    if rows == shape[0] * rounds * pieces:
        return None
    at_n = np.arange(rows)
    due_3n = np.stack([at_n // (rounds * pieces), at_n // pieces % rounds, at_n % pieces])
    other = np.flatnonzero((due_3n != places_3n).any(axis=0))
    first = int(other[0]) if other.size else rows
    return first // (rounds * pieces), first // pieces % rounds, first % pieces


def read_table(path: Path) -> Scenario:
    """Return a round for each round number."""
    with guarded("a trace", path.name, BadSetting):
        return to_scenario(path.name, _rows_in(path))


def read_names(path: Path) -> tuple[str, ...]:
    """Return the names of the clients of a trace, in the order of its scenario."""
    with guarded("a trace", path.name, BadSetting):
        return tuple(_rows_in(path).names)


def _rows_in(path: Path) -> Rows:
    try:
        rows = csv.reader(read_text(path))
        (first, header), *lines = [(rows.line_num, row) for row in rows if row] or [(1, [])]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadSetting(f"trace {path.name}: not a table of text ({error})") from error
    if [name.strip() for name in header] != COLUMNS:
        raise BadSetting(
            f"trace {path.name}, row {first}: saw {shown(','.join(header))}, needed {','.join(COLUMNS)}"
        )
    parsed = [_parsed(f"trace {path.name}, row {at}", line) for at, line in lines]
    names = {w: at for at, w in enumerate(dict.fromkeys(row[0] for row in parsed))}
    return Rows(
        np.asarray([names[row[0]] for row in parsed], np.int64),
        np.asarray([row[1] for row in parsed], np.int64),
        np.asarray([row[2] for row in parsed], np.int64),
        np.asarray([row[3] for row in parsed], np.float64),
        np.asarray([at for at, _ in lines], np.int64),
        tuple(names),
    )


def _parsed(where: str, line: list[str]) -> tuple[str, int, int, float]:
    if len(line) != len(COLUMNS):
        raise BadSetting(f"{where}: saw {len(line)} values, needed {len(COLUMNS)}")
    w, number, chunk, seconds = (value.strip() for value in line)
    try:
        parsed = (w, int(number), int(chunk), float(seconds))
    except ValueError:
        raise BadSetting(f"{where}: saw {shown(','.join(line))}, needed two counts and seconds") from None
    if not w:
        raise BadSetting(f"{where}: saw no client, needed its name")
    if not all(count in COUNTS for count in parsed[1:3]):
        raise BadSetting(f"{where}: saw {shown(','.join(line))}, needed counts of at most 64 bits")
    return parsed
