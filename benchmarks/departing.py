"""A server in this process, and clients in processes of their own whose steps are counted.

Clients train over sessions, and exchange every 125 steps, in rounds of fewer steps or in one. The steps that
a client has begun are in shared memory, so that a SIGKILL does not lose their number; those that entered an
exchange are the server's.
"""

import os
import random
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from logging import getLogger
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import torch

from benchmarks.killed.work import CLIENTS, EVERY, SAMPLES, STEP_S, WIDTH, network
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

WAIT_S: Final = 120.0
GRACE_S: Final = 2.0
INVITATIONS: Final = 5  # of a client: Flower sends one with each message, if its session was lost


def settings(period: int) -> RunConfig:
    """Return the settings of a run with `period` rounds between two exchanges."""
    return RunConfig(
        work="local",
        gate="every",
        gate_period=period,
        local_steps=EVERY // period,
        rounds=10**6,
        min_clients=CLIENTS,
        threads=1,
        grace_s=GRACE_S,
        evaluate_every=0,
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """What a client's process needs."""

    invitations: Sequence[Invitation]  # to be used in turn
    key: bytes
    steps: Any  # a shared counter of the steps that it has begun
    config: RunConfig


class Client:
    """A client in a process of its own, with its steps that were begun, and those that were exchanged."""

    def __init__(self, context: Any, listener: Listener, config: RunConfig, counted: Counter[str]) -> None:  # noqa: ANN401  a context of processes
        key = secrets.token_bytes(32)
        self.name = Identity(key).client
        self._steps = context.Value("q", 0, lock=False)
        self._counted = counted
        place = _Place([listener.invite() for _ in range(INVITATIONS)], key, self._steps, config)
        self.process = context.Process(target=_serve, args=(place,), daemon=True)
        self.process.start()

    @property
    def begun(self) -> int:
        """Return the steps that it has begun."""
        return int(self._steps.value)

    @property
    def counted(self) -> int:
        """Return its steps that entered an exchange."""
        return self._counted[self.name]


class _Rows(Sink):
    """Adds up the steps of each client that entered an exchange."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()

    def append(self, row: RoundRow) -> None:
        for client in row.clients:
            self.counted[client.client] += client.counted


class Fleet:
    """The server and its clients; it starts without any."""

    def __init__(self, period: int) -> None:
        torch.set_num_threads(1)
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        sink, log = _Rows(), getLogger("benchmarks")
        self._counted = sink.counted
        self._config = config = settings(period)
        common = CommonModel(_task(), config)
        self._driver = Driver(Job(common, config, sink, Speeds()), time.monotonic, log)
        around = Surroundings(time.monotonic, os.urandom, time.time, log)
        self._listener = Listener(config, "bench", common.size, self._driver.events.put, around)
        self._thread = threading.Thread(target=self._driver.drive, args=(self._listener,), daemon=True)
        self._clients = list[Client]()

    def __enter__(self) -> Self:
        self._listener.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server and all clients."""
        self._driver.events.put(Stop(time.monotonic(), "the benchmark is over", complete=True))
        self._thread.join(WAIT_S)
        self._listener.close("the benchmark is over")
        for client in self._clients:
            client.process.kill()
            client.process.join()

    def start(self) -> Client:
        """Start another client."""
        client = Client(self._context, self._listener, self._config, self._counted)
        self._clients.append(client)
        return client


def wait_for_exchange(clients: Sequence[Client]) -> None:
    """Wait until all clients have taken part in an exchange."""
    end = time.monotonic() + WAIT_S
    while not all(client.counted for client in clients):
        if time.monotonic() > end:
            raise EdgeFailed(f"no exchange with all {len(clients)} clients within {WAIT_S:g} s")
        time.sleep(0.05)


# ---- the process of a client


def _task(steps: Any = None) -> Task:  # noqa: ANN401  a shared counter
    def loss(module: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if steps is not None:
            steps.value += 1
        error: torch.Tensor = module(batch[0]).square().mean()
        return error

    return Task(
        model=network,
        chunks={"part": SAMPLES},
        load=lambda _: (torch.ones(SAMPLES, WIDTH),),
        loss=loss,
    )


def _serve(place: _Place) -> None:
    torch.set_num_threads(1)
    departure, config = Departure(), place.config
    who = Identity(place.key)
    with departure.heard(), tempfile.TemporaryDirectory(prefix="fedgc-bench-") as folder:
        loop = ClientLoop(
            lambda rest: new_engine(
                _task(place.steps), config, Pace(time.monotonic, rest, STEP_S), Path(folder)
            ),
            departure=departure,
        )
        terms = Terms(config.grace_s, config.piece_kb * 1024, loop.engine.size, time.monotonic, random.random)
        for invitation in place.invitations:
            with Session(invitation, who, terms) as session:
                loop.serve(session, who.client)
            if session.complete or departure.asked:
                return
