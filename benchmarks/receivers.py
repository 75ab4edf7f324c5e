"""`python -m benchmarks receivers`: what several receivers gain, and what they cost.

The fleets are those of `benchmarks.fleet`, with vectors of 100 kB (`small`) and of 4 MB (`large`). A round
takes at least as long as its busiest process, once each has a core; on fewer cores the time of a round says
nothing of that, so the figures are of processor time.

    small_busiest_ms, large_busiest_ms  by receivers: processor time of the busiest process of the server, for
                                        a client in a round
    small_total_ms, large_total_ms      the same of all processes of the server
    small_gain, large_gain              by receivers: busiest_ms of one over that of so many
    rounds_lost                         rounds that made no model, or did not count all clients
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.fleet_processes import FIRST, Rows, fleet_of, of
from benchmarks.report import Figure, Report, Value, machine, number
from fedgc.errors import EdgeFailed
from fedgc.messages import SUMMED


@dataclass(frozen=True, slots=True)
class Load:
    """A fleet: how many clients, and how many numbers their vectors have."""

    name: str
    clients: int
    numbers: int


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the benchmark."""

    loads: tuple[Load, ...]
    receivers: tuple[int, ...]
    rounds: int


USUAL: Final = Size((Load("small", 1000, 25_000), Load("large", 60, 1_000_000)), (1, 2, 3), 6)
QUICK: Final = Size((Load("small", 20, 25_000), Load("large", 6, 1_000_000)), (1, 2), 3)


def bench_receivers(size: Size) -> Report:
    """Measure each load with each number of receivers."""
    rows: Rows = [{"what": "load", "load_1m": os.getloadavg()[0]}]
    for load in size.loads:
        for receivers in size.receivers:
            name = f"{load.name}-{receivers}"
            with fleet_of(name, load.clients, receivers=receivers, size=load.numbers) as fleet:
                try:
                    fleet.rounds(FIRST + size.rounds)
                except EdgeFailed as error:
                    fleet.rows.append({"what": "failed", "fleet": name, "reason": str(error)})
            rows += fleet.rows
    return Report(figures(rows), rows, machine())


def figures(rows: Sequence[Mapping[str, Value]]) -> dict[str, Figure]:
    """Return the named figures, None where nothing was measured."""
    found: dict[str, Figure] = {}
    for load in ("small", "large"):
        fleets = [str(row["fleet"]) for row in rows if row["what"] == "ready"]
        spent = {
            name.removeprefix(f"{load}-"): _spent_ms(of(rows, name, "round"))
            for name in fleets
            if name.startswith(f"{load}-")
        }
        busiest = {receivers: each and each[0] for receivers, each in spent.items()}
        one = busiest.get("1")
        found[f"{load}_busiest_ms"] = busiest
        found[f"{load}_total_ms"] = {receivers: each and each[1] for receivers, each in spent.items()}
        found[f"{load}_gain"] = {
            receivers: one / each if one and each else None for receivers, each in busiest.items()
        }
    return {**found, "rounds_lost": _rounds_lost(rows)}


def _spent_ms(rounds: Sequence[Mapping[str, Value]]) -> tuple[float, float] | None:
    """Return the processor time for a client in a round: of the busiest process, and of all."""
    steady = rounds[FIRST - 1 :]
    if len(steady) < 1 + 1:
        return None
    each = 1000.0 / number(steady[0]["clients"]) / (len(steady) - 1)
    own, receivers, busiest = (
        each * (number(steady[-1].get(name)) - number(steady[0].get(name)))
        for name in ("cpu_s", "receivers_cpu_s", "busiest_receiver_cpu_s")
    )
    return max(own, busiest), own + receivers


def _rounds_lost(rows: Sequence[Mapping[str, Value]]) -> int:
    rounds = [row for row in rows if row["what"] == "round" and row["outcome"] != "stopped"]
    return sum(row["outcome"] not in SUMMED or row["counted"] != row["clients"] for row in rounds)
