"""Clients of a whole run that obey what they hear, with real updates, and a server that adds them up.

A client is what the engine is, without training: it walks its queue, keeps what it has finished of a chunk
for as long as it works from the same model, and fails as the engine fails. What a
chunk is, its `what` says: equal words are equal data, whatever the chunk's name. The update of a chunk is a
vector made of the model and of `what`, so the true sum of every round is known.

The server carries out what `Run` says, as the driver does, and checks at once what must always hold.
"""

import json
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np

from fedgc.config import RunConfig
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
    Kept,
    Loaded,
    Lost,
    Mix,
    Progress,
    Refuse,
    Repair,
    Report,
    Reveal,
    Skip,
    Take,
    Tick,
    Work,
)
from fedgc.round.machine import Round
from fedgc.run.machine import Append, Apply, Chose, Finished, RunState
from tests.tuned import tuned_run

SIZE = 5  # numbers in an update: divisible by no number of blocks but one
WHOLE = -1  # the one trajectory of local work
MOST_ACTIONS = 3000  # of a round: far more than its clients can need
Vector = np.ndarray


@dataclass(frozen=True, slots=True)
class Content:
    """A chunk as its client knows it; others may have a shared one."""

    name: str
    samples: int
    what: str
    shared: bool = False

    def held(self, *, unread: bool = False) -> Held:
        digest = f"{crc32(self.what.encode()):x}" if self.shared else ""
        return Held(self.name, self.samples, UNREAD if digest and unread else digest)


@lru_cache(maxsize=4096)
def vector_of(token: int, what: object, size: int = SIZE) -> Vector:
    """What training on this data from this model comes to."""
    return np.random.default_rng([token, crc32(repr(what).encode())]).normal(size=size)


def update_of(token: int, content: Content) -> Vector:
    return content.samples * vector_of(token, content.what)


def one_of(several: Sequence[Any], chance: np.random.Generator) -> Any:
    return several[chance.integers(len(several))]


@dataclass(slots=True)
class Trajectory:
    of: object  # the name of the chunk, or the numbers and names of all
    reached: int


@dataclass(slots=True)
class Sending:
    """A vector on its way to the server."""

    round: int
    attempt: int
    request: Reveal | Repair
    vector: Vector


