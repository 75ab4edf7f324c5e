"""`python -m benchmarks fleet`: what one server spends on each of many clients, and a stop of it.

The sessions of clients are made by the client code of fedgc, a hundred in each process. They do not train:
each answers work at once, with a constant update of 100 kB. Driver, listener, store and checkpoints are in
another process, as in a ServerApp, but invitations do not travel through Flower. The page of the run is open
in a third one. The settings are the defaults, but every round is exchanged, and the grace time is 20 s: the
clients' threads share few processes.

    server_ms_per_client   by clients: processor time of the server for a client in a round, median
    thread_ms_per_client   by thread of the server: the same with 1000 clients
    growth                 by clients: the same, over that with 100 clients
    growth_3000_over_100   the same with 3000
    gather_cpu_s           processor time of the server until 1000 clients are in
    mb_per_client          memory of the server with 1000 clients above that with none, for each
    back_after_stop_s      the server is stopped (SIGSTOP) for 15 s: from its end to that of the first round
                           that begins after it and counts all clients
    lost_after_stop        clients that were lost, or whose session has ended, by then
    failed_after_stop      most clients that failed in one of these rounds
    rounds_lost_after_stop  of these rounds, how many made no model
    overhead_share_64      64 clients with a round-trip time of 50 ms: the time of a round without training,
                           as a share of one with 10 s of it
    churn_memory_slope     growth of the server's memory in percent per 100 rounds, while a fifth of the
                           clients leave and come again in each round
    churn_time_growth      median time of the last quarter of these rounds over that of the first one
    churn_files            open files at the end above the most after the first rounds
    page_updates           how often the page of 1000 clients was updated

The figures of a tree of servers are in `benchmarks.fleet_tree`.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from benchmarks import fleet_tree
from benchmarks.fleet_processes import FIRST, Rows, delayed_fleet_of, fleet_of, of, watched
from benchmarks.report import Figure, Report, Value, machine, number
from benchmarks.soak_processes import Sample, leaked_files, slope_percent
from fedgc.errors import BadSetting, EdgeFailed
from fedgc.messages import SUMMED

FEW: Final = 100
MANY: Final = 1000
MOST: Final = 3000
DELAYED: Final = 64
DELAY_S: Final = 0.025  # half of a round trip
TRAINING_S: Final = 10.0
SHORT: Final = 5  # times as many rounds of delayed clients: theirs are short
CHURN_EVERY: Final = 5  # rounds in which each client leaves once


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the benchmark."""

    clients: tuple[int, ...]
    rounds: int
    stop_s: float
    churn_clients: int
    churn_rounds: int
    site_clients: int


USUAL: Final = Size(
    (10, FEW, MANY, MOST), 6, stop_s=15.0, churn_clients=FEW, churn_rounds=200, site_clients=300
)
QUICK: Final = Size((4, 20), rounds=3, stop_s=3.0, churn_clients=0, churn_rounds=0, site_clients=10)


def fleets_of(text: str) -> tuple[int, ...]:
    """Return the numbers of clients of a list.

    >>> fleets_of("100,10")
    (10, 100)
    """
    try:
        clients = tuple(sorted(int(each) for each in text.split(",")))
    except ValueError:
        clients = ()
    if not clients or not all(1 <= each <= 10_000 for each in clients):
        raise BadSetting(f"--clients: saw {text!r}, needed numbers of 1 to 10000, such as 10,100")
    return clients


def bench_fleet(size: Size) -> Report:
    """Measure fleets of these sizes, the smallest first."""
    rows: Rows = [{"what": "load", "load_1m": os.getloadavg()[0]}]
    for clients in size.clients:
        rows += _measured(clients, size, stop_s=size.stop_s if clients == _stopped(size.clients) else 0.0)
    rows += _delayed(size)
    if size.churn_rounds:
        rows += _churned(size)
    rows += fleet_tree.measured(size.site_clients, size.rounds)
    return Report(figures(rows), rows, machine())


def _stopped(clients: Collection[int]) -> int:
    """Return the fleet whose server is stopped, and of which a client's memory is told."""
    return MANY if MANY in clients else max(clients, default=0)


def _measured(clients: int, size: Size, *, stop_s: float) -> Rows:
    """Return the rows of some rounds, and of those after a stop of the server."""
    with fleet_of(f"fleet-{clients}", clients) as fleet, watched(fleet):
        try:
            fleet.rounds(FIRST + size.rounds)
            if stop_s:
                fleet.stop_for(stop_s)
        except EdgeFailed as error:
            fleet.rows.append({"what": "failed", "clients": clients, "reason": str(error)})
    return fleet.rows


def _delayed(size: Size) -> Rows:
    """Return the rows of clients with network latency."""
    with delayed_fleet_of("delayed", min(DELAYED, size.clients[-1]), DELAY_S) as fleet:
        try:
            fleet.rounds(FIRST + SHORT * size.rounds)
        except EdgeFailed as error:
            fleet.rows.append({"what": "failed", "clients": fleet.clients, "reason": str(error)})
    return fleet.rows


def _churned(size: Size) -> Rows:
    with fleet_of("churn", size.churn_clients, CHURN_EVERY, size.churn_rounds) as fleet:
        try:
            fleet.rounds(size.churn_rounds)
        except EdgeFailed as error:
            fleet.rows.append({"what": "failed", "clients": size.churn_clients, "reason": str(error)})
    return fleet.rows


