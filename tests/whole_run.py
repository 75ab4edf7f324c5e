"""Model clients of a whole run with real updates, and a server that adds them up.

The reference client decides what a client does. The `what` of a chunk identifies its data: equal values are
equal data under any chunk name. The update of a chunk is a vector made of the model and of `what`, so the
true sum of every round is known.

The server executes the outputs of `Run`, as the driver does, and checks invariants at once."""

import json
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from fedgc.config import RunConfig
from fedgc.errors import BadMessage, NotHere
from fedgc.history import ClientRow, PastRound, RoundRow, Speeds
from fedgc.links import typed_json as typed
from fedgc.messages import (
    LARGEST_COUNT,
    SKETCH_NUMBERS,
    UNREAD,
    Add,
    Close,
    Codeword,
    Continue,
    Event,
    Failed,
    Held,
    Joined,
    Loaded,
    Lost,
    Mix,
    Refuse,
    Repair,
    Reveal,
    Take,
    Tick,
    Work,
)
from fedgc.round.machine import Round
from fedgc.run.machine import Append, Apply, Chose, Finished, RunState
from fedgc.sim.clock.interfaces import Finding
from fedgc.sim.clock.reference_client import WHOLE, ReferenceClient, Reported, failed
from tests.tuned import tuned_run

SIZE = 5  # numbers in an update: divisible by no number of blocks but one
MOST_ACTIONS = 3000  # of a round: far more than its clients can need
Vector = np.ndarray


@dataclass(frozen=True, slots=True)
class Content:
    """A chunk as its client sees it; other clients may hold a shared one."""

    name: str
    samples: int
    what: str
    shared: bool = False

    def held(self, *, unread: bool = False) -> Held:
        digest = f"{crc32(self.what.encode()):x}" if self.shared else ""
        return Held(self.name, self.samples, UNREAD if digest and unread else digest)


@lru_cache(maxsize=4096)
def vector_of(token: int, what: object, size: int = SIZE) -> Vector:
    """The update from training on this data from this model."""
    return np.random.default_rng([token, crc32(repr(what).encode())]).normal(size=size)


def update_of(token: int, content: Content) -> Vector:
    return content.samples * vector_of(token, content.what)


def one_of(several: Sequence[Any], chance: np.random.Generator) -> Any:
    return several[chance.integers(len(several))]


@dataclass(slots=True)
class Sending:
    """A vector on its way to the server."""

    round: int
    attempt: int
    request: Reveal | Repair
    vector: Vector


