"""The virtual clock: modelled devices obey a machine, a `Round` or a whole `Run`, as real ones do.

A device walks its queue and begins the next chunk without waiting for an answer; *skip* sets the present
chunk aside with what was done of it, *take* puts chunks next, *close* ends its work and what it had yet to
send. What it is asked to send goes over its own line and the server's, one vector after the other, as in a
session. Commands and progress reach the other side `control_s` later.
Only time is modelled, no vector exists, and no chance: the same arguments give the same events.

In local work a device has one model to train instead of a queue. It tells that it has come to its target
and, where it may, goes on without an answer. It stops where it is when it is asked for what it has, tells how
many whole steps that are, and sends them, if any.

What happens next is the least of four times: the heap of what is under way, the server's line in both
directions, and the machine's own tick. The heap holds plain tuples (when, order, what, device, ...), since a
run is millions of them.

May import: round, plan, codes, messages; conditions, pipe, setting.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final

import numpy as np

from fedgc.codes import Wire, packed_bytes
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
from fedgc.replay.conditions import NEVER
from fedgc.replay.pipe import Pipe
from fedgc.replay.setting import NOTHING_FOUND, Fate, Machine, Nature, Span, Terms, Witness
from fedgc.round import Round

# What stands on the heap
_CHUNK_ENDS: Final = 0
_SAYS: Final = 1
_HEARS: Final = 2
_DIES: Final = 3
_GRACE_ENDS: Final = 4
_RETURNS: Final = 5
_ARRIVES: Final = 6

WHOLE: Final = -1  # stands for all chunks of a device, where one model is trained on them together
MANY: Final = 1 << 20  # numbers: enough that what goes with each group of them is fairly shared out
SHARE: Final = {wire.value: packed_bytes(MANY, wire) / packed_bytes(MANY, Wire.FLOAT32) for wire in Wire}

Stretch = tuple[int, int, float, float, bool]  # device, chunk, begin, end, finished


class World:
    """Owns the clock and what every device is at."""

    _sizes: dict[str, int]  # samples of the chunks that all can load, by name
    _samples: dict[int, int]  # and by the numbers that the machine gives to chunks
    _names: list[tuple[tuple[int, str], ...]]  # as work named them last to each device

    def __init__(
        self,
        devices: Sequence[str],
        nature: Nature,
        terms: Terms,
        holds: Sequence[Held] = (),
        witness: Witness | None = None,
    ) -> None:
        workers = len(devices)
        self.now, self.sent, self.longest = 0.0, 0.0, 0.0  # sent: whole updates, in parts, the longest so
        self.computed, self.uploads = 0, 0  # computed: chunks taken to their target
        self._devices = tuple(devices)
        self._index = {device: w for w, device in enumerate(devices)}
        self._nature, self._terms, self._holds = nature, terms, [tuple(holds)] * workers
        self._witness, self._names = witness, [()] * workers
        self._sizes, self._samples = {held.name: held.samples for held in holds}, {}
        self.asked: dict[tuple[str, int], Reveal | Repair] = {}  # for what (device, attempt), in this round
        self._heed: Callable[[Any], object] = lambda _: None
        self._heap: list[tuple[Any, ...]] = []
        self._order = count()
        self._up, self._down = Pipe(terms.line), Pipe(terms.line)
        self._uploading: dict[int, tuple[int, Reveal | Repair, float, float]] = {}
        self._to_send: list[deque[int]] = [deque() for _ in devices]  # the first of them is on its way
        self._loading: dict[int, tuple[Work, float]] = {}  # and since when
        self._behind: list[list[Skip | Take]] = [[] for _ in devices]  # said while the model came
        self._stretches: list[Stretch] = []
        self._mixed: set[tuple[int, int]] = set()  # device and chunk of what was sent
        self._number, self._alive = -1, [True] * workers
        self._queue: list[dict[int, None]] = [{} for _ in devices]  # the next one last
        self._current: list[int | None] = [None] * workers
        self._begun, self._lasts, self._control_s = ([0.0] * workers for _ in range(3))
        self._turn, self._worked = [0] * workers, [0.0] * workers
        self._round, self._version = [-1] * workers, [-1] * workers
        # Steps that were asked for, that it is on its way to, and up to which it goes on by itself
        self._target, self._goal, self._most = [0] * workers, [0] * workers, [0] * workers
        self._reached: list[dict[int, float]] = [{} for _ in devices]  # steps from the common model
        self._spent: list[dict[int, float]] = [{} for _ in devices]  # seconds since the common model
        self._told: list[dict[int, int]] = [{} for _ in devices]  # steps at which a chunk was told last
        self._whole: list[tuple[int, ...]] = [() for _ in devices]  # local work: what the one model is on

    # ---- the clock

    def spans(self) -> tuple[Span, ...]:
        """Return what every device was at since this was last asked, where that is watched."""
        stretches, self._stretches = self._stretches, []
        mixed, self._mixed = self._mixed, set()
        return tuple(
            Span(self._devices[worker], chunk, begin, end, finished, finished and (worker, chunk) in mixed)
            for worker, chunk, begin, end, finished in stretches
        )

    def joined(self, worker: int, now: float, *, live: bool = True) -> Joined:
        """Return the hello of a device."""
        kept: tuple[Kept, ...] = ()
        if self._reached[worker]:
            version = self._version[worker]
            reached = [(c, r) for at, r in self._reached[worker].items() for c in self._chunks(worker, at)]
            kept = tuple(Kept(version, c, int(r)) for c, r in reached if r >= 1)
        return Joined(now, self._devices[worker], live, self._holds[worker], kept)

    def _chunks(self, worker: int, at: int) -> tuple[int, ...]:
        return self._whole[worker] if at == WHOLE else (at,)

    def play(self, machine: Round, live: Sequence[bool], now: float) -> None:
        """Drive one round, which has not begun, to its end; each device can load what the plan gives it."""
        self.now = now
        plan = machine.plan
        held = [Held(chunk.name, chunk.samples, chunk.digest) for chunk in plan.chunks]
        self._holds = [tuple(held[c] for c in np.flatnonzero(held_c)) for held_c in plan.placement.holds]
        self._samples = {chunk.number: chunk.samples for chunk in plan.chunks}
        present = [self.joined(worker, now, live=hears) for worker, hears in enumerate(live)]
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
            self.now, _, what, worker, detail = heapq.heappop(heap)
            return _HAPPENS[what](self, worker, detail)
        self.now = tick
        return Tick(tick)

    def _push(self, when: float, what: int, worker: int, detail: object) -> None:
        heapq.heappush(self._heap, (when, next(self._order), what, worker, detail))

    # ---- what happens

    def _chunk_ends(self, worker: int, turn: int) -> Event | None:
        chunk = self._current[worker]
        if turn != self._turn[worker] or chunk is None:
            return None
        now, lasted = self.now, self._lasts[worker]
        self._worked[worker] += lasted
        self._current[worker] = None
        reached, goal = self._reached[worker], self._goal[worker]
        told_again = self._told[worker].get(chunk) == goal
        reached[chunk] = max(goal, reached.get(chunk, 0.0))
        steps = self._told[worker][chunk] = int(reached[chunk])
        self.computed += chunk != WHOLE and not told_again
        if self._terms.watch and not told_again:
            self._stretches.append((worker, chunk, self._begun[worker], now, True))
        spent = self._spent[worker][chunk] = self._spent[worker].get(chunk, 0.0) + lasted
        if chunk == WHOLE and steps < self._most[worker]:
            self._goal[worker] = self._most[worker]
            self._queue[worker][chunk] = None
        self._start(worker, now)
        said, late = (self._round[worker], chunk, steps, spent), self._control_s[worker]
        if late == 0.0:
            return self._said(worker, said)
        self._push(now + late, _SAYS, worker, said)
        return None

    def _said(self, worker: int, said: tuple[int, int, int, float]) -> Event | None:
        number, chunk, target, spent = said
        if not self._alive[worker]:
            return None
        if chunk == WHOLE:
            return self._reported(worker, number, target, spent)
        found = self._witness.finding(chunk, target) if self._witness else NOTHING_FOUND
        return Progress(
            self.now,
            self._devices[worker],
            number,
            chunk,
            target,
            spent,
            self._samples.get(chunk, found.samples),
            found.squared_norm,
            found.loss,
            found.sketch,
        )

    def _reported(self, worker: int, number: int, steps: int, spent: float) -> Report:
        device = self._devices[worker]
        found = self._witness.reached(device, steps) if self._witness else NOTHING_FOUND
        samples = sum(self._samples[chunk] for chunk in self._whole[worker])
        return Report(self.now, device, number, steps, samples, spent, found.squared_norm, found.loss)

    def _transferred(self, now: float) -> Event | None:
        """One transfer a time, so that the machine hears them one by one."""
        if self._down.next_end <= now:
            for worker in self._down.ended(now):
                self._loaded(worker, now)
            return None
        for flow in self._up.ended(now):
            worker, told, size, began = self._uploading.pop(flow)
            self._to_send[worker].popleft()
            self._send_next(worker)
            if self._terms.watch and told.mix:
                self._mixed.update((worker, chunk) for chunk in told.mix.chunks)
            heard = now if told.mix else now + self._control_s[worker]  # after what it says of it
            size_bytes = round(size * self._terms.update_bytes)
            device, number, attempt = self._devices[worker], told.round, told.attempt
            said = Codeword(heard, device, number, attempt, now - began, size_bytes)
            self._push(heard, _ARRIVES, worker, said)
        return None

    def _loaded(self, worker: int, now: float) -> None:
        command, began = self._loading.pop(worker)
        self._work(worker, command)
        behind, self._behind[worker] = self._behind[worker], []
        for each in behind:
            _OBEYS[type(each)](self, worker, each)
        told = now + self._control_s[worker]
        device, size_bytes = self._devices[worker], self._terms.update_bytes
        said = Loaded(told, device, command.version, now - began, size_bytes)
        self._push(told, _ARRIVES, worker, said)

    def _arrived(self, worker: int, said: Codeword | Loaded) -> Event | None:
        return said if self._alive[worker] else None

    def _die(self, worker: int, fate: Fate) -> Event | None:
        if not self._alive[worker]:
            return None
        self._leave(worker, self.now)
        self._queue[worker].clear()
        self._alive[worker] = False
        self._down.drop(self.now, worker)
        self._loading.pop(worker, None)
        self._behind[worker].clear()
        self._withdraw(worker)
        if not fate.keeps:
            self._forget(worker)
            if self._witness:
                self._witness.lost(self._devices[worker])
        self._push(self.now + self._terms.grace_s, _GRACE_ENDS, worker, None)
        if fate.returns_s < NEVER:
            self._push(self.now + fate.returns_s - fate.dies_s, _RETURNS, worker, None)
        return None

    def _grace_ends(self, worker: int, _: object) -> Event | None:
        return None if self._alive[worker] else Lost(self.now, self._devices[worker])

    def _return(self, worker: int, _: object) -> Event | None:
        self._alive[worker] = True
        return self.joined(worker, self.now)

    # ---- what devices are told

    def _obey(self, given: Iterable[Any]) -> None:
        obeys, index = _OBEYS, self._index
        for command in given:
            follow = obeys.get(type(command))
            if follow is None:
                self._heed(command)
                continue
            if command.round > self._number:
                self._open_round(command.round)
            worker = index[command.device]
            late = self._control_s[worker]
            if late > 0.0:
                self._push(self.now + late, _HEARS, worker, command)
            elif self._alive[worker]:
                follow(self, worker, command)

    def _open_round(self, number: int) -> None:
        self._number = number
        self.asked.clear()
        for worker, fate in self._nature.begin(number):
            self._push(self.now + fate.dies_s, _DIES, worker, fate)
        # How long a word is under way, in all of this round
        self._control_s = [self._nature.control_s(worker) for worker in range(len(self._devices))]

    def _hear(self, worker: int, command: Any) -> None:  # noqa: ANN401 - one of _OBEYS
        if self._alive[worker]:
            _OBEYS[type(command)](self, worker, command)

    def _load(self, worker: int, command: Work) -> None:
        """The model comes first, unless the device has it."""
        down_s = self._nature.down_s(worker)
        if command.version == self._version[worker] or (down_s == 0.0 and self._terms.line.update_s == 0.0):
            self._work(worker, command)
        else:
            self._leave(worker, self.now)
            self._queue[worker].clear()
            self._behind[worker].clear()
            self._loading[worker] = command, self.now
            self._down.begin(self.now, worker, 1.0, down_s)

    def _work(self, worker: int, command: Work) -> None:
        self._leave(worker, self.now)
        if command.version != self._version[worker]:
            self._forget(worker)
            self._version[worker] = command.version
        whole = tuple(number for number, _ in command.names) if command.kind == "local" else ()
        if whole != self._whole[worker]:  # another model
            for known in (self._reached, self._spent, self._told):
                known[worker].pop(WHOLE, None)
        self._whole[worker] = whole
        self._most[worker] = command.most_steps
        if command.names is not self._names[worker]:
            self._names[worker] = command.names
            sizes = self._sizes
            self._samples |= {number: sizes[name] for number, name in command.names if name in sizes}
        if self._witness:
            self._witness.begin(command)
        self._begin_round(worker, command)

    def _continue(self, worker: int, command: Continue) -> None:
        if self._witness:
            self._witness.carry_on(command)
        self._begin_round(worker, command)

    def _begin_round(self, worker: int, command: Work | Continue) -> None:
        self._leave(worker, self.now)
        if command.round != self._round[worker]:
            self._worked[worker] = 0.0
        self._round[worker], self._target[worker] = command.round, command.target
        self._goal[worker] = command.target
        order = (WHOLE,) if self._whole[worker] else command.order[::-1]
        self._queue[worker] = dict.fromkeys(order)
        self._start(worker, self.now)

    def _skip(self, worker: int, command: Skip) -> None:
        chunk = command.chunk
        if command.round != self._round[worker]:
            self._keep_behind(worker, command)
            return
        if self._current[worker] == chunk:
            self._leave(worker, self.now)
            self._start(worker, self.now)
        else:
            self._queue[worker].pop(chunk, None)

    def _take(self, worker: int, command: Take) -> None:
        if command.round != self._round[worker]:
            self._keep_behind(worker, command)
            return
        queue = self._queue[worker]
        taken = [chunk for chunk in reversed(command.chunks) if chunk != self._current[worker]]
        for chunk in taken:
            queue.pop(chunk, None)
        if self._terms.steered:
            queue.update(dict.fromkeys(taken))
        else:
            self._queue[worker] = {**dict.fromkeys(taken), **queue}
        if self._current[worker] is None:
            self._start(worker, self.now)

    def _keep_behind(self, worker: int, command: Skip | Take) -> None:
        """What is said of work whose model is on its way is heard after that."""
        if worker in self._loading and self._loading[worker][0].round == command.round:
            self._behind[worker].append(command)

    def _send(self, worker: int, command: Reveal | Repair) -> None:
        if isinstance(command, Reveal) and command.mix is None and not self._stopped(worker, command):
            return
        size = SHARE[command.wire] / (command.mix.blocks if command.mix else 1)
        flow = self.uploads
        self.asked[command.device, command.attempt] = command
        self.uploads += 1
        self.sent += size
        self.longest = max(self.longest, size)
        self._uploading[flow] = (worker, command, size, self.now)
        self._to_send[worker].append(flow)
        if len(self._to_send[worker]) == 1:
            self._send_next(worker)

    def _send_next(self, worker: int) -> None:
        if self._to_send[worker]:
            flow = self._to_send[worker][0]
            _, command, size, _ = self._uploading[flow]
            self._uploading[flow] = (worker, command, size, self.now)
            self._up.begin(self.now, flow, size, self._nature.up_s(worker))

    def _withdraw(self, worker: int, until: float = NEVER) -> None:
        """Send nothing of the rounds up to this one any more."""
        gone = [flow for flow in self._to_send[worker] if self._uploading[flow][1].round <= until]
        for flow in gone:
            self._to_send[worker].remove(flow)
            self._up.drop(self.now, flow)
            del self._uploading[flow]
        if gone:
            self._send_next(worker)

    def _stopped(self, worker: int, command: Reveal) -> bool:
        """Stop a device's local work where it is, and let it tell what it has; return whether it has any."""
        self._leave(worker, self.now)
        self._queue[worker].clear()
        steps = int(self._reached[worker].get(WHOLE, 0.0))
        if not self._terms.partial and steps < self._target[worker]:
            steps = 0
        spent = self._spent[worker].get(WHOLE, 0.0)
        self._push(self.now + self._control_s[worker], _SAYS, worker, (command.round, WHOLE, steps, spent))
        return steps > 0

    def _close(self, worker: int, command: Close) -> None:
        if worker in self._loading and self._loading[worker][0].round == command.round:
            self._down.drop(self.now, worker)
            del self._loading[worker]
        self._withdraw(worker, command.round)
        if command.round == self._round[worker]:
            self._leave(worker, self.now)
            self._queue[worker].clear()
            if command.frees:
                self._forget(worker)

    # ---- what devices do

    def _start(self, worker: int, now: float) -> None:
        queue = self._queue[worker]
        if not queue:
            return
        chunk = queue.popitem()[0]
        self._current[worker] = chunk
        self._begun[worker] = now
        self._turn[worker] = turn = self._turn[worker] + 1
        left = self._goal[worker] - self._reached[worker].get(chunk, 0.0)
        share = left / self._terms.steps if left > 0.0 else 0.0
        unit = chunk if chunk != WHOLE else 0
        lasts = self._nature.seconds(worker, unit, share, self._worked[worker])
        self._lasts[worker] = lasts
        heapq.heappush(self._heap, (now + lasts, next(self._order), _CHUNK_ENDS, worker, turn))

    def _leave(self, worker: int, now: float) -> None:
        """Set the present chunk aside."""
        chunk = self._current[worker]
        if chunk is None:
            return
        begun, lasts = self._begun[worker], self._lasts[worker]
        passed = now - begun
        before = self._reached[worker].get(chunk, 0.0)
        if lasts > 0:
            self._reached[worker][chunk] = before + (self._goal[worker] - before) * min(1.0, passed / lasts)
            self._spent[worker][chunk] = self._spent[worker].get(chunk, 0.0) + passed
        self._worked[worker] += passed
        self._current[worker] = None
        self._turn[worker] += 1
        if self._terms.watch:
            self._stretches.append((worker, chunk, begun, now, False))

    def _forget(self, worker: int) -> None:
        self._reached[worker].clear()
        self._spent[worker].clear()
        self._told[worker].clear()
        self._version[worker] = -1


_HAPPENS: Final[Mapping[int, Callable[[World, int, Any], Event | None]]] = {
    _CHUNK_ENDS: World._chunk_ends,
    _SAYS: World._said,
    _HEARS: World._hear,
    _DIES: World._die,
    _GRACE_ENDS: World._grace_ends,
    _RETURNS: World._return,
    _ARRIVES: World._arrived,
}
_OBEYS: Final[Mapping[type, Callable[[World, int, Any], None]]] = {
    Work: World._load,
    Continue: World._continue,
    Skip: World._skip,
    Take: World._take,
    Reveal: World._send,
    Repair: World._send,
    Close: World._close,
}
