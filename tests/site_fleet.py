"""Sites without Flower: fleets of real drivers, listeners and clients in threads, nested to any depth."""

import logging
import os
import queue
import random
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed
from fedgc.flower.client_loop import ClientLoop, Wait
from fedgc.flower.driver import Driver
from fedgc.flower.job import Job
from fedgc.flower.sink import Sink
from fedgc.flower.site import gateway_line
from fedgc.history import RoundRow, Speeds
from fedgc.links.identity import Identity
from fedgc.links.session.client import Session, Terms
from fedgc.links.session.server import Listener
from fedgc.links.session.sessions import Surroundings
from fedgc.store.checkpoint import Checkpoint
from fedgc.training import CacheFiles, CommonModel, Engine, new_engine, new_script_engine
from fedgc.training.pace import Pace
from fedgc.training.script.connection import ScriptFacts
from fedgc.training.tasks import Task, named
from tests.config_of import config_of
from tests.links.conftest import GRACE_S, WAIT_S
from tests.turns import step_by_turns

SETTINGS: Mapping[str, object] = {
    "task": "digits", "chunks": 8, "threads": 1, "grace_s": GRACE_S, "evaluate_every": 0, "local_steps": 4,
    "shared_momentum": "off", "gate": "every", "lockstep": "on", "aggregator": "weighted-mean",
    "largest_share": 1.0, "start_timeout_s": WAIT_S, "learning_rate": 0.2, "quorum": 1.0,
}  # fmt: skip
TELLS = (  # in place of `fedgc gateway`: where the gateway is, and nothing else
    "import os, sys, time; new = sys.argv[1] + '.new'; open(new, 'w').write(os.environ['FEDGC_CLIENT']); "
    "os.rename(new, sys.argv[1])\nwhile os.path.exists(sys.argv[1]): time.sleep(0.05)"
)


GATEWAYS = 100  # their identities are other numbers than those of chunks


class Rows(Sink):
    """A sink that keeps the rows of rounds."""

    def __init__(self) -> None:
        self.rows: list[RoundRow] = []

    def append(self, row: RoundRow) -> None:
        self.rows.append(row)


@dataclass(slots=True)
class Fleet:
    """A server and its members: chunks of digits, one for each client, or fleets with their own servers."""

    folder: Path
    members: Sequence["int | Fleet"]
    settings: Mapping[str, object]
    pace_s: float = 0.0
    resume: Checkpoint | None = None
    sink: Rows = field(default_factory=Rows)
    saved: list[Checkpoint] = field(default_factory=list)
    model: CommonModel | None = None
    driver: Driver | None = None
    reason: str = ""
    killed: threading.Event = field(default_factory=threading.Event)  # ends its gateway, which comes back
    again: "Fleet | None" = None  # with its next gateway

    @property
    def config(self) -> RunConfig:
        return config_of({**SETTINGS, "min_clients": len(self.members), **self.settings})

    def run(self, gateway: Path | None = None) -> None:
        """Run to the end, with all members."""
        config, log = self.config, logging.getLogger("test")
        model = CommonModel(task_of(config, range(config.chunks)), config)
        events: queue.SimpleQueue[object] = queue.SimpleQueue()
        around = Surroundings(time.monotonic, os.urandom, time.time, log)
        listener = Listener(config, "run-1", model.size, events.put, around)
        listener.start()
        threads = [
            threading.Thread(target=self._take_part, args=(n, listener)) for n in range(len(self.members))
        ]
        with gateway_line(str(gateway or "")) as line:
            job = Job(model, config, self.sink, Speeds(), self.saved.append, self.resume, gateway=line)
            self.driver = Driver(job, time.monotonic, log, events)
            for thread in threads:
                thread.start()
            try:
                end = self.driver.drive(listener)
                self.reason = end.reason
            finally:
                listener.close(self.reason, complete=bool(self.reason) and end.complete)
                for thread in threads:
                    thread.join(WAIT_S)

    def _take_part(self, number: int, listener: Listener) -> None:
        member, folder = self.members[number], self.folder / f"member-{number}"
        if isinstance(member, int):
            self._follow(listener, lambda rest: self._client(member, folder, rest), member)
            return
        self._lead(listener, member, folder, GATEWAYS + number)
        if member.killed.is_set():
            member.again = replace(member, resume=member.saved[-1], sink=Rows(), killed=threading.Event())
            self._lead(listener, member.again, self.folder / f"member-{number}-again", GATEWAYS + number)

    def _lead(self, listener: Listener, member: "Fleet", folder: Path, who: int) -> None:
        """Run a site and its gateway."""
        place = folder / "gateway"
        server = threading.Thread(target=served, args=(member, place))
        server.start()
        self._follow(listener, lambda rest: self._gateway(place, folder, rest), who, member.killed)
        server.join(WAIT_S)

    def _client(self, chunk: int, folder: Path, rest: Wait) -> Engine:
        task, pace = task_of(self.config, [chunk]), Pace(time.monotonic, rest, self.pace_s)
        engine = new_engine(task, self.config, pace, folder / "spill", files=CacheFiles(folder / "cache"))
        return engine if self.pace_s else step_by_turns(engine)

    def _gateway(self, place: Path, folder: Path, rest: Wait) -> Engine:
        folder.mkdir(parents=True, exist_ok=True)
        command = shlex.join([sys.executable, "-c", TELLS, str(place)])
        facts = ScriptFacts(self.config, "gateway", {}, folder / "state", pinned=command)
        return new_script_engine(facts, rest, folder / "spill", CacheFiles(folder / "cache"))

    def _follow(
        self,
        listener: Listener,
        make: Callable[[Wait], Engine],
        number: int,
        killed: threading.Event | None = None,
    ) -> None:
        loop = ClientLoop(make)
        terms = Terms(GRACE_S, 64 * 1024, 0, time.monotonic, random.random)
        who = Identity(bytes([number] * 32))  # it seeds its batches
        with Session(listener.invite(), who, terms) as session:
            if killed is not None:
                threading.Thread(target=lambda: killed.wait() and session.end("killed"), daemon=True).start()
            loop.serve(session, who.client)
        loop.engine.close(complete=session.complete)


def served(fleet: Fleet, place: Path) -> None:
    """Run a site's server once its gateway has told where it is."""
    end = time.monotonic() + WAIT_S
    while not place.exists():
        if time.monotonic() > end:
            raise EdgeFailed(f"{place}: no gateway has come")
        time.sleep(0.01)
    try:
        fleet.run(place)
    finally:
        place.unlink(missing_ok=True)


def task_of(config: RunConfig, chunks: Sequence[int]) -> Task:
    """Return the digits in these chunks."""
    task = named("digits", config)
    names = [name for number, name in enumerate(task.chunks) if number in chunks]
    return replace(task, chunks={name: task.chunks[name] for name in names})