class Client:
    """One client; its messages pass through the server, which knows the time."""

    def __init__(self, name: str, contents: Sequence[Content], *, step_s: float = 0.1) -> None:
        self.name = name
        self.contents = {each.name: each for each in contents}
        self.step_s = step_s
        self.honest = True
        self.unread = False  # it could not read its data when it announced it
        self.connected = self.live = False
        self.inbox: deque[object] = deque()
        self.outbox: deque[Sending] = deque()
        self.at = ReferenceClient(name)
        self.token = -1  # of its common model

    def restart(self, *, keeps: bool = False) -> None:
        """A new process of this client, which may find finished work on its disk."""
        self.at.restart(keeps=keeps)

    def hold(self, contents: Sequence[Content]) -> None:
        """Replace the chunk's data: work on the old data becomes useless."""
        self.contents = {each.name: each for each in contents}
        gone = [at for at, each in self.at.trajectories.items() if not self._holds(each.of)]
        for at in gone:
            del self.at.trajectories[at]

    def _holds(self, of: object) -> bool:
        names = list(of.values()) if isinstance(of, dict) else [of]
        return all(name in self.contents for name in names)

    # ---- what it says

    def joined(self, now: float) -> Joined:
        holds = tuple(content.held(unread=self.unread) for content in self.contents.values())
        return Joined(now, self.name, self.live, holds, self.at.kept())

    @property
    def works(self) -> bool:
        return not self.at.idle

    @property
    def can_hear(self) -> bool:
        """A deaf client gets its next command after it has answered."""
        return bool(self.inbox) and (self.live or not (self.works or self.outbox))

    @property
    def busy(self) -> bool:
        return self.connected and bool(self.can_hear or self.works or self.outbox)

    def step(self, now: float) -> Event | None:
        """Finish the next chunk of the queue and report it."""
        said = self.at.due()
        if said is None and self.at.start() is not None:
            said = self.at.finish(self.step_s * self.at.left)
        return self.event(now, said) if said else None

    def event(self, now: float, said: Reported | Failed) -> Event:
        if isinstance(said, Failed):
            return replace(said, now=now)
        if said.chunk == WHOLE:
            samples = min(self.samples, LARGEST_COUNT)  # more cannot be said, even by one who lies
            return said.event(now, self.name, samples, Finding(squared_norm=float(said.reached), loss=0.5))
        content = self.contents.get(self.at.names[said.chunk])
        if content is None:
            return replace(self.at.fail(said.chunk, f"chunk {said.chunk}: no such data"), now=now)
        sketch = tuple(vector_of(self.token, content.what, SKETCH_NUMBERS).tolist())
        found = Finding(squared_norm=float(np.sum(np.square(sketch))), loss=0.5, sketch=sketch)
        return said.event(now, self.name, content.samples, found)

    @property
    def samples(self) -> int:
        """Samples of all its chunks; a dishonest client may be assigned chunks that it does not hold."""
        return sum(self.contents[n].samples for n in self.at.names.values() if n in self.contents)

    # ---- what it hears

    def hear(self, server: "Server") -> list[Event]:
        """Obey the next command; return the resulting events."""
        command, now, said = self.inbox.popleft(), server.now, None
        if isinstance(command, Work):
            self._load(server.tokens[command.version])
        elif isinstance(command, Close):
            self.outbox = deque(each for each in self.outbox if each.round > command.round)
        try:
            said = self.at.handle(command)
        except BadMessage as error:
            if self.honest or not isinstance(error, NotHere):
                return [failed(now, command, error)]
        if isinstance(command, Reveal | Repair) and (said is None or said.reached):
            self._send(command)
        return [self.event(now, said)] if said else []

    def _load(self, token: int) -> None:
        """A resumed server may have made another model of this version."""
        if token != self.token:
            self.at.forget()
        self.token = token

    def _send(self, command: Reveal | Repair) -> None:
        if command.mix is None:
            vector = self.local_update(int(self.at.reached(WHOLE)))
        else:
            vector = self.mixed(command.mix)
        self.outbox.append(Sending(command.round, command.attempt, command, vector))

    # ---- what it mixes

    def mixed(self, mix: Mix) -> Vector:
        return self._sum(mix.chunks, mix.matrix)

    def _sum(self, chunks: Sequence[int], matrix: Sequence[Sequence[float]]) -> Vector:
        blocks = len(matrix[0])
        length = -(-SIZE // blocks)
        found = np.zeros(length)
        for chunk, row in zip(chunks, matrix, strict=True):
            update = update_of(self.token, self.contents[self.at.names[chunk]])
            padded = np.concatenate([update, np.zeros(blocks * length - SIZE)])
            found += np.asarray(row) @ padded.reshape(blocks, length)
        return found

    def local_update(self, steps: int) -> Vector:
        whats = tuple(self.contents[name].what for name in self.at.names.values() if name in self.contents)
        return steps * vector_of(self.token, (self.name, whats))


@dataclass(slots=True)
class Sum:
    """The running sum of a round, and its terms."""

    blocks: Vector | None = None
    terms: set[tuple[str, int]] = field(default_factory=set)
    content: dict[int, Content] = field(default_factory=dict)  # of the chunks that were worked on
    trained: set[int] = field(default_factory=set)  # chunks of the updates in a sum of local work
    local: Vector = field(default_factory=lambda: np.zeros(SIZE))
    weight: float = 0.0


def chunks_of(command: object) -> Sequence[int]:
    """The vector that a command requests."""
    match command:
        case Work() | Continue():
            return command.order
        case Take():
            return command.chunks
        case Reveal() | Repair() if command.mix is not None:
            return command.mix.chunks
    return ()


def numbers_of(row: RoundRow | ClientRow) -> list[float]:
    values = [getattr(row, each.name) for each in fields(row)]
    return [each for each in values if isinstance(each, float)]


class Server:
    """The driver's part, and the checks."""

    def __init__(self, config: RunConfig, speeds: Speeds | None = None) -> None:
        self.config, self.speeds = config, speeds or Speeds()
        self.now = 0.0
        self.clients: dict[str, Client] = {}
        self.tokens = {0: 0}  # what model each version is
        self.made = 0
        self.rows: list[RoundRow] = []
        self.saved: list[RunState] = []
        self.checked = 0  # sums that were compared with the truth
        self._start(None)

    def _start(self, resume: RunState | None) -> None:
        told = tuple(PastRound("this run", row) for row in self.rows)
        speeds = Speeds(self.speeds.known, told)
        self.run = tuned_run(self.config, now=self.now, size=SIZE, speeds=speeds, resume=resume)
        self.finished: Finished | None = None
        self.names: dict[str, dict[int, str]] = {}  # of chunks, as each client was last told
        self.here: dict[tuple[str, int, int], Sending] = {}
        self.sum = Sum()
        self.requests: dict[tuple[str, int, int], Reveal | Repair] = {}

    def resume(self, state: RunState) -> None:
        """Resume on a new server from a checkpoint; no client is connected to it yet."""
        for client in self.clients.values():
            self.cut(client)
        self.rows = [row for row in self.rows if row.round < state.round]
        self.saved = [each for each in self.saved if each.round <= state.round]
        self.tokens = {v: token for v, token in self.tokens.items() if v <= state.version}
        self._start(state)

    # ---- clients come, go and act

    def join(self, client: Client, *, live: bool = True) -> None:
        self.cut(client)
        self.clients[client.name] = client
        client.connected, client.live = True, live
        self.say(client.joined(self.now))

    @staticmethod
    def cut(client: Client) -> None:
        """End its session and drop its messages in flight."""
        client.connected = False
        client.inbox.clear()
        client.outbox.clear()

    def lose(self, client: Client) -> None:
        self.cut(client)
        self.say(Lost(self.now, client.name))

    def act(self, client: Client, chance: np.random.Generator) -> None:
        """Let a client do one of the things that it can do next."""
        self.now += one_of((0.01, 0.1, 1.0), chance)
        can = [what for what in ("works", "outbox") if getattr(client, what)]
        what = one_of([*can, "inbox"] if client.can_hear else can, chance)
        if what == "works":
            self.tell(client.step(self.now))
        elif what == "outbox":
            self.deliver(client, client.outbox.popleft())
        else:
            loads = isinstance(client.inbox[0], Work) and client.live and chance.random() < 0.5
            version = client.inbox[0].version if loads else 0
            for event in client.hear(self):
                self.tell(event)
            if loads:
                self.tell(Loaded(self.now, client.name, version, one_of((0.0, 0.5), chance), 4 * SIZE))

    def deliver(self, client: Client, sending: Sending) -> None:
        self.here[client.name, sending.round, sending.attempt] = sending
        size = sending.vector.size * 4
        self.tell(Codeword(self.now, client.name, sending.round, sending.attempt, client.step_s, size))

    def tell(self, event: Event | None) -> None:
        if event is not None:
            self.say(event)

    def tick(self) -> None:
        assert np.isfinite(self.run.next_tick), "nothing would ever happen"
        self.now = max(self.now, self.run.next_tick)
        self.say(Tick(self.now))

    def some(self, actions: int, chance: np.random.Generator) -> None:
        """Let clients act in any order, and let time pass if no client has work."""
        for _ in range(actions):
            if self.finished:
                return
            busy = [client for client in self.clients.values() if client.busy]
            if busy:
                self.act(one_of(busy, chance), chance)
            else:
                self.tick()

    def play(self, rounds: int, chance: np.random.Generator) -> None:
        """Let clients work until so many rounds are over."""
        actions, until = 0, self.run.number + rounds
        while not self.finished and self.run.number < until:
            actions += 1
            assert actions < MOST_ACTIONS * rounds, "the round does not end"
            self.some(1, chance)

    # ---- what the run says

    def say(self, event: Event) -> None:
        before = self.run.round
        for output in self.run.handle(event):
            match output:
                case Add():
                    self._add(output)
                case Apply():
                    assert before is not None or self.config.late_updates == "count"
                    self._apply(output, before)
                case Append():
                    self._append(output.row)
                case Chose():
                    json.dumps(output.basis, allow_nan=False)  # as the store does
                case Finished():
                    assert self.finished is None
                    self.finished = output
                case _:
                    self._send(output)
        if isinstance(event, Codeword):
            self.here.pop((event.client, event.round, event.attempt), None)
        assert self.run.finished == (self.finished is not None)

    def _send(self, command: object) -> None:
        client = self.clients.get(command.client)
        if client is None or not client.connected:
            return
        if isinstance(command, Work):
            assert command.version == max(self.tokens)  # as of this command: the next ones may follow `Apply`
            self.names[client.name] = dict(command.names)
        self._counts_on(client, chunks_of(command))
        if isinstance(command, Refuse):
            blamed = "sketch" in command.reason or "its copies differ" in command.reason
            assert not (blamed and client.honest), f"{client.name}: its copies are true: {command.reason}"
        else:
            client.inbox.append(command)

    def _counts_on(self, client: Client, chunks: Sequence[int]) -> None:
        """Clients are asked only for chunks they hold, and a number means equal data on every client."""
        names = self.names.get(client.name, {})
        for number in chunks:
            content = client.contents.get(names.get(number, ""))
            if content is None:
                assert not client.honest, f"{client.name} was asked for {number}, which it does not hold"
                continue
            known = self.sum.content.setdefault(number, content)
            assert known.what == content.what, f"{client.name}: {content} was taken for {known}"

    def _add(self, add: Add) -> None:
        sending = self.here.pop((add.client, add.round, add.attempt), None)
        assert sending is not None, f"{add}: there is no such vector"
        request = sending.request
        if request.mix is None:
            (weight,) = add.weights
            assert (add.client, WHOLE) not in self.sum.terms, "once"
            self.sum.terms.add((add.client, WHOLE))
            self.sum.trained |= self.names[add.client].keys()
            client = self.clients[add.client]
            samples = sum(client.contents[name].samples for name in self.names[add.client].values())
            is_late = add.round < self.run.number
            assert not client.honest or weight == samples or (is_late and samples < weight <= 2 * samples)
            self.sum.local = self.sum.local + weight * sending.vector
            self.sum.weight += weight
            return
        assert request.mix.blocks == len(add.weights)
        column = request.column if isinstance(request, Repair) else add.client
        terms = {(column, chunk) for chunk in request.mix.chunks}
        assert not terms & self.sum.terms, "each term once"
        self.sum.terms |= terms
        part = np.outer(add.weights, sending.vector)
        self.sum.blocks = part if self.sum.blocks is None else self.sum.blocks + part

    def _apply(self, apply: Apply, over: Round | None) -> None:
        """Check a model; late updates can open a round that they also close, which nobody has seen."""
        assert apply.version == max(self.tokens) + 1
        if self.config.work == "local":
            assert apply.weight == pytest.approx(self.sum.weight)
            assert apply.weight > 0
            if over is not None:
                self._check_coverage(over)
                assert bool(over.short) == (over.outcome == "approximate")
            self.made += 1
            self.tokens[apply.version] = self.made
            return
        assert over is not None
        if over.outcome == "synced":
            self._check_sum(apply, over)
        else:
            assert over.short
            assert over.error is not None
            assert 0 <= over.error < np.inf
        assert bool(over.short) == (over.outcome == "approximate")
        self.made += 1
        self.tokens[apply.version] = self.made

    def _check_coverage(self, over: Round) -> None:
        """Local work is complete if every chunk was trained by a client in the mean."""
        assert {chunk.number for chunk in over.plan.chunks} - self.sum.trained == set(over.short)
        self.checked += 1

    def _check_sum(self, apply: Apply, over: Round) -> None:
        token = self.tokens[over.assignment.version]
        contents = [self.sum.content[chunk.number] for chunk in over.plan.chunks]
        weight = sum(content.samples for content in contents)
        assert apply.weight == weight
        assert self.sum.blocks is not None
        mean = self.sum.blocks.reshape(-1)[:SIZE] / weight
        true = sum((update_of(token, content) for content in contents), np.zeros(SIZE)) / weight
        np.testing.assert_allclose(mean, true, rtol=1e-6, atol=1e-6)
        self.checked += 1

    def _append(self, row: RoundRow) -> None:
        if self.rows and self.rows[-1].outcome == "stopped":  # all had left; the round begins again
            self.rows.pop()
        assert row.round == (self.rows[-1].round + 1 if self.rows else 1), (
            row.round,
            [(r.round, r.outcome) for r in self.rows],
            self.saved,
        )
        assert row.covered <= row.chunks
        assert all(each.counted <= each.finished for each in row.clients)
        for each in (row, *row.clients):
            assert all(map(math.isfinite, numbers_of(each))), each
        self.rows.append(row)
        if row.outcome not in ("skipped", "empty") or not self.sum.terms:  # late updates are in the next sum
            self.sum = Sum()
        state = self.run.state()
        if not self.saved or self.saved[-1] != state:
            written = typed.loads(typed.dumps(typed.write(state)))
            assert typed.read(RunState, written, {}) == state, "a checkpoint comes back as it was written"
            self.saved.append(state)
