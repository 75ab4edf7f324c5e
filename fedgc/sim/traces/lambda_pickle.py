"""Times of AWS Lambda functions, as Sequential Gradient Coding records them (Krishnan et al. 2023).

A list of rounds; a round is a table with `results`, one for each worker, with `started` and `finished` in
seconds. A worker's whole unit is one piece.

May import: replay; pickles, rows.
"""

from pathlib import Path

import numpy as np

from fedgc.errors import BadSetting
from fedgc.replay import Weather
from fedgc.sim.traces.pickles import number, read_plain
from fedgc.sim.traces.rows import to_weather


def read_lambda(path: Path) -> Weather:
    """Return a round for each recorded one."""
    rounds = read_plain(path)
    if not isinstance(rounds, list) or not rounds:
        raise BadSetting(f"trace {path.name}: saw {type(rounds).__name__}, needed a list of rounds")
    rows = [row for at, each in enumerate(rounds) for row in _of_round(f"trace {path.name}", at, each)]
    workers, numbers, seconds = (np.asarray(column) for column in zip(*rows, strict=True))
    return to_weather(path.name, [workers, numbers, np.zeros(len(rows), np.int64)], seconds)


def _of_round(name: str, at: int, each: object) -> list[tuple[int, int, float]]:
    results = each.get("results") if isinstance(each, dict) else None
    if not isinstance(results, list) or not results:
        raise BadSetting(f"{name}, round {at + 1}: needed a table with a list of results")
    rows = []
    for worker, result in enumerate(results):
        where = f"{name}, round {at + 1}, worker {worker + 1}"
        if not isinstance(result, dict) or not {"started", "finished"} <= result.keys():
            raise BadSetting(f"{where}: needed a table with started and finished")
        seconds = number(result["finished"], where) - number(result["started"], where)
        if not 0 < seconds < float("inf"):
            raise BadSetting(f"{where}: saw {seconds} s from start to finish, needed more than 0")
        rows.append((worker, at, seconds))
    return rows
