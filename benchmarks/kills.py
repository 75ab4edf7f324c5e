"""`python -m benchmarks kills`: what a killed client costs, beside torchft's LocalSGD and Flower's FedAvg.

Four processes train, each with 50 steps a second, and exchange after every 125 steps. At an interval one of
them is ended, by SIGTERM (and by SIGKILL, if it still lives after 20 s) or by SIGKILL at once, and another
one starts in its place. The moments and the processes are the same for all. fedgc and torchft run at the same
time, with some seconds between the kills of one and those of the next, so that one new process starts at a
time. Flower runs after them: it starts a process for each message, which needs all processors.

A part begins and ends with an exchange. A step is useful if it entered the common model. A row has the share
of useful steps among all that four processes could do in the time. The parts without kills come first. What a
kill costs, in steps, is the difference in useful steps from the part without kills, divided by the number of
kills: it includes the steps of the killed process, those that others could not do while they waited, and
those of the new process that were replaced by another model.

torchft can be in an interpreter of its own (`--torchft-python`); a row says if it is missing.

Figures:

    useful_over_torchft           share of useful steps of fedgc over that of torchft, by signal and interval
    useful_over_flower            the same over Flower's FedAvg
    kept_percent                  share of a killed process's steps, if not yet in the common model at that
                                  moment, that entered it, by framework and signal
    kill_costs_steps              what a kill costs at the shortest interval, by framework and signal
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from signal import SIGKILL, SIGTERM, Signals
from threading import Barrier, Lock
from typing import Final

from benchmarks.killed.work import CLIENTS, STEP_S
from benchmarks.kills_arms import READY_S, Arm, Fedgc, Flower, Kill, Torchft, lacks
from benchmarks.report import Report, Value, machine, number

SIGNALS: Final = (SIGTERM, SIGKILL)
SPREAD_S: Final = 7.5  # in which a kill's moment is drawn
APART_S: Final = 3.0  # from the kills of one that runs to those of the next
BETWEEN_S: Final = 20.0  # two parts, in which an exchange ends


@dataclass(frozen=True, slots=True)
class Cell:
    """A part of the measurement: a kill in each interval, or one interval without a kill."""

    every_s: float
    kills: int

    @property
    def seconds(self) -> float:
        """Return how long it takes."""
        return self.every_s * max(1, self.kills)


@dataclass(frozen=True, slots=True)
class Size:
    """The parts for each framework."""

    cells: Sequence[Cell]
    flower: Sequence[Cell]


USUAL: Final = Size(
    (Cell(60.0, 0), Cell(15.0, 12), Cell(60.0, 5), Cell(300.0, 3)),
    (Cell(120.0, 0), Cell(15.0, 12), Cell(60.0, 5)),
)
QUICK: Final = Size((Cell(6.0, 0), Cell(8.0, 2)), ())
Made = Callable[[], Arm]


@dataclass(frozen=True, slots=True)
class Entry:
    """A framework under one signal."""

    name: str
    signal: Signals
    made: Made
    later_s: float = 0.0  # than the first of those that run together


def bench_kills(size: Size, torchft_python: str) -> Report:
    """Measure all frameworks."""
    rows = list[Mapping[str, Value]]()
    beside = {"fedgc": Fedgc, "torchft": lambda: Torchft(torchft_python)}
    if missing := lacks(torchft_python, "torchft"):
        rows.append({"framework": "torchft", "skipped": missing})
        del beside["torchft"]
    kinds = [(name, each, made) for name, made in beside.items() for each in SIGNALS]
    rows += _together([Entry(*kind, at * APART_S) for at, kind in enumerate(kinds)], size.cells)
    if size.flower:
        for each in SIGNALS:
            rows += _together([Entry("flower", each, Flower)], size.flower)
    return Report(figures(rows), rows, machine(), [1])


def _together(entries: Sequence[Entry], cells: Sequence[Cell]) -> list[Mapping[str, Value]]:
    """Run frameworks at the same time."""
    gates = Barrier(len(entries)), Lock()
    with ThreadPoolExecutor(len(entries)) as pool:
        return [
            row for rows in pool.map(lambda entry: _measured(entry, cells, *gates), entries) for row in rows
        ]


def _measured(entry: Entry, cells: Sequence[Cell], ready: Barrier, starts: Lock) -> list[dict[str, Value]]:
    """Run a framework through the parts; return a row for each."""
    with ExitStack() as stack:
        with starts:  # one after the other
            arm = stack.enter_context(entry.made())
            arm.wait()
        ready.wait(READY_S)
        rows, calm, begins = list[dict[str, Value]](), 0.0, time.monotonic() + entry.later_s
        for cell in cells:
            time.sleep(max(0.0, begins - time.monotonic()))
            begins += cell.seconds + BETWEEN_S
            row = _part(arm, cell, entry.signal)
            if not cell.kills:
                calm = number(row["useful_percent"])
            else:
                possible = number(row["seconds"]) * CLIENTS / STEP_S
                lost = (calm - number(row["useful_percent"])) / 100.0 * possible
                row["kill_costs_steps"] = lost / cell.kills
            rows.append({"framework": entry.name, "signal": entry.signal.name, **row})
    return rows


def _part(arm: Arm, cell: Cell, how: Signals) -> dict[str, Value]:
    arm.exchange()
    began, begun, counted = time.monotonic(), arm.begun(), arm.counted()
    kills = list[Kill]()
    for after_s, slot in moments(cell):
        time.sleep(max(0.0, began + after_s - time.monotonic()))
        kills.append(arm.kill(slot, how))
    time.sleep(max(0.0, began + cell.seconds - time.monotonic()))
    arm.exchange()
    seconds = time.monotonic() - began
    done, useful = arm.begun() - begun, arm.counted() - counted
    return {
        "kill_every_s": cell.every_s if cell.kills else None,
        "kills": cell.kills,
        "seconds": seconds,
        "steps": done,
        "useful": useful,
        "useful_percent": 100.0 * useful * STEP_S / (CLIENTS * seconds),
        "at_stake": sum(kill.at_stake for kill in kills),
        "kept": sum(kill.kept for kill in kills),
    }


def moments(cell: Cell) -> Iterator[tuple[float, int]]:
    """Yield the moments of a part's kills, and the slots."""
    chance = random.Random(1)  # noqa: S311  moments, not secrets
    for kill in range(cell.kills):
        yield (
            kill * cell.every_s + chance.uniform(0.0, min(SPREAD_S, cell.every_s / 2)),
            chance.randrange(CLIENTS),
        )


