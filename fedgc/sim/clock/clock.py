"""The virtual clock: modelled clients obey a machine, a `Round` or a whole `Run`, as real ones do.

A client walks its queue and begins the next chunk without waiting for an answer; *skip* sets the present
chunk aside with what was done of it, *take* puts chunks next, *close* ends its work and what it had yet to
send. What it is asked to send goes over its own line and the server's, one vector after the other, as in a
session. Commands and progress reach the other side `control_s` later.
Only time is modelled, no vector exists, and no chance: the same arguments give the same events.

In local work a client has one model to train instead of a queue. It tells that it has come to its target
and, where it may, goes on without an answer. It stops where it is when it is asked for what it has, tells how
many whole steps that are, and sends them, if any.

What happens next is the least of four times: the heap of what is under way, the server's line in both
directions, and the machine's own tick. The heap holds plain tuples (when, order, what, client, ...), since a
run is millions of them.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final

import numpy as np

from fedgc.codecs import share_of
from fedgc.messages import (
    Close,
    Codeword,
    Continue,
    Event,
    Held,
    Joined,
    Kept,
    Loaded,
    Lost,
    Progress,
    Repair,
    Report,
    Reveal,
    Skip,
    Take,
    Tick,
    Work,
)
from fedgc.round.machine import Round
from fedgc.sim.clock.conditions import NEVER
from fedgc.sim.clock.interfaces import NOTHING_FOUND, ClientModel, Failure, Machine, Observer, Span, Terms
from fedgc.sim.clock.kinds import ARRIVES, CHUNK_ENDS, DIES, GRACE_ENDS, HEARS, RETURNS, SAYS
from fedgc.sim.clock.server_link import Pipe

WHOLE: Final = -1  # stands for all chunks of a client, where one model is trained on them together
Stretch = tuple[int, int, float, float, bool]  # client, chunk, begin, end, finished


class VirtualClock:
    """Owns the clock and what every client is at."""

    _sizes: dict[str, int]  # samples of the chunks that all can load, by name
    _samples: dict[int, int]  # and by the numbers that the machine gives to chunks
    _names: list[tuple[tuple[int, str], ...]]  # as work named them last to each client

    def __init__(
        self,
        clients: Sequence[str],
        client_model: ClientModel,
        terms: Terms,
        holds: Sequence[Held] = (),
        witness: Observer | None = None,
    ) -> None:
        clients_w = len(clients)
        self.now, self.sent, self.longest = 0.0, 0.0, 0.0  # sent: whole updates, in parts, the longest so
        self.computed, self.uploads = 0, 0  # computed: chunks taken to their target
        self._clients = tuple(clients)
        self._index = {client: w for w, client in enumerate(clients)}
        self._client_model, self._terms, self._holds = client_model, terms, [tuple(holds)] * clients_w
        self._witness, self._names = witness, [()] * clients_w
        self._sizes, self._samples = {held.name: held.samples for held in holds}, {}
        self.asked: dict[tuple[str, int], Reveal | Repair] = {}  # for what (client, attempt), in this round
        self._heed: Callable[[Any], object] = lambda _: None
        self._heap: list[tuple[Any, ...]] = []
        self._order = count()
        self._up, self._down = Pipe(terms.line), Pipe(terms.line)
        self._uploading: dict[int, tuple[int, Reveal | Repair, float, float]] = {}
        self._to_send: list[deque[int]] = [deque() for _ in clients]  # the first of them is on its way
        self._loading: dict[int, tuple[Work, float]] = {}  # and since when
        self._behind: list[list[Skip | Take]] = [[] for _ in clients]  # said while the model came
        self._stretches: list[Stretch] = []
        self._mixed: set[tuple[int, int]] = set()  # client and chunk of what was sent
        self._number, self._alive = -1, [True] * clients_w
        self._queue: list[dict[int, None]] = [{} for _ in clients]  # the next one last
        self._current: list[int | None] = [None] * clients_w
        self._begun, self._lasts, self._control_s = ([0.0] * clients_w for _ in range(3))
        self._turn, self._worked = [0] * clients_w, [0.0] * clients_w
        self._round, self._version = [-1] * clients_w, [-1] * clients_w
        # Steps that were asked for, that it is on its way to, and up to which it goes on by itself
        self._target, self._goal, self._most = [0] * clients_w, [0] * clients_w, [0] * clients_w
        self._reached: list[dict[int, float]] = [{} for _ in clients]  # steps from the common model
        self._spent: list[dict[int, float]] = [{} for _ in clients]  # seconds since the common model
        self._told: list[dict[int, int]] = [{} for _ in clients]  # steps at which a chunk was told last
        self._whole: list[tuple[int, ...]] = [() for _ in clients]  # local work: what the one model is on

    # ---- the clock

    def spans(self) -> tuple[Span, ...]:
        """Return what every client was at since this was last asked, where that is watched."""
        stretches, self._stretches = self._stretches, []
        mixed, self._mixed = self._mixed, set()
        return tuple(
            Span(self._clients[w], chunk, begin, end, finished, finished and (w, chunk) in mixed)
            for w, chunk, begin, end, finished in stretches
        )

    def joined(self, w: int, now: float, *, live: bool = True) -> Joined:
        """Return the hello of a client."""
        kept: tuple[Kept, ...] = ()
        if self._reached[w]:
            version = self._version[w]
            reached = [(c, r) for at, r in self._reached[w].items() for c in self._chunks(w, at)]
            kept = tuple(Kept(version, c, int(r)) for c, r in reached if r >= 1)
        return Joined(now, self._clients[w], live, self._holds[w], kept)

    def _chunks(self, w: int, at: int) -> tuple[int, ...]:
        return self._whole[w] if at == WHOLE else (at,)

    def play(self, machine: Round, live: Sequence[bool], now: float) -> None:
        """Drive one round, which has not begun, to its end; each client can load what the plan gives it."""
        self.now = now
        plan = machine.plan
        held = [Held(chunk.name, chunk.samples, chunk.digest) for chunk in plan.chunks]
        self._holds = [tuple(held[c] for c in np.flatnonzero(held_c)) for held_c in plan.placement.holds]
        self._samples = {chunk.number: chunk.samples for chunk in plan.chunks}
        present = [self.joined(w, now, live=hears) for w, hears in enumerate(live)]
        self.run(machine, machine.start(now, present), lambda: machine.outcome is not None)

    def run(
        self,
        machine: Machine,
        given: Iterable[Any],
        over: Callable[[], bool],
        heed: Callable[[Any], object] = lambda _: None,
    ) -> None:
        """Carry out what the machine has given, and go on until it is over; `heed` gets the rest."""
        self._heed = heed
        self._obey(given)
        while not over():
            tick, happened = machine.next_tick, None
            while happened is None:  # else it is nothing that the machine hears of
                happened = self._next(tick)
            self._obey(machine.handle(happened))

    def _next(self, tick: float) -> Event | None:
        """Let the next thing happen; return what the machine hears of it."""
        heap = self._heap
        at = heap[0][0] if heap else NEVER
        if self._up.next_end < at or self._down.next_end < at:
            at = min(self._up.next_end, self._down.next_end)
            if at <= tick:
                self.now = at
                return self._transferred(at)
        elif at <= tick and heap:
            self.now, _, what, w, detail = heapq.heappop(heap)
            return _HAPPENS[what](self, w, detail)
        self.now = tick
        return Tick(tick)

    def _push(self, when: float, what: int, w: int, detail: object) -> None:
        heapq.heappush(self._heap, (when, next(self._order), what, w, detail))

    # ---- what happens

    def _chunk_ends(self, w: int, turn: int) -> Event | None:
        chunk = self._current[w]
        if turn != self._turn[w] or chunk is None:
            return None
        now, lasted = self.now, self._lasts[w]
        self._worked[w] += lasted
        self._current[w] = None
        reached, goal = self._reached[w], self._goal[w]
        told_again = self._told[w].get(chunk) == goal
        reached[chunk] = max(goal, reached.get(chunk, 0.0))
        steps = self._told[w][chunk] = int(reached[chunk])
        self.computed += chunk != WHOLE and not told_again
        if self._terms.watch and not told_again:
            self._stretches.append((w, chunk, self._begun[w], now, True))
        spent = self._spent[w][chunk] = self._spent[w].get(chunk, 0.0) + lasted
        if chunk == WHOLE and steps < self._most[w]:
            self._goal[w] = self._most[w]
            self._queue[w][chunk] = None
        self._start(w, now)
        said, late = (self._round[w], chunk, steps, spent), self._control_s[w]
        if late == 0.0:
            return self._said(w, said)
        self._push(now + late, SAYS, w, said)
        return None

    def _said(self, w: int, said: tuple[int, int, int, float]) -> Event | None:
        number, chunk, target, spent = said
        if not self._alive[w]:
            return None
        if chunk == WHOLE:
            return self._reported(w, number, target, spent)
        found = self._witness.finding(chunk, target) if self._witness else NOTHING_FOUND
        return Progress(
            self.now,
            self._clients[w],
            number,
            chunk,
            target,
            spent,
            self._samples.get(chunk, found.samples),
            found.squared_norm,
            found.loss,
            found.sketch,
        )

    def _reported(self, w: int, number: int, steps: int, spent: float) -> Report:
        client = self._clients[w]
        found = self._witness.reached(client, steps) if self._witness else NOTHING_FOUND
        samples = sum(self._samples[chunk] for chunk in self._whole[w])
        return Report(self.now, client, number, steps, samples, spent, found.squared_norm, found.loss)

    def _transferred(self, now: float) -> Event | None:
        """One transfer a time, so that the machine hears them one by one."""
        if self._down.next_end <= now:
            for w in self._down.ended(now):
                self._loaded(w, now)
            return None
        for flow in self._up.ended(now):
            w, told, size, began = self._uploading.pop(flow)
            self._to_send[w].popleft()
            self._send_next(w)
            if self._terms.watch and told.mix:
                self._mixed.update((w, chunk) for chunk in told.mix.chunks)
            heard = now if told.mix else now + self._control_s[w]  # after what it says of it
            size_bytes = round(size * self._terms.update_bytes)
            client, number, attempt = self._clients[w], told.round, told.attempt
            said = Codeword(heard, client, number, attempt, now - began, size_bytes)
            self._push(heard, ARRIVES, w, said)
        return None

    def _loaded(self, w: int, now: float) -> None:
        command, began = self._loading.pop(w)
        self._work(w, command)
        behind, self._behind[w] = self._behind[w], []
        for each in behind:
            _OBEYS[type(each)](self, w, each)
        told = now + self._control_s[w]
        client, size_bytes = self._clients[w], self._terms.update_bytes
        said = Loaded(told, client, command.version, now - began, size_bytes)
        self._push(told, ARRIVES, w, said)

    def _arrived(self, w: int, said: Codeword | Loaded) -> Event | None:
        return said if self._alive[w] else None

    def _die(self, w: int, failure: Failure) -> Event | None:
        if not self._alive[w]:
            return None
        self._leave(w, self.now)
        self._queue[w].clear()
        self._alive[w] = False
        self._down.drop(self.now, w)
        self._loading.pop(w, None)
        self._behind[w].clear()
        self._withdraw(w)
        if not failure.keeps:
            self._forget(w)
            if self._witness:
                self._witness.lost(self._clients[w])
        self._push(self.now + self._terms.grace_s, GRACE_ENDS, w, None)
        if failure.returns_s < NEVER:
            self._push(self.now + failure.returns_s - failure.dies_s, RETURNS, w, None)
        return None

    def _grace_ends(self, w: int, _: object) -> Event | None:
        return None if self._alive[w] else Lost(self.now, self._clients[w])

    def _return(self, w: int, _: object) -> Event | None:
        self._alive[w] = True
        return self.joined(w, self.now)

    # ---- what clients are told

    def _obey(self, given: Iterable[Any]) -> None:
        obeys, index = _OBEYS, self._index
        for command in given:
            follow = obeys.get(type(command))
            if follow is None:
                self._heed(command)
                continue
            if command.round > self._number:
                self._open_round(command.round)
            w = index[command.client]
            late = self._control_s[w]
            if late > 0.0:
                self._push(self.now + late, HEARS, w, command)
            elif self._alive[w]:
                follow(self, w, command)

    def _open_round(self, number: int) -> None:
        self._number = number
        self.asked.clear()
        for w, failure in self._client_model.begin(number):
            self._push(self.now + failure.dies_s, DIES, w, failure)
        # How long a word is under way, in all of this round
        self._control_s = [self._client_model.control_s(w) for w in range(len(self._clients))]

    def _hear(self, w: int, command: Any) -> None:  # noqa: ANN401 - one of _OBEYS
        if self._alive[w]:
            _OBEYS[type(command)](self, w, command)

    def _load(self, w: int, command: Work) -> None:
        """The model comes first, unless the client has it."""
        down_s = self._client_model.down_s(w)
        if command.version == self._version[w] or (down_s == 0.0 and self._terms.line.update_s == 0.0):
            self._work(w, command)
        else:
            self._leave(w, self.now)
            self._queue[w].clear()
            self._behind[w].clear()
            self._loading[w] = command, self.now
            self._down.begin(self.now, w, 1.0, down_s)

    def _work(self, w: int, command: Work) -> None:
        self._leave(w, self.now)
        if command.version != self._version[w]:
            self._forget(w)
            self._version[w] = command.version
        whole = tuple(number for number, _ in command.names) if command.kind == "local" else ()
        if whole != self._whole[w]:  # another model
            for known in (self._reached, self._spent, self._told):
                known[w].pop(WHOLE, None)
        self._whole[w] = whole
        self._most[w] = command.most_steps
        if command.names is not self._names[w]:
            self._names[w] = command.names
            sizes = self._sizes
            self._samples |= {number: sizes[name] for number, name in command.names if name in sizes}
        if self._witness:
            self._witness.begin(command)
        self._begin_round(w, command)

    def _continue(self, w: int, command: Continue) -> None:
        if self._witness:
            self._witness.carry_on(command)
        self._begin_round(w, command)

    def _begin_round(self, w: int, command: Work | Continue) -> None:
        self._leave(w, self.now)
        if command.round != self._round[w]:
            self._worked[w] = 0.0
        self._round[w], self._target[w] = command.round, command.target
        self._goal[w] = command.target
        order = (WHOLE,) if self._whole[w] else command.order[::-1]
        self._queue[w] = dict.fromkeys(order)
        self._start(w, self.now)

    def _skip(self, w: int, command: Skip) -> None:
        chunk = command.chunk
        if command.round != self._round[w]:
            self._keep_behind(w, command)
            return
        if self._current[w] == chunk:
            self._leave(w, self.now)
            self._start(w, self.now)
        else:
            self._queue[w].pop(chunk, None)

    def _take(self, w: int, command: Take) -> None:
        if command.round != self._round[w]:
            self._keep_behind(w, command)
            return
        queue = self._queue[w]
        taken = [chunk for chunk in reversed(command.chunks) if chunk != self._current[w]]
        for chunk in taken:
            queue.pop(chunk, None)
        if self._terms.steered:
            queue.update(dict.fromkeys(taken))
        else:
            self._queue[w] = {**dict.fromkeys(taken), **queue}
        if self._current[w] is None:
            self._start(w, self.now)

    def _keep_behind(self, w: int, command: Skip | Take) -> None:
        """What is said of work whose model is on its way is heard after that."""
        if w in self._loading and self._loading[w][0].round == command.round:
            self._behind[w].append(command)

    def _send(self, w: int, command: Reveal | Repair) -> None:
        if isinstance(command, Reveal) and command.mix is None and not self._stopped(w, command):
            return
        size = share_of(command.wire) / (command.mix.blocks if command.mix else 1)
        flow = self.uploads
        self.asked[command.client, command.attempt] = command
        self.uploads += 1
        self.sent += size
        self.longest = max(self.longest, size)
        self._uploading[flow] = (w, command, size, self.now)
        self._to_send[w].append(flow)
        if len(self._to_send[w]) == 1:
            self._send_next(w)

    def _send_next(self, w: int) -> None:
        if self._to_send[w]:
            flow = self._to_send[w][0]
            _, command, size, _ = self._uploading[flow]
            self._uploading[flow] = (w, command, size, self.now)
            self._up.begin(self.now, flow, size, self._client_model.up_s(w))

    def _withdraw(self, w: int, until: float = NEVER) -> None:
        """Send nothing of the rounds up to this one any more."""
        gone = [flow for flow in self._to_send[w] if self._uploading[flow][1].round <= until]
        for flow in gone:
            self._to_send[w].remove(flow)
            self._up.drop(self.now, flow)
            del self._uploading[flow]
        if gone:
            self._send_next(w)

    def _stopped(self, w: int, command: Reveal) -> bool:
        """Stop a client's local work where it is, and let it tell what it has; return whether it has any."""
        self._leave(w, self.now)
        self._queue[w].clear()
        steps = int(self._reached[w].get(WHOLE, 0.0))
        if not self._terms.partial and steps < self._target[w]:
            steps = 0
        spent = self._spent[w].get(WHOLE, 0.0)
        self._push(self.now + self._control_s[w], SAYS, w, (command.round, WHOLE, steps, spent))
        return steps > 0

    def _close(self, w: int, command: Close) -> None:
        if w in self._loading and self._loading[w][0].round == command.round:
            self._down.drop(self.now, w)
            del self._loading[w]
        self._withdraw(w, command.round)
        if command.round == self._round[w]:
            self._leave(w, self.now)
            self._queue[w].clear()
            if command.frees:
                self._forget(w)

    # ---- what clients do

    def _start(self, w: int, now: float) -> None:
        queue = self._queue[w]
        if not queue:
            return
        chunk = queue.popitem()[0]
        self._current[w] = chunk
        self._begun[w] = now
        self._turn[w] = turn = self._turn[w] + 1
        left = self._goal[w] - self._reached[w].get(chunk, 0.0)
        share = left / self._terms.steps if left > 0.0 else 0.0
        unit = chunk if chunk != WHOLE else 0
        lasts = self._client_model.seconds(w, unit, share, self._worked[w])
        self._lasts[w] = lasts
        heapq.heappush(self._heap, (now + lasts, next(self._order), CHUNK_ENDS, w, turn))

    def _leave(self, w: int, now: float) -> None:
        """Set the present chunk aside."""
        chunk = self._current[w]
        if chunk is None:
            return
        begun, lasts = self._begun[w], self._lasts[w]
        passed = now - begun
        before = self._reached[w].get(chunk, 0.0)
        if lasts > 0:
            self._reached[w][chunk] = before + (self._goal[w] - before) * min(1.0, passed / lasts)
            self._spent[w][chunk] = self._spent[w].get(chunk, 0.0) + passed
        self._worked[w] += passed
        self._current[w] = None
        self._turn[w] += 1
        if self._terms.watch:
            self._stretches.append((w, chunk, begun, now, False))

    def _forget(self, w: int) -> None:
        self._reached[w].clear()
        self._spent[w].clear()
        self._told[w].clear()
        self._version[w] = -1


_HAPPENS: Final[Mapping[int, Callable[[VirtualClock, int, Any], Event | None]]] = {
    CHUNK_ENDS: VirtualClock._chunk_ends,
    SAYS: VirtualClock._said,
    HEARS: VirtualClock._hear,
    DIES: VirtualClock._die,
    GRACE_ENDS: VirtualClock._grace_ends,
    RETURNS: VirtualClock._return,
    ARRIVES: VirtualClock._arrived,
}
_OBEYS: Final[Mapping[type, Callable[[VirtualClock, int, Any], None]]] = {
    Work: VirtualClock._load,
    Continue: VirtualClock._continue,
    Skip: VirtualClock._skip,
    Take: VirtualClock._take,
    Reveal: VirtualClock._send,
    Repair: VirtualClock._send,
    Close: VirtualClock._close,
}
