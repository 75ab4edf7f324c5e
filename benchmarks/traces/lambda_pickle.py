"""Times of AWS Lambda functions, as recorded by Sequential Gradient Coding (Krishnan et al. 2023).

A list of rounds; a round is a table with `results`, one for each client, with `started` and `finished` in
seconds. A client's whole unit is one piece.
"""

from pathlib import Path

import numpy as np

from benchmarks.traces.pickles import read_plain
from fedgc.errors import BadSetting
from fedgc.sim.clock import Scenario
from fedgc.sim.traces.table import MOST_S, Rows, to_scenario
from fedgc.sim.traces.values import number


def read_lambda(path: Path) -> Scenario:
    """Return one round for each recorded round."""
    rounds = read_plain(path)
    if not isinstance(rounds, list) or not rounds:
        raise BadSetting(f"trace {path.name}: saw {type(rounds).__name__}, needed a list of rounds")
    rows = [row for at, each in enumerate(rounds, 1) for row in _of_round(f"trace {path.name}", at, each)]
    clients_w, numbers, seconds = (np.asarray(column) for column in zip(*rows, strict=True))
    one_n = np.zeros(len(rows), np.int64)
    return to_scenario(path.name, Rows(clients_w, numbers, one_n, seconds, np.arange(1, len(rows) + 1)))


def _of_round(name: str, at: int, each: object) -> list[tuple[int, int, float]]:
    results = each.get("results") if isinstance(each, dict) else None
    if not isinstance(results, list) or not results:
        raise BadSetting(f"{name}, round {at}: needed a table with a list of results")
    rows = []
    for w, result in enumerate(results, 1):
        where = f"{name}, round {at}, client {w}"
        if not isinstance(result, dict) or not {"started", "finished"} <= result.keys():
            raise BadSetting(f"{where}: needed a table with started and finished")
        seconds = number(result["finished"], where) - number(result["started"], where)
        if not 0 < seconds <= MOST_S:
            raise BadSetting(
                f"{where}: saw {seconds} s from start to finish, needed more than 0 and at most {MOST_S:g}"
            )
        rows.append((w, at, seconds))
    return rows
