"""Reference clients of a coded round with real updates, for tests of rounds."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from benchmarks.codewords import encode
from fedgc.codecs import Wire, pack, unpack
from fedgc.gates import Decision
from fedgc.history import Speed, Speeds
from fedgc.messages import (
    Add,
    Close,
    Codeword,
    Command,
    Failed,
    Held,
    Joined,
    Kept,
    Progress,
    Refuse,
    Repair,
    Reveal,
    Skip,
    Take,
)
from fedgc.round.machine import Assignment, Round, State
from fedgc.round.plan import Chunk, Fleet, Plan, make_plan
from fedgc.sim.clock.reference_client import ReferenceClient, Reported, Trajectory
from tests.config_of import config_of

SIZE = 7  # numbers in an update: divisible by no number of blocks but one
TARGET = 4
ONE, OTHER = (1.0,) * 16, (2.0,) * 16


def sync(_: object) -> Decision:
    return Decision(sync=True, reason="every round")


def planned(
    clients: int,
    chunks: int,
    *,
    replicas: int | str,
    blocks: int | str,
    uplink: float | None = None,
    lag: float = 1.0,
    settings: Mapping[str, object] = MappingProxyType({}),
    held: Sequence[Collection[int]] | None = None,
) -> Plan:
    """A plan in which every client can load every chunk; the first one's uplink lags behind the others'.

    Or each can load the chunks of the numbers that it has `held`; what nobody holds leaves a gap.
    """
    table = tuple(Chunk(number, f"chunk {number}", 10) for number in range(chunks))
    names = [f"client {w}" for w in range(clients)]
    held = held or [range(chunks)] * clients
    fleet = Fleet({name: frozenset(each) for name, each in zip(names, held, strict=True)}, table, SIZE)
    known = {}
    if uplink:
        known = {
            name: Speed(name, 0.1, up_bytes_s=uplink / (1.0 if w else lag)) for w, name in enumerate(names)
        }
    config = config_of(
        {
            "work": "coded",
            "replicas": replicas,
            "blocks": blocks,
            "deadline_s": 100,
            "upload_deadline_s": 50,
            "late_s": 0.5,
            **settings,
        }
    )
    return make_plan(fleet, Speeds(known), config, steps=TARGET)


def order_of(at: ReferenceClient) -> list[int]:
    """Return the chunks that a client will report, in order."""
    current = [] if at.current is None else [at.current]
    return [*at.again, *current, *reversed(at.queue)]


class Clients:
    """Reference clients with real vectors; they never forget a request."""

    def __init__(self, plan: Plan, seed: int = 0, size: int = SIZE) -> None:
        self.plan = plan
        self.size = size
        rng = np.random.default_rng(seed)
        self.updates = {chunk.number: rng.normal(size=size) for chunk in plan.chunks}
        self.at = {client: ReferenceClient(client) for client in plan.clients}
        self.requests: dict[tuple[str, int], Reveal | Repair] = {}
        self.made: dict[tuple[str, int], np.ndarray] = {}
        self.unsent: list[tuple[str, int]] = []
        self.sums: np.ndarray | None = None
        self.terms: list[tuple[str, int]] = []
        self.closed: list[Close] = []
        self.refused: list[Refuse] = []

    @property
    def queue(self) -> dict[str, list[int]]:
        """The chunks that each client will report, in order."""
        return {client: order_of(at) for client, at in self.at.items()}

    @property
    def done(self) -> dict[str, set[int]]:
        """The finished chunks of each client."""
        return {client: set(at.finished) for client, at in self.at.items()}

    def obey(self, commands: Iterable[Command]) -> None:
        """Carry out all commands, then start the next chunk, as a client does between two steps."""
        for command in commands:
            match command:
                case Add():
                    self._add(command)
                case Refuse():
                    self.refused.append(command)
                case _:
                    self.at[command.client].handle(command)
                    self._note(command)
        for at in self.at.values():
            at.start()

    def _note(self, command: Command) -> None:
        match command:
            case Reveal() | Repair():
                assert command.mix is not None
                key = command.client, command.attempt
                self.made[key] = encode(command.mix.chunks, command.mix.matrix, self.updates)
                self.requests[key] = command
                self.unsent.append(key)
            case Close():
                self.closed.append(command)

    def finish_next(self, client: str) -> Reported | Failed:
        """Report, or finish the current chunk."""
        at = self.at[client]
        said = at.due()
        if said is None:
            at.start()
            said = at.finish(1.0)
        at.start()
        return said

    def hold(self, client: str, *chunks: int) -> None:
        """Mark these chunks as finished by a client, independent of its commands."""
        at = self.at[client]
        for chunk in chunks:
            at.trajectories[chunk] = Trajectory(at.names.get(chunk), TARGET)

    def stop(self, client: str) -> None:
        """Empty the queue of a client until its next command."""
        for chunk in self.queue[client]:
            self.at[client].handle(Skip(client, 1, chunk))

    def take(self, client: str, chunks: Iterable[int]) -> None:
        """Let a client work on these chunks next."""
        self.at[client].handle(Take(client, 1, tuple(chunks)))

    def _add(self, command: Add) -> None:
        key = (command.client, command.attempt)
        request = self.requests[key]
        assert request.mix is not None
        codeword = self.made[key]
        if request.wire != "float32":
            wire = Wire(request.wire)
            codeword = unpack(
                pack(codeword, wire, np.random.default_rng(command.attempt)), wire, codeword.size
            )
        blocks = len(command.weights)
        if self.sums is None:
            self.sums = np.zeros((blocks, len(codeword)))
        self.sums += np.outer(command.weights, codeword)
        column = request.column if isinstance(request, Repair) else command.client
        self.terms += [(column, chunk) for chunk in request.mix.chunks]

    @property
    def total(self) -> np.ndarray:
        assert self.sums is not None
        return self.sums.reshape(-1)[: self.size]

    @property
    def plain(self) -> np.ndarray:
        return np.sum(list(self.updates.values()), axis=0)


def joined(
    plan: Plan, client: str, now: float = 0.0, kept: tuple[Kept, ...] = (), *, live: bool = True
) -> Joined:
    held = [chunk for chunk in plan.chunks if chunk.number in plan.held[client]]
    return Joined(now, client, live, tuple(Held(chunk.name, chunk.samples) for chunk in held), kept)


def progress(client: str, chunk: int, now: float = 1.0, **changes: object) -> Progress:
    values: dict[str, object] = {
        "now": now, "client": client, "round": 1, "chunk": chunk, "reached": TARGET,
        "seconds": 1.0, "samples": 10, "squared_norm": 1.0, "loss": 0.5,
    }  # fmt: skip
    return Progress(**{**values, **changes})


def begun(plan: Plan, decide=sync, size: int = SIZE, *, live: bool = True) -> tuple[Round, Clients]:
    machine = Round(plan, Assignment(number=1, version=0, target=TARGET, seed=0), decide)
    clients = Clients(plan, size=size)
    clients.obey(machine.start(0.0, [joined(plan, client, live=live) for client in plan.clients]))
    return machine, clients


def finish_working(machine: Round, clients: Clients, order: Iterable[str] | None = None) -> None:
    """Clients take turns until the working phase is over."""
    names = list(order or clients.plan.clients)
    while machine.state is State.WORKING:
        busy = [name for name in names if clients.queue[name]]
        assert busy, "the round waits although nobody has anything to do"
        for name in busy:
            if machine.state is State.WORKING and clients.queue[name]:
                work(machine, clients, name)


def work(machine: Round, clients: Clients, name: str, now: float = 1.0) -> None:
    said = clients.finish_next(name)
    if isinstance(said, Reported):
        clients.obey(machine.handle(progress(name, said.chunk, now, round=said.round, reached=said.reached)))
    else:
        clients.obey(machine.handle(replace(said, now=now)))


def send_all(machine: Round, clients: Clients, now: float = 2.0) -> None:
    while clients.unsent:
        client, attempt = clients.unsent.pop(0)
        clients.obey(machine.handle(Codeword(now, client, 1, attempt)))


def tells(machine: Round, clients: Clients, name: str, chunk: int, sketch: tuple[float, ...]) -> None:
    clients.hold(name, chunk)
    clients.obey(machine.handle(progress(name, chunk, sketch=sketch)))