def figures(rows: Sequence[Mapping[str, Value]]) -> dict[str, Mapping[str, float | None]]:
    """Return the figures of these rows."""
    useful = {
        (str(row["framework"]), f"{row['signal']} {row['kill_every_s']:g} s"): number(row["useful_percent"])
        for row in rows
        if row.get("kills")
    }
    of_kind = dict[str, list[Mapping[str, Value]]]()
    for row in rows:
        if row.get("kills"):
            of_kind.setdefault(f"{row['framework']} {row['signal']}", []).append(row)
    return {
        "useful_over_torchft": _over(useful, "torchft"),
        "useful_over_flower": _over(useful, "flower"),
        "kept_percent": {name: _kept(each) for name, each in of_kind.items()},
        "kill_costs_steps": {
            name: number(min(each, key=lambda row: number(row["kill_every_s"]))["kill_costs_steps"])
            for name, each in of_kind.items()
        },
    }


def _over(useful: Mapping[tuple[str, str], float], other: str) -> dict[str, float | None]:
    return {
        what: useful["fedgc", what] / steps if steps else float("inf")
        for (name, what), steps in useful.items()
        if name == other
    }


def _kept(rows: Sequence[Mapping[str, Value]]) -> float | None:
    at_stake = sum(number(row["at_stake"]) for row in rows)
    return 100.0 * sum(number(row["kept"]) for row in rows) / at_stake if at_stake else None


def text_lines(report: Report) -> Iterator[str]:
    """Yield a line for each row."""
    for row in report.rows:
        if "skipped" in row:
            yield f"{row['framework']} skipped: {row['skipped']}"
            continue
        every = f"a kill every {row['kill_every_s']:g} s" if row["kills"] else "no kill"
        line = f"{row['framework']:8} {row['signal']:8} {every:20} {row['useful_percent']:5.1f}% useful"
        if row["kills"]:
            line += f"  {row['kill_costs_steps']:6.0f} steps a kill  {row['kept']} of {row['at_stake']} kept"
        yield line
