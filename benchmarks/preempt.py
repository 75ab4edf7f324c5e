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
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from logging import getLogger
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.report import Report, Value, machine
from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed
from fedgc.flower.client_loop import ClientLoop
from fedgc.flower.departure import Departure
from fedgc.flower.driver import Driver
from fedgc.flower.job import Job
from fedgc.flower.sink import Sink
from fedgc.history import RoundRow, Speeds
from fedgc.links.frames import Invitation
from fedgc.links.identity import Identity
from fedgc.links.session.client import Session, Terms
from fedgc.links.session.server import Listener
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Stop
from fedgc.training import CommonModel, new_engine
from fedgc.training.pace import Pace
from fedgc.training.tasks import Task

CLIENTS: Final = 4
QUICK_DEPARTURES: Final = 2
STEP_S: Final = 0.02
APART_S: Final = (3.0, 9.0)  # between two signals
WAIT_S: Final = 120.0
SAMPLES: Final = 8
CONFIG: Final = RunConfig(
    work="local",
    gate="every",
    gate_period=5,
    local_steps=25,
    rounds=10**6,
    min_clients=CLIENTS,
    threads=1,
    grace_s=2.0,
    evaluate_every=0,
)


@dataclass(frozen=True, slots=True)
class _Place:
    """What a client's process needs."""

    invitation: Invitation
    key: bytes
    steps: Any  # a shared counter of the steps that it has begun


class _Client:
    """A client in a process of its own."""

    def __init__(self, context: Any, listener: Listener) -> None:  # noqa: ANN401  a context of processes
        key = Ed25519PrivateKey.generate()
        self.name = Identity(key).client
        self._steps = context.Value("q", 0, lock=False)
        place = _Place(listener.invite(), key.private_bytes_raw(), self._steps)
        self.process = context.Process(target=_serve, args=(place,), daemon=True)
        self.process.start()

    @property
    def steps(self) -> int:
        return int(self._steps.value)


class _Rows(Sink):
    """Adds up the steps of each client that entered an exchange."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()

    def append(self, row: RoundRow) -> None:
        for client in row.clients:
            self.counted[client.client] += client.counted


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
    torch.set_num_threads(1)
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    sink, log = _Rows(), getLogger("benchmarks")
    driver = Driver(Job(CommonModel(_task(), CONFIG), CONFIG, sink, Speeds()), time.monotonic, log)
    around = Surroundings(time.monotonic, os.urandom, time.time, log)
    listener = Listener(CONFIG, "bench", driver.common.size, driver.events.put, around)
    listener.start()
    thread = threading.Thread(target=driver.drive, args=(listener,), daemon=True)
    thread.start()
    clients = [_Client(context, listener) for _ in range(CLIENTS)]
    chance, rows = random.Random(1), list[dict[str, Value]]()  # noqa: S311  moments, not secrets
    try:
        for number in range(2 * count):
            _wait_for_exchange(sink, clients)
            time.sleep(chance.uniform(*APART_S))
            leaving = clients.pop(chance.randrange(CLIENTS))
            rows.append(_ended(leaving, signal.SIGKILL if number % 2 else signal.SIGTERM, sink))
            clients.append(_Client(context, listener))
    finally:
        driver.events.put(Stop(time.monotonic(), "the benchmark is over", complete=True))
        thread.join(WAIT_S)
        listener.close("the benchmark is over")
        for client in clients:
            client.process.kill()
            client.process.join()
    return rows


def _wait_for_exchange(sink: _Rows, clients: Sequence[_Client]) -> None:
    """Wait until all clients have taken part in an exchange."""
    end = time.monotonic() + WAIT_S
    while not all(sink.counted[client.name] for client in clients):
        if time.monotonic() > end:
            raise EdgeFailed(f"no exchange with all {CLIENTS} clients within {WAIT_S:g} s")
        time.sleep(0.05)


def _ended(client: _Client, number: signal.Signals, sink: _Rows) -> dict[str, Value]:
    """Send a client this signal; return what became of its steps once the server has taken note."""
    before, began = sink.counted[client.name], time.monotonic()
    os.kill(client.process.pid, number)
    client.process.join(WAIT_S)
    ends_s = time.monotonic() - began
    time.sleep(2.0 * CONFIG.grace_s)  # the row of its last round is written, or its loss is noted
    return {
        "signal": number.name,
        "at_stake": client.steps - before,
        "kept": sink.counted[client.name] - before,
        "ends_s": ends_s,
    }


# ---- the process of a client


def _task(steps: Any = None) -> Task:  # noqa: ANN401  a shared counter
    def loss(module: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if steps is not None:
            steps.value += 1
        error: torch.Tensor = module(batch[0]).square().mean()
        return error

    return Task(
        model=lambda: torch.nn.Linear(16, 1),
        chunks={"part": SAMPLES},
        load=lambda _: (torch.ones(SAMPLES, 16),),
        loss=loss,
    )


def _serve(place: _Place) -> None:
    torch.set_num_threads(1)
    departure = Departure()
    who = Identity(Ed25519PrivateKey.from_private_bytes(place.key))
    with departure.heard(), tempfile.TemporaryDirectory(prefix="fedgc-bench-") as folder:
        loop = ClientLoop(
            lambda rest: new_engine(
                _task(place.steps), CONFIG, Pace(time.monotonic, rest, STEP_S), Path(folder)
            ),
            departure=departure,
        )
        terms = Terms(CONFIG.grace_s, CONFIG.piece_kb * 1024, loop.engine.size, time.monotonic, random.random)
        with Session(place.invitation, who, terms) as session:
            loop.serve(session, who.client)