class Client:
    """One client; what it says goes through the server, which knows the time."""

    def __init__(self, name: str, contents: Sequence[Content], *, step_s: float = 0.1) -> None:
        self.name = name
        self.contents = {each.name: each for each in contents}
        self.step_s = step_s
        self.honest = True
        self.unread = False  # it could not read its data when it announced it
        self.connected = self.live = False
        self.inbox: deque[object] = deque()
        self.outbox: deque[Sending] = deque()
        self.restart()

    def restart(self, *, keeps: bool = False) -> None:
        """Another process of this client, which may have found on its disk what this one has finished."""
        if not keeps:
            self.way: tuple[object, ...] | None = None
            self.trajectories: dict[int, Trajectory] = {}
        self.work: Work | None = None
        self.token = -1
        self.names: dict[int, str] = {}
        self.queue: deque[int] = deque()

    def hold(self, contents: Sequence[Content]) -> None:
        """Other data lies here now: what was made of the old is of no use."""
        self.contents = {each.name: each for each in contents}
        gone = [at for at, each in self.trajectories.items() if not self._holds(each.of)]
        for at in gone:
            del self.trajectories[at]

    def _holds(self, of: object) -> bool:
        names = [name for _, name in of] if isinstance(of, tuple) else [of]
        return all(name in self.contents for name in names)

    # ---- what it says

    def joined(self, now: float) -> Joined:
        kept = {}
        if self.way is not None:
            for at, each in self.trajectories.items():
                numbers = [number for number, _ in each.of] if at == WHOLE else [at]
                kept |= {
                    number: Kept(self.way[0], number, each.reached) for number in numbers if each.reached
                }
        holds = tuple(content.held(unread=self.unread) for content in self.contents.values())
        return Joined(now, self.name, self.live, holds, tuple(kept.values()))

    @property
    def can_hear(self) -> bool:
        """A deaf client hears what is next once it has answered."""
        return bool(self.inbox) and (self.live or not (self.queue or self.outbox))

    @property
    def busy(self) -> bool:
        return self.connected and bool(self.can_hear or self.queue or self.outbox)

    def step(self, now: float) -> Event | None:
        """Finish the next of the queue, and tell."""
        chunk = self.queue.popleft()
        work = self.work
        if work is None:
            return None
        if chunk == WHOLE:
            at = self.trajectories.setdefault(WHOLE, Trajectory(self._title, 0))
            at.reached = max(at.reached, work.target)
            return self.report(now, work)
        name = self.names[chunk]
        if name not in self.contents:
            return Failed(now, self.name, work.round, f"chunk {chunk}: no such data", (chunk,))
        self.trajectories[chunk] = Trajectory(name, work.target)
        return self.progress(now, work, chunk)

    def progress(self, now: float, work: Work, chunk: int) -> Progress:
        content = self.contents[self.names[chunk]]
        sketch = tuple(vector_of(self.token, content.what, SKETCH_NUMBERS).tolist())
        return Progress(
            now, self.name, work.round, chunk, work.target, self.step_s * work.target, content.samples,
            float(np.sum(np.square(sketch))), 0.5, sketch,
        )  # fmt: skip

    @property
    def _title(self) -> object:
        return tuple(sorted(self.names.items()))

    @property
    def samples(self) -> int:
        """Of all that it trains on together; who lies may be told to train on what it does not have."""
        return sum(self.contents[name].samples for name in self.names.values() if name in self.contents)

    def report(self, now: float, work: Work) -> Report:
        at = self.trajectories.get(WHOLE)
        steps = at.reached if at else 0
        samples = min(self.samples, LARGEST_COUNT)  # more cannot be said, even by one who lies
        return Report(now, self.name, work.round, steps, samples, self.step_s * steps, float(steps), 0.5)

    # ---- what it hears

    def hear(self, server: "Server") -> list[Event]:
        """Obey the next command; return what there is to say of it."""
        command, now = self.inbox.popleft(), server.now
        match command:
            case Work():
                self._begin(command, server.tokens[command.version])
            case Continue():
                return self._continue(command, now)
            case Skip() | Take():
                return self._steered(command, now)
            case Reveal() | Repair():
                return self._reveal(command, server)
            case Close():
                self._close(command)
        return []

    def _steered(self, command: Skip | Take, now: float) -> list[Event]:
        if self.work is None or command.round != self.work.round:
            return [Failed(now, self.name, command.round, "needed another round")]
        if isinstance(command, Skip):
            self.queue = deque(chunk for chunk in self.queue if chunk != command.chunk)
            return []
        return self._take(command, now)

    def _begin(self, work: Work, token: int) -> None:
        way = (work.version, token, work.seed, work.first_step, work.common_steps)
        if way != self.way:
            self.trajectories = {}
        self.way, self.work, self.token, self.names = way, work, token, dict(work.names)
        local = work.kind == "local"
        for at, each in list(self.trajectories.items()):
            same = each.of == (self._title if at == WHOLE else self.names.get(at))
            if not same or (at == WHOLE) != local or (each.reached > work.target and not local):
                del self.trajectories[at]
        self._start(work.order, local=local)

    def _start(self, order: Sequence[int], *, local: bool) -> None:
        self.queue = deque((WHOLE,) if local and order else order)

    def _continue(self, command: Continue, now: float) -> list[Event]:
        work = self.work
        if work is None or command.target < work.target:
            return [Failed(now, self.name, command.round, "continue: saw no work before it")]
        local = work.kind == "local"
        if not local and set(command.order) - set(self.names):
            return [Failed(now, self.name, command.round, "continue: saw chunks that no work has named")]
        self.work = Work(
            self.name, command.round, work.version, command.target, command.order, tuple(self.names.items()),
            work.seed, work.lease_s, kind=work.kind, first_step=work.first_step,
            common_steps=work.common_steps, most_steps=work.most_steps,
        )  # fmt: skip
        self._start(command.order, local=local)
        return []

    def _take(self, command: Take, now: float) -> list[Event]:
        said: list[Event] = []
        for chunk in reversed(command.chunks):
            if chunk not in self.names:
                said.append(Failed(now, self.name, command.round, "no work has named it", (chunk,)))
            else:
                self.queue = deque((chunk, *(each for each in self.queue if each != chunk)))
        return said

    def _reveal(self, command: Reveal | Repair, server: "Server") -> list[Event]:
        now, work = server.now, self.work
        if isinstance(command, Reveal) and command.kind == "local":
            if work is None or command.round != work.round:
                return [Failed(now, self.name, command.round, "needed another round")]
            self.queue.clear()
            report = self.report(now, work)
            if report.steps:
                self.outbox.append(Sending(command.round, 0, command, self.local_update(report.steps)))
            return [report]
        assert command.mix is not None
        lacking = self._lacking(command.mix.chunks) if work is not None else command.mix.chunks
        if lacking and self.honest:
            named = lacking if work is not None else ()
            return [Failed(now, self.name, command.round, "it is not here", named)]
        self.outbox.append(Sending(command.round, command.attempt, command, self.mixed(command.mix)))
        return []

    def _close(self, command: Close) -> None:
        self.outbox = deque(each for each in self.outbox if each.round > command.round)
        if self.work is None or command.round != self.work.round:
            return
        self.queue.clear()
        if command.frees:
            self.trajectories, self.way, self.work = {}, None, None

    # ---- what it mixes

    def _lacking(self, chunks: Sequence[int]) -> tuple[int, ...]:
        assert self.work is not None
        return tuple(
            c
            for c in chunks
            if c not in self.trajectories or self.trajectories[c].reached != self.work.target
        )

    def mixed(self, mix: Mix) -> Vector:
        return self._sum(mix.chunks, mix.matrix)

    def _sum(self, chunks: Sequence[int], matrix: Sequence[Sequence[float]]) -> Vector:
        blocks = len(matrix[0])
        length = -(-SIZE // blocks)
        found = np.zeros(length)
        for chunk, row in zip(chunks, matrix, strict=True):
            update = update_of(self.token, self.contents[self.names[chunk]])
            padded = np.concatenate([update, np.zeros(blocks * length - SIZE)])
            found += np.asarray(row) @ padded.reshape(blocks, length)
        return found

    def local_update(self, steps: int) -> Vector:
        whats = tuple(self.contents[name].what for name in self.names.values() if name in self.contents)
        return steps * vector_of(self.token, (self.name, whats))


@dataclass(slots=True)
class Sum:
    """The running sum of a round, and what is in it."""

    blocks: Vector | None = None
    terms: set[tuple[str, int]] = field(default_factory=set)
    content: dict[int, Content] = field(default_factory=dict)  # of the chunks that were worked on
    local: Vector = field(default_factory=lambda: np.zeros(SIZE))
    weight: float = 0.0


def chunks_of(command: object) -> Sequence[int]:
    """What a command asks for."""
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
        """Another server goes on from a checkpoint; nobody is connected to it yet."""
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
        """Its session is over, and what was on its way is gone."""
        client.connected = False
        client.inbox.clear()
        client.outbox.clear()

    def lose(self, client: Client) -> None:
        self.cut(client)
        self.say(Lost(self.now, client.name))

    def act(self, client: Client, chance: np.random.Generator) -> None:
        """Let a client do one of the things that it can do next."""
        self.now += one_of((0.01, 0.1, 1.0), chance)
        can = [what for what in ("queue", "outbox") if getattr(client, what)]
        what = one_of([*can, "inbox"] if client.can_hear else can, chance)
        if what == "queue":
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
        """Let clients act in any order, and time pass where nobody has anything to do."""
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
                    assert before is not None
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
            assert command.version == self.run.version
            self.names[client.name] = dict(command.names)
        self._counts_on(client, chunks_of(command))
        if isinstance(command, Refuse):
            blamed = "sketch" in command.reason or "its copies differ" in command.reason
            assert not (blamed and client.honest), f"{client.name}: its copies are true: {command.reason}"
        else:
            client.inbox.append(command)

    def _counts_on(self, client: Client, chunks: Sequence[int]) -> None:
        """A client is asked for what it holds, and one number is one data, whoever has it."""
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
            client = self.clients[add.client]
            assert not client.honest or weight == sum(
                client.contents[name].samples for name in self.names[add.client].values()
            )
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

    def _apply(self, apply: Apply, over: Round) -> None:
        assert apply.version == max(self.tokens) + 1
        if self.config.work == "local":
            assert apply.weight == self.sum.weight > 0
            self._check_coverage(over)
        elif apply.outcome == "synced":
            self._check_sum(apply, over)
        else:
            assert over.short
            assert over.error is not None
            assert 0 <= over.error < np.inf
        assert bool(over.short) == (apply.outcome == "approximate")
        self.made += 1
        self.tokens[apply.version] = self.made

    def _check_coverage(self, over: Round) -> None:
        """Local work is whole where somebody in the mean has trained on each chunk."""
        trained = {number for name, _ in self.sum.terms for number in self.names[name]}
        assert {chunk.number for chunk in over.plan.chunks} - trained == set(over.short)
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
        self.sum = Sum()
        state = self.run.state()
        if not self.saved or self.saved[-1] != state:
            written = typed.loads(typed.dumps(typed.write(state)))
            assert typed.read(RunState, written, {}) == state, "a checkpoint comes back as it was written"
            self.saved.append(state)
