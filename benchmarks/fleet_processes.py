"""One fleet of the fleet benchmark: a server and its clients, each in a process."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from benchmarks.fleet_clients import crowds, serve_all
from benchmarks.fleet_page import open_page
from benchmarks.fleet_server import NUMBERS, Place, serve
from benchmarks.latency_relay import delayed
from benchmarks.report import Value, number
from fedgc.config import RunConfig
from fedgc.deploy.local_federation import free_port
from fedgc.errors import EdgeFailed
from fedgc.links.frames import Invitation

Rows = list[dict[str, Value]]

WAIT_S: Final = 240.0  # for the next row
FIRST: Final = 1  # practice rounds
SPARE: Final = 2  # invitations of a client whose session was lost
GRACE_S: Final = 20.0  # a hundred clients in one process are silent for longer than the usual half


@dataclass(slots=True)
class Fleet:
    """A server and its clients, each in a process, and what the server has told."""

    name: str
    config: RunConfig
    pid: int  # of the server
    pipe: Connection  # to it
    invitations: Sequence[Invitation] = ()
    processes: list[Any] = field(default_factory=list)
    crowds: list[Connection] = field(default_factory=list)  # to the clients
    rows: Rows = field(default_factory=list)
    size: int = NUMBERS  # of a vector
    database: Path = Path()  # of the server's store

    def bring(self, numbers: range, leaves_every: int = 0, *, awake: bool = False) -> None:
        """Start the processes of the clients; `awake` ones look for commands more often."""
        context = get_context("spawn")
        every = crowds(self.config, numbers, leaves_every, self.size, awake=awake)
        for n, crowd in enumerate(every):
            ours, theirs = context.Pipe()
            given = (crowd, self.invitations[n :: len(every)], theirs)
            process = context.Process(target=serve_all, args=given, daemon=True)
            process.start()
            self.processes.append(process)
            self.crowds.append(ours)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return self.config.min_clients

    def rounds(self, count: int) -> None:
        """Wait for so many more rounds."""
        while count:
            count -= self.next()["what"] == "round"

    def next(self) -> dict[str, Value]:
        """Return the next thing that the server tells."""
        told: dict[str, Value] = self.hear()
        self.rows.append({"fleet": self.name, "clients": self.clients, **told})
        return told

    def hear(self) -> Any:  # noqa: ANN401  invitations, or a row
        """Return what the server sends next."""
        try:
            if not self.pipe.poll(WAIT_S):
                raise EdgeFailed(f"{self.name}: saw no round within {WAIT_S:g} s")
            return self.pipe.recv()
        except EOFError as error:
            raise EdgeFailed(f"{self.name}: the server has ended") from error

    def end(self) -> None:
        """End the run, and hear the rest."""
        with suppress(BrokenPipeError):  # it has ended by itself
            self.pipe.send("over")
        self.hear_all()

    def hear_all(self) -> None:
        """Hear the rest of a run that ends."""
        while self.next()["what"] != "over":
            pass

    def stop_for(self, seconds: float) -> None:
        """Stop the server, and wait until a round counts all clients again."""
        os.kill(self.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self.pid, signal.SIGCONT)
        continued_s, back = time.monotonic(), False
        about: dict[str, Value] = {"fleet": self.name, "clients": self.clients, "stop_s": seconds}
        self.rows.append({"what": "stop", **about, "at_s": continued_s})
        while not back and time.monotonic() < continued_s + WAIT_S:
            told = self.next()
            back = number(told["began_s"]) >= continued_s and told["counted"] == self.clients
        for crowd in self.crowds:
            crowd.send("count")
        ended = sum(crowd.recv() for crowd in self.crowds)
        self.rows.append({"what": "after stop", **about, "ended": ended, "back": back})


def config_of(clients: int, receivers: int = 1) -> RunConfig:
    """Return the settings of a run with so many clients."""
    return RunConfig(
        gate="every",
        rounds=10**6,
        min_clients=clients,
        start_timeout_s=WAIT_S,
        evaluate_every=0,
        link="session",
        grace_s=GRACE_S,
        receivers=receivers,
    )


@contextmanager
def fleet_of(
    name: str,
    clients: int,
    leaves_every: int = 0,
    rounds: int = 0,
    *,
    receivers: int = 1,
    size: int = NUMBERS,
) -> Iterator[Fleet]:
    """Start a server and its clients; end both. `size` is that of a vector, in numbers."""
    again = clients * rounds // leaves_every if leaves_every else SPARE * clients
    with (
        tempfile.TemporaryDirectory(prefix="fedgc-bench-") as folder,
        served(name, config_of(clients, receivers), clients + again, Path(folder), size) as fleet,
        _ended(fleet),
    ):
        fleet.bring(range(clients), leaves_every)
        yield fleet


@contextmanager
def watched(fleet: Fleet) -> Iterator[None]:
    """Open the page of a fleet's run while the block runs; then a row tells how often it was updated."""
    with open_page(fleet.database) as page:
        yield
        page.send("count")
        about: dict[str, Value] = {"fleet": fleet.name, "clients": fleet.clients}
        fleet.rows.append({**about, "what": "page", "updates": page.recv()})


@contextmanager
def delayed_fleet_of(name: str, clients: int, delay_s: float) -> Iterator[Fleet]:
    """Start a server and clients whose bytes take so many seconds in each direction; end both."""
    port = free_port()
    with (
        tempfile.TemporaryDirectory(prefix="fedgc-bench-") as folder,
        delayed(port, delay_s) as near,
        served(name, _behind(config_of(clients), near, port), (1 + SPARE) * clients, Path(folder)) as fleet,
        _ended(fleet),
    ):
        fleet.bring(range(clients), awake=True)
        yield fleet


@contextmanager
def _ended(fleet: Fleet) -> Iterator[None]:
    """End the run of a fleet after the block."""
    yield
    with suppress(EdgeFailed):  # it has ended by itself
        fleet.end()


def _behind(config: RunConfig, near: int, port: int) -> RunConfig:
    return replace(config, bind=f"127.0.0.1:{port}", advertise=f"127.0.0.1:{near}")


@contextmanager
def served(
    name: str, config: RunConfig, invitations: int, folder: Path, size: int = NUMBERS
) -> Iterator[Fleet]:
    """Start a server, with its store in the folder; end it and the processes of its fleet."""
    context = get_context("spawn")
    pipes = context.Pipe()
    place = Place(config, invitations, environment(folder), size)
    server = context.Process(target=serve, args=(place, pipes[1]), daemon=True)
    server.start()
    pipes[1].close()  # so that its end is noticed
    fleet = Fleet(
        name,
        config,
        int(server.pid or 0),
        pipes[0],
        processes=[server],
        size=size,
        database=database(folder),
    )
    try:
        fleet.invitations = fleet.hear()
        fleet.next()
        yield fleet
        server.join(WAIT_S)
    finally:
        for process in reversed(fleet.processes):
            process.kill()
            process.join()


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a server with its store in this folder."""
    return {"FEDGC_DB": str(database(folder)), "XDG_STATE_HOME": str(folder)}


def database(folder: Path) -> Path:
    """Return the store of a server in this folder."""
    return folder / "fedgc.db"


def of(rows: Sequence[Mapping[str, Value]], fleet: str, what: str) -> list[Mapping[str, Value]]:
    """Return what was told of a fleet, without the round that was stopped at the end."""
    found = [row for row in rows if (row.get("fleet"), row["what"]) == (fleet, what)]
    return [row for row in found if row.get("outcome") != "stopped"]
