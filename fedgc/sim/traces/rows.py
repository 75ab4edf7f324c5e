"""From rows (worker, round, piece, seconds) to rounds of conditions; what every reader of times ends in.

A client's share of the data in one round is a unit, whatever number of pieces it was timed in.

Shape letters: n rows, w clients, r rounds, k pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from fedgc.errors import BadSetting, EdgeFailed
from fedgc.sim.clock import Scenario, working
from fedgc.sim.clock.conditions import Float, Int
from fedgc.sim.traces.values import shown

MOST_S: Final = 1e12  # 30,000 years: sums of such times are still numbers
COUNTS: Final = range(-(2**63), 2**63)  # what an array of counts can hold


@dataclass(frozen=True, slots=True)
class Rows:
    """Times as they stand in a file: `at_n` is each one's row there.

    Where clients have `names`, a client's number is its place among them.
    """

    workers_n: Int
    rounds_n: Int
    pieces_n: Int
    seconds_n: Float
    at_n: Int
    names: Sequence[str] = ()

    def w(self, number: int) -> str:
        """Return what the file calls a client."""
        return shown(self.names[number]) if self.names else str(number)


def read_bytes(path: Path) -> bytes:
    """Return what is in a file, or say in one line why not."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise EdgeFailed(f"trace {path}: {error.strerror}") from error


def to_scenario(trace: str, rows: Rows) -> Scenario:
    """Return a round for every round number; rows come in any order, one for each worker, round and piece.

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
        raise BadSetting(f"trace {trace}: saw no time for client {rows.w(w)}, round {number}, piece {piece}")
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
        raise BadSetting(f"trace {trace}, row {twice}: saw this client, round and piece before")


def _missing(places_3n: Int, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the first place without a row, where there is one; the rows are in order, none is twice.

    Memory goes with the rows, never with the places: a few thousand rows can span a million million.

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