# ---- figures


def figures(rows: Sequence[Mapping[str, Value]]) -> dict[str, Figure]:
    """Return the named figures, None where nothing was measured."""
    ready = {str(row["fleet"]): int(number(row["clients"])) for row in rows if row["what"] == "ready"}
    fleets = {name: n for name, n in ready.items() if name == f"fleet-{n}"}
    spent = {n: _ms_per_client(rows, name, n) for name, n in fleets.items()}
    few = spent.get(FEW)
    growth = {n: each / few if each and few else None for n, each in spent.items()}
    return {
        "server_ms_per_client": {str(n): each for n, each in spent.items()},
        "thread_ms_per_client": _thread_ms_per_client(rows, _stopped(spent)),
        "growth": {str(n): each for n, each in growth.items()},
        f"growth_{MOST}_over_{FEW}": growth.get(MOST),
        "gather_cpu_s": _gather_cpu_s(rows),
        "mb_per_client": _mb_per_client(rows, _stopped(spent)),
        **_after_stop(rows),
        f"overhead_share_{DELAYED}": _overhead_share(rows),
        **_churn(rows),
        "page_updates": next((number(row["updates"]) for row in of(rows, f"fleet-{MANY}", "page")), None),
        **fleet_tree.figures(rows),
    }


def _steady(rows: Sequence[Mapping[str, Value]], fleet: str) -> list[Mapping[str, Value]]:
    """Return the rounds of a fleet before the server is stopped."""
    stops = [number(row["at_s"]) for row in of(rows, fleet, "stop")]
    end = min(stops, default=float("inf"))
    return [row for row in of(rows, fleet, "round") if number(row["at_s"]) < end]


def _ms_per_client(rows: Sequence[Mapping[str, Value]], fleet: str, clients: int) -> float | None:
    rounds = _steady(rows, fleet)[FIRST - 1 :]
    spent = [number(after["cpu_s"]) - number(before["cpu_s"]) for before, after in pairwise(rounds)]
    return 1000.0 * median(spent) / clients if spent else None


def _overhead_share(rows: Sequence[Mapping[str, Value]]) -> float | None:
    begun = [number(row["began_s"]) for row in of(rows, "delayed", "round")[FIRST:]]
    if len(begun) < 2:
        return None
    overhead_s = median(after - before for before, after in pairwise(begun))
    return overhead_s / (TRAINING_S + overhead_s)


def _gather_cpu_s(rows: Sequence[Mapping[str, Value]]) -> float | None:
    name = f"fleet-{MANY}"
    gathered, ready = of(rows, name, "gathered"), of(rows, name, "ready")
    return number(gathered[0]["cpu_s"]) - number(ready[0]["cpu_s"]) if gathered else None


def _mb_per_client(rows: Sequence[Mapping[str, Value]], clients: int) -> float | None:
    name = f"fleet-{clients}"
    rounds, ready = _steady(rows, name), of(rows, name, "ready")
    if not rounds:
        return None
    return (number(rounds[-1]["memory"]) - number(ready[0]["memory"])) / clients / 1e6


def _after_stop(rows: Sequence[Mapping[str, Value]]) -> dict[str, float | None]:
    names = ("back_after_stop_s", "lost_after_stop", "failed_after_stop", "rounds_lost_after_stop")
    stops, over = ([row for row in rows if row["what"] == what] for what in ("stop", "after stop"))
    if not (stops and over):
        return dict.fromkeys(names)
    began = number(stops[0]["at_s"])
    after = [row for row in of(rows, str(stops[0]["fleet"]), "round") if number(row["at_s"]) >= began]
    back = number(after[-1]["at_s"]) - began if over[0]["back"] else None
    lost = sum(number(row["lost"]) for row in after) + number(over[0]["ended"])
    failed = max((number(row["failed"]) for row in after), default=0.0)
    gone = sum(row["outcome"] not in SUMMED for row in after)
    return dict(zip(names, (back, lost, failed, gone), strict=True))


def _thread_ms_per_client(rows: Sequence[Mapping[str, Value]], clients: int) -> dict[str, float | None]:
    rounds = _steady(rows, f"fleet-{clients}")[FIRST - 1 :]
    names = [name for name in (rounds[0] if rounds else ()) if name.endswith("_cpu_s")]
    spent = {name: number(rounds[-1][name]) - number(rounds[0][name]) for name in names}
    each = clients * max(1, len(rounds) - 1)
    return {name.removesuffix("_cpu_s"): 1000.0 * seconds / each for name, seconds in spent.items()}


def _churn(rows: Sequence[Mapping[str, Value]]) -> dict[str, float | None]:
    life = [
        Sample(
            number(row["at_s"]), int(number(row["round"])), number(row["memory"]), int(number(row["files"]))
        )
        for row in of(rows, "churn", "round")
    ]
    times = [after.at - before.at for before, after in pairwise(life)]
    quarter = len(times) // 4
    return {
        "churn_memory_slope": slope_percent([life]) if life else None,
        "churn_time_growth": median(times[-quarter:]) / median(times[:quarter]) if quarter else None,
        "churn_files": leaked_files([life]) if life else None,
    }
