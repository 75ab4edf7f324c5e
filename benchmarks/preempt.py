"""`python -m benchmarks preempt`: what a run keeps of clients that are ended by SIGTERM, beside SIGKILL.

Clients train in processes of their own, over sessions, with an exchange in every fifth round. Signals come at
random moments, SIGTERM and SIGKILL by turns, and another client takes the place of one that has ended. The
steps at stake are those that a client has done since its last exchange; a step that SIGKILL interrupts counts
as done.

    steps_kept_percent            of the steps at stake at SIGTERM, how many entered an exchange
    counted_departures_percent    departures by SIGTERM of which all of them did
    killed_steps_kept_percent     the same for SIGKILL
    killed_counted_percent
    leave_s                       from SIGTERM to the end of the process, median
"""

import os
import random
import signal
import time
from collections.abc import Sequence
from statistics import median
from typing import Final

from benchmarks.departing import GRACE_S, WAIT_S, Client, Fleet, wait_for_exchange
from benchmarks.killed.work import CLIENTS
from benchmarks.report import Report, Value, machine

QUICK_DEPARTURES: Final = 2
APART_S: Final = (3.0, 9.0)  # between two signals
PERIOD: Final = 5  # rounds between two exchanges


def bench_preempt(departures: int) -> Report:
    """Run the benchmark with this number of departures by each signal."""
    rows = _departures(departures)
    return Report(figures(rows), rows, machine())


def figures(rows: Sequence[dict[str, Value]]) -> dict[str, Value]:
    """Return the figures of these departures."""
    asked, killed = ([row for row in rows if row["signal"] == each] for each in ("SIGTERM", "SIGKILL"))
    return {
        "steps_kept_percent": _share(asked, "kept", "at_stake"),
        "counted_departures_percent": _counted(asked),
        "killed_steps_kept_percent": _share(killed, "kept", "at_stake"),
        "killed_counted_percent": _counted(killed),
        "leave_s": median([float(row["ends_s"] or 0.0) for row in asked]) if asked else None,
        "departures": len(asked),
    }


def _share(rows: Sequence[dict[str, Value]], part: str, whole: str) -> float | None:
    total = sum(int(row[whole] or 0) for row in rows)
    return 100.0 * sum(int(row[part] or 0) for row in rows) / total if total else None


def _counted(rows: Sequence[dict[str, Value]]) -> float | None:
    whole = [row for row in rows if row["kept"] == row["at_stake"]]
    return 100.0 * len(whole) / len(rows) if rows else None


def _departures(count: int) -> list[dict[str, Value]]:
    chance, rows = random.Random(1), list[dict[str, Value]]()  # noqa: S311  moments, not secrets
    with Fleet(PERIOD) as fleet:
        clients = [fleet.start() for _ in range(CLIENTS)]
        for number in range(2 * count):
            wait_for_exchange(clients)
            time.sleep(chance.uniform(*APART_S))
            leaving = clients.pop(chance.randrange(CLIENTS))
            rows.append(_ended(leaving, signal.SIGKILL if number % 2 else signal.SIGTERM))
            clients.append(fleet.start())
    return rows


def _ended(client: Client, number: signal.Signals) -> dict[str, Value]:
    """Send a client this signal; return what became of its steps once the server has taken note."""
    before, began = client.counted, time.monotonic()
    os.kill(client.process.pid, number)
    client.process.join(WAIT_S)
    ends_s = time.monotonic() - began
    time.sleep(2.0 * GRACE_S)  # the row of its last round is written, or its loss is noted
    return {
        "signal": number.name,
        "at_stake": client.begun - before,
        "kept": client.counted - before,
        "ends_s": ends_s,
    }
