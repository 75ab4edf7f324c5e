"""From rows (worker, round, piece, seconds) to rounds of conditions; what every reader of times ends in.

A worker's share of the data in one round is a unit, whatever number of pieces it was timed in.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedgc.errors import BadSetting, EdgeFailed
from fedgc.replay import Weather, working
from fedgc.replay.conditions import Float, Int


def read_bytes(path: Path) -> bytes:
    """Return what is in a file, or say in one line why not."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise EdgeFailed(f"trace {path}: {error.strerror}") from error


def to_weather(name: str, keys: Sequence[Int], seconds: Float) -> Weather:
    """Return a round for every round number; keys are worker, round and piece, rows in any order.

    >>> keys = [np.array([0, 1, 0, 1]), np.array([7, 7, 8, 8]), np.zeros(4, int)]
    >>> [each.pace_wk.tolist() for each in to_weather("t", keys, np.array([1.0, 2.0, 3.0, 4.0]))]
    [[[1.0], [2.0]], [[3.0], [4.0]]]
    """
    if not seconds.size:
        raise BadSetting(f"trace {name}: no rows")
    bad = np.flatnonzero(~(np.isfinite(seconds) & (seconds > 0)))
    if bad.size:
        raise BadSetting(
            f"trace {name}, row {bad[0] + 1}: saw {seconds[bad[0]]} s, needed a finite time above 0"
        )
    ids = [np.unique(key, return_inverse=True) for key in keys]
    workers, rounds, pieces = (len(known) for known, _ in ids)
    times_wrk = np.full((workers, rounds, pieces), np.nan)
    where = tuple(index for _, index in ids)
    times_wrk[where] = seconds
    missing = np.argwhere(np.isnan(times_wrk))
    if missing.size:
        worker, number, piece = (int(ids[axis][0][at]) for axis, at in enumerate(missing[0]))
        raise BadSetting(f"trace {name}: saw no time for worker {worker}, round {number}, piece {piece}")
    if len(seconds) != times_wrk.size:
        flat = np.ravel_multi_index(where, times_wrk.shape)
        order = np.argsort(flat, kind="stable")
        twice = int(order[1:][np.diff(flat[order]) == 0].min())
        raise BadSetting(f"trace {name}, row {twice + 1}: saw this worker, round and piece before")
    return tuple(working(times_wrk[:, number] * pieces, slice_units=1.0 / pieces) for number in range(rounds))
