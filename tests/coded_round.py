"""Clients of a coded round that obey what they hear, with real updates: what tests of rounds play with."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from fedgc.codecs import Wire, pack, unpack
from fedgc.codes import encode
from fedgc.gates import Decision
from fedgc.history import Speed, Speeds
from fedgc.messages import (
    Add,
    Close,
    Codeword,
    Command,
    Continue,
    Held,
    Joined,
    Kept,
    Mix,
    Progress,
    Refuse,
    Repair,
    Reveal,
    Skip,
    Take,
    Work,
)
from fedgc.round.machine import Assignment, Round, State
from fedgc.round.plan import Chunk, Fleet, Plan, make_plan
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


class Clients:
    """The other side: clients with real vectors that obey commands and never forget a request."""

    def __init__(self, plan: Plan, seed: int = 0, size: int = SIZE) -> None:
        self.plan = plan
        self.size = size
        rng = np.random.default_rng(seed)
        self.updates = {chunk.number: rng.normal(size=size) for chunk in plan.chunks}
        self.queue: dict[str, list[int]] = {client: [] for client in plan.clients}
        self.done: dict[str, set[int]] = {client: set() for client in plan.clients}
        self.requests: dict[tuple[str, int], Reveal | Repair] = {}
        self.made: dict[tuple[str, int], np.ndarray] = {}
        self.unsent: list[tuple[str, int]] = []
        self.sums: np.ndarray | None = None
        self.terms: list[tuple[str, int]] = []
        self.closed: list[Close] = []
        self.refused: list[Refuse] = []

    def obey(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Work() | Continue():
                    self.queue[command.client] = list(command.order)
                case Skip() | Take():
                    self._steer(command)
                case Reveal() | Repair():
                    assert command.mix is not None
                    self.made[command.client, command.attempt] = self._mixed(command.client, command.mix)
                    self.requests[command.client, command.attempt] = command
                    self.unsent.append((command.client, command.attempt))
                case Add():
                    self._add(command)
                case Close() | Refuse():
                    (self.closed if isinstance(command, Close) else self.refused).append(command)

    def _mixed(self, client: str, mix: Mix) -> np.ndarray:
        assert self.done[client].issuperset(mix.chunks), "asked for a chunk that it does not have"
        return encode(mix.chunks, mix.matrix, self.updates)

    def _steer(self, command: Skip | Take) -> None:
        """The head of the queue is what a client works on."""
        queue = self.queue[command.client]
        at, named = queue[:1], command.chunks if isinstance(command, Take) else (command.chunk,)
        rest = [c for c in queue[1:] if c not in named]
        if isinstance(command, Take):
            rest = [c for c in named if [c] != at] + rest
        elif at == [command.chunk]:
            at = []
        self.queue[command.client] = at + rest

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
    return Progress(**{**values, **changes})  # type: ignore[arg-type]


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
    chunk = clients.queue[name].pop(0)
    clients.done[name].add(chunk)
    clients.obey(machine.handle(progress(name, chunk, now)))


def send_all(machine: Round, clients: Clients, now: float = 2.0) -> None:
    while clients.unsent:
        client, attempt = clients.unsent.pop(0)
        clients.obey(machine.handle(Codeword(now, client, 1, attempt)))


def tells(machine: Round, clients: Clients, name: str, chunk: int, sketch: tuple[float, ...]) -> None:
    clients.done[name].add(chunk)
    clients.obey(machine.handle(progress(name, chunk, sketch=sketch)))
