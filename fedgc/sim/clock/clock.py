"""The virtual clock: modelled clients follow the commands of a `Round` or a `Run` as real clients do.

`ReferenceClient` decides what a client does and reports; the clock decides when. A client begins its next
chunk without waiting for an answer, and a command may arrive in the middle of a step. Uploads share the
client's link and the server's link, one vector after the other, as in a session. Commands and progress
arrive `control_s` later. Only time is modelled; there are no vectors and no randomness: the same arguments
give the same events.

The next event is the earliest of four times: the heap of pending events, the server's link in both
directions, and the machine's own tick. The heap holds plain tuples (when, order, kind, client, ...) for
speed: a run has millions of them.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest
from itertools import chain, count
from typing import Any, Final

from fedgc.errors import FedgcError
from fedgc.messages import (
    Close,
    Codeword,
    Continue,
    Event,
    Failed,
    Held,
    Joined,
    Loaded,
    Lost,
    Offered,
    Repair,
    Reveal,
    Skip,
    Take,
    Tick,
    Work,
)
from fedgc.round.machine import Round
from fedgc.sim.clock.client_model import ClientModel
from fedgc.sim.clock.conditions import NEVER
from fedgc.sim.clock.downloads import Downloads
from fedgc.sim.clock.interfaces import (
    NOTHING_FOUND,
    Failure,
    Machine,
    Observer,
    Terms,
)
from fedgc.sim.clock.reference_client import WHOLE, ReferenceClient, Reported, failed
from fedgc.sim.clock.span_record import SpanRecord
from fedgc.sim.clock.uploads import Uploads

# the kinds of entries on the heap
CHUNK_ENDS, SAYS, HEARS, DIES, GRACE_ENDS, RETURNS, ARRIVES = range(7)


class VirtualClock:
    """Owns the clock and the state of every client."""

    _sizes: dict[str, int]  # samples by chunk name
    _samples: dict[int, int]  # samples by the machine's chunk number

    def __init__(
        self,
        clients: Sequence[str],
        client_model: ClientModel,
        terms: Terms,
        holds: Sequence[Held] = (),
        witness: Observer | None = None,
        owned: Sequence[Sequence[Held]] = (),
    ) -> None:
        """All clients can load the chunks `holds`, or each its own of `owned`."""
        clients_w = len(clients)
        self.now = 0.0
        self.computed = 0  # chunks taken to their target
        self._clients = tuple(clients)
        self._index = {client: w for w, client in enumerate(clients)}
        self._client_model, self._terms = client_model, terms
        self._holds = [tuple(each) for each in owned] or [tuple(holds)] * clients_w
        self._witness = witness
        every = chain(holds, *owned)
        self._sizes, self._samples = {held.name: held.samples for held in every}, {}
        # Requests by client and attempt, in the last round that the client was asked in
        self.asked: dict[str, dict[int, Reveal | Repair]] = {client: {} for client in clients}
        self._heed: Callable[[Any], object] = lambda _: None
        self._heap: list[tuple[Any, ...]] = []
        self._order = count()
        self.uploads = Uploads(clients_w, terms, client_model.up_s)
        self._up = self.uploads.pipe
        self.downloads = Downloads(terms)
        self._down = self.downloads.pipe
        self.watched = SpanRecord(self._clients)
        self._number, self._alive = -1, [True] * clients_w
        self._fleet = [ReferenceClient(client, steered=terms.steered) for client in clients]
        self._versions = [-1] * clients_w  # of the model of each client
        self._begun, self._lasts, self._control_s = ([0.0] * clients_w for _ in range(3))
        self._turn, self._worked = [0] * clients_w, [0.0] * clients_w
        self._runs = [False] * clients_w  # the end of a chunk is on the heap
        self._ends_step: list[Reveal | Repair | None] = [None] * clients_w  # the request after its step

    # ---- the clock

    def joined(self, w: int, now: float, *, live: bool = True) -> Joined:
        """Return the event with which a client joins."""
        return Joined(now, self._clients[w], live, self._holds[w], self._fleet[w].kept())

    def arrives(self, w: int, at: float) -> None:
        """Let a client be away from the beginning, and join at this time."""
        self._alive[w] = False
        self._push(at, RETURNS, w, None)

    def play(self, machine: Round, live: Sequence[bool], now: float) -> None:
        """Run one round that has not begun to its end; each client can load its chunks of the plan."""
        self.now = now
        plan = machine.plan
        held = [Held(chunk.name, chunk.samples, chunk.digest) for chunk in plan.chunks]
        self._holds = [tuple(held[c] for c in sorted(order)) for order in plan.placement.orders]
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
        """Carry out the machine's outputs until `over`; `heed` receives outputs that are not commands."""
        self._heed = heed
        self._obey(given)
        while not over():
            tick, happened = machine.next_tick, None
            while happened is None:  # events that the machine does not see
                happened = self._next(tick)
            self._obey(machine.handle(happened))

    def _next(self, tick: float) -> Event | None:
        """Process the next event; return the machine's view of it."""
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

    # ---- events

    def _chunk_ends(self, w: int, turn: int) -> Event | None:
        if turn != self._turn[w]:
            return None
        asked, client = self._ends_step[w], self._fleet[w]
        if asked is not None:
            self._leave(w)
            client.advance(client.left, 0.0)  # what rounding has left
            self._send(w, asked)
            return None
        lasted = self._lasts[w]
        self._worked[w] += lasted
        self._runs[w] = False
        reported = client.finish(lasted)
        self._count(w, reported, self._begun[w])
        self._go_on(w)
        if self._control_s[w] > 0.0:
            self._say(w, reported)
            return None
        return self._said(w, reported)

    def _count(self, w: int, reported: Reported, begun: float) -> None:
        if reported.repeated:
            return
        self.computed += reported.chunk != WHOLE
        if self._terms.watch:
            self.watched.add(w, reported.chunk, begun, self.now, finished=True)

    def _say(self, w: int, said: Reported | Failed) -> None:
        self._push(self.now + self._control_s[w], SAYS, w, said)

    def _said(self, w: int, said: Reported | Failed) -> Event | None:
        if not self._alive[w]:
            return None
        if isinstance(said, Failed):
            return replace(said, now=self.now)
        client, chunk, witness = self._clients[w], said.chunk, self._witness
        if chunk == WHOLE:
            found = witness.reached(client, said.reached) if witness else NOTHING_FOUND
            samples = sum(self._samples[each] for each in self._fleet[w].names)
        else:
            found = witness.finding(chunk, said.reached) if witness else NOTHING_FOUND
            samples = self._samples.get(chunk, found.samples)
        return said.event(self.now, client, samples, found)

    def _transferred(self, now: float) -> Event | None:
        """Process one transfer, so that the machine receives them one by one."""
        if self._down.next_end <= now:
            for w in self._down.ended(now):
                self._loaded(w, now)
            return None
        for upload in self.uploads.ended(now):
            w, command = upload.w, upload.command
            if self._terms.watch and command.mix:
                self.watched.mixed(w, command.mix.chunks)
            heard = now if command.mix else now + self._control_s[w]  # after the client's report
            size_bytes = round(upload.size * self._terms.update_bytes)
            client, number, attempt = self._clients[w], command.round, command.attempt
            said = Codeword(heard, client, number, attempt, now - upload.began, size_bytes)
            self._push(heard, ARRIVES, w, said)
        return None

    def _loaded(self, w: int, now: float) -> None:
        over = self.downloads.ended(w)
        self._work(w, over.work)
        for each in over.behind:
            _OBEYS[type(each)](self, w, each)
        arrival = now + self._control_s[w]
        client, size_bytes = self._clients[w], round(over.size * self._terms.update_bytes)
        said = Loaded(arrival, client, over.work.version, now - over.began, size_bytes)
        self._push(arrival, ARRIVES, w, said)

    def _arrived(self, w: int, said: Codeword | Loaded | Offered) -> Event | None:
        return said if self._alive[w] else None

    def _die(self, w: int, failure: Failure) -> Event | None:
        if self._alive[w]:
            noticed_s = failure.noticed_s
            self._stop(w, failure, self._terms.grace_s if noticed_s is None else noticed_s)
        return None

    def _stop(self, w: int, failure: Failure, grace_s: float) -> None:
        self._leave(w)
        self._fleet[w].restart(keeps=failure.keeps)
        self._alive[w] = False
        self.downloads.drop(self.now, w)
        self.uploads.withdraw(self.now, w)
        if not failure.keeps:
            self._versions[w] = -1
            self.downloads.has.pop(w, None)
            if self._witness:
                self._witness.lost(self._clients[w])
        self._push(self.now + grace_s, GRACE_ENDS, w, None)
        if failure.returns_s < NEVER:
            self._push(self.now + failure.returns_s - failure.dies_s, RETURNS, w, None)

    def exclude(self, client: str, pause_s: float) -> None:
        """Let the server lose a client at once, and admit it again after a pause."""
        w = self._index[client]
        if self._alive[w]:
            self._stop(w, Failure(0.0, pause_s, keeps=True), 0.0)

    def forecast(self, most: int) -> list[tuple[str, int]]:
        """Return the clients that report local work next, and the steps, if no command changes it."""
        reports = (each for each in self._heap if each[2] in (CHUNK_ENDS, SAYS))
        found = []
        for _, _, what, w, of in nsmallest(most, reports):
            if what == SAYS:
                steps = of.reached if isinstance(of, Reported) and of.chunk == WHOLE else 0
            else:
                steps = int(self._fleet[w].goal) if of == self._turn[w] and self._fleet[w].local else 0
            found += [(self._clients[w], steps)] if steps else []
        return found

    def up_s(self, client: str) -> float:
        """Return the seconds for a whole update on a client's uplink."""
        return self._client_model.up_s(self._index[client])

    def _grace_ends(self, w: int, _: object) -> Event | None:
        if self._alive[w]:
            return None
        self.downloads.has.pop(w, None)  # its session is over
        return Lost(self.now, self._clients[w])

    def _return(self, w: int, _: object) -> Event | None:
        self._alive[w] = True
        return self.joined(w, self.now)

    # ---- commands to clients

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
        for w, failure in self._client_model.begin(number):
            self._push(self.now + failure.dies_s, DIES, w, failure)
        # Latency of a message, constant within the round
        self._control_s = [self._client_model.control_s(w) for w in range(len(self._clients))]

    def _hear(self, w: int, command: Any) -> None:  # noqa: ANN401 - one of _OBEYS
        """Deliver a command, unless the receiving process has died: the next process has no work."""
        if self._alive[w] and (self._fleet[w].round >= 0 or isinstance(command, Work)):
            _OBEYS[type(command)](self, w, command)

    def _steer(self, w: int, command: Any) -> None:  # noqa: ANN401 - one of _OBEYS
        """Let a client follow a command and continue its work."""
        said = _answer(self._fleet[w], command, self.now)
        if said is not None:
            self._say(w, said)
        self._go_on(w)

    def _load(self, w: int, command: Work) -> None:
        """Load the model first, unless the client has it."""
        if command.version == self._versions[w]:
            self._work(w, command)
            return
        down_s, size = self._client_model.down_s(w), self.downloads.size(w, command.version)
        if down_s > 0.0 or self._terms.line.update_s > 0.0:
            self.downloads.begin(self.now, w, command, size, down_s)
            return
        self._work(w, command)
        if command.kind == "local":  # rounds of coded work do not look at it
            heard = self.now + self._control_s[w]
            self._push(heard, ARRIVES, w, Loaded(heard, command.client, command.version))

    def _work(self, w: int, command: Work) -> None:
        self._versions[w] = self.downloads.has[w] = command.version
        if command.names is not self._fleet[w].named:
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
        self._leave(w)
        if command.round != self._fleet[w].round:
            self._worked[w] = 0.0
        self._steer(w, command)

    def _skip(self, w: int, command: Skip) -> None:
        client = self._fleet[w]
        if command.round != client.round:
            self.downloads.keep_behind(w, command)
        elif client.current == command.chunk:
            self._leave(w)
            self._steer(w, command)
        else:
            client.handle(command)

    def _take(self, w: int, command: Take) -> None:
        if command.round == self._fleet[w].round:
            self._steer(w, command)
        else:
            self.downloads.keep_behind(w, command)

    def _send(self, w: int, command: Reveal | Repair) -> None:
        if self.downloads.keep_behind(w, command):
            return
        client = self._fleet[w]
        if client.local:
            self._leave(w)  # the answer stops it
        if self._terms.partial and client.is_in_step():
            self._go_on(w)
            self._ends_step[w] = command
            return
        said = _answer(client, command, self.now, partial=self._terms.partial)
        if said is not None:
            self._say(w, said)
        self._go_on(w)
        if isinstance(said, Failed) or (isinstance(said, Reported) and not said.reached):
            return  # there is no vector
        asked = self.asked[command.client]
        if any(each.round < command.round for each in asked.values()):
            asked.clear()
        asked[command.attempt] = command
        if command.mix is None and self._client_model.up_s(w) < NEVER:  # only local work looks at offers
            heard = self.now + self._control_s[w]
            self._push(heard, ARRIVES, w, Offered(heard, command.client, command.round, command.attempt))
        self.uploads.ask(self.now, w, command)

    def _close(self, w: int, command: Close) -> None:
        self.downloads.drop(self.now, w, command.round)
        self.uploads.withdraw(self.now, w, command.round)
        if command.round == self._fleet[w].round:
            self._leave(w)
            self._fleet[w].handle(command)

    # ---- work of clients

    def _go_on(self, w: int) -> None:
        """Let a client send reports that need no training, and start its next chunk."""
        client = self._fleet[w]
        while (due := client.due()) is not None:
            if isinstance(due, Reported):
                self._count(w, due, self.now)
            self._say(w, due)
        if self._runs[w]:
            return
        chunk = client.start()
        if chunk is None:
            return
        unit = chunk if chunk != WHOLE else 0
        lasts = self._client_model.seconds(w, unit, client.left / self._terms.steps, self._worked[w])
        self._runs[w], self._begun[w], self._lasts[w] = True, self.now, lasts
        self._turn[w] = turn = self._turn[w] + 1
        self._push(self.now + lasts, CHUNK_ENDS, w, turn)

    def _leave(self, w: int) -> None:
        """Record the progress of the present chunk before a command that may set it aside."""
        if not self._runs[w]:
            return
        self._ends_step[w] = None
        client, begun, lasts = self._fleet[w], self._begun[w], self._lasts[w]
        passed = self.now - begun
        if lasts > 0:
            client.advance(client.left * min(1.0, passed / lasts), passed)
        self._worked[w] += passed
        self._runs[w] = False
        self._turn[w] += 1
        if self._terms.watch and client.current is not None:
            self.watched.add(w, client.current, begun, self.now, finished=False)


def _answer(
    client: ReferenceClient,
    command: Any,  # noqa: ANN401  of `_OBEYS`
    now: float,
    *,
    partial: bool = True,
) -> Reported | Failed | None:
    """Let a client follow a command; return its immediate answer."""
    try:
        said = client.handle(command)
    except FedgcError as error:
        return failed(now, command, error)
    is_short = said is not None and said.reached < client.target
    return said._replace(reached=0) if said and is_short and not partial else said


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
