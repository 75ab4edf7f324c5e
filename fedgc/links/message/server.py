"""The server side of the message link: decides the content of the next packet to each client.

No Flower calls. A client receives nothing between its packets, so a packet asks for what is known to be
needed: the chunks of its order that it has not reported, until its lease is over; or, when there are any, the
codewords that it owes, before all other work. Work that was not done within the lease is asked for again in
the next packet, unless the round is closed.

A lease bounds how long the server waits for an answer: one and a half times the expected time of the work at
the client's past speed, and at most the time left in the round. A packet that fails (TTL over, ClientApp
died, node gone) makes its client lost; it gets an introduction packet after a pause that grows, and joins
again with its cache.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fedgc.errors import BadVector, EdgeFailed, NotAdmitted, Refused, printable
from fedgc.guards import guarded
from fedgc.links import frames as wire
from fedgc.links.byte_counts import Accounts, Amounts
from fedgc.links.frames import Offer, StreamId
from fedgc.links.log import LONGEST_NAME
from fedgc.links.message.outbox import FIRST_PAUSE_S, Model, Outbox
from fedgc.links.message.packets import Answer, Packet, Shelved, codeword, introduction
from fedgc.links.pieces import Numbers, Vector, digest_of, packed
from fedgc.links.quotas import Spent
from fedgc.links.refusals import Refusals
from fedgc.links.session.peer import form_asked
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import (
    LONGEST_REASON,
    Announced,
    Begin,
    Close,
    Closing,
    Codeword,
    Continue,
    Failed,
    Fetched,
    Joined,
    Leaving,
    LinkEvent,
    Lost,
    Masking,
    Open,
    Progress,
    Repair,
    Report,
    Reveal,
    Roster,
    Scored,
    Survivors,
    ToClient,
    Unmask,
    Work,
)

AGAIN_S: Final = 0.2  # pause after an answer before work is asked for: the round may ask for codewords first
OVERHEAD_S: Final = 120.0  # part of a packet's TTL: for the process to start and the message to travel
SLOWEST_BYTES_S: Final = 125_000.0  # one megabit: the slowest uplink that a lease allows for
LONGEST_PAUSE_S: Final = 60.0
NONCE_BYTES: Final = 16


class MessageServer:
    """All clients of one run that use the message link; thread-safe."""

    def __init__(
        self, run: str, numbers: int, emit: Callable[[LinkEvent], None], around: Surroundings
    ) -> None:
        """`numbers` is the length of the model's vector."""
        self._run = run
        self._numbers, self._buffers = numbers, 0
        self._emit = emit
        self._around = around
        self._outboxes: dict[int, Outbox] = {}
        self._model: Model | None = None
        self._ready: dict[tuple[str, StreamId], Numbers] = {}
        self._accounts: dict[str, Accounts] = {}
        self._names: dict[str, str] = {}
        self._lock = threading.RLock()  # reentrant: `name` is called while an event is emitted
        self.wanted: Final = threading.Event()  # a packet may be ready to send
        self.refusals: Final = Refusals(around.log, around.audit)

    # ---- for the driver

    def expect(self, numbers: int, buffers: int = 0) -> None:
        """Take vectors of this length from now on; the last numbers are those of buffers."""
        with self._lock:
            self._numbers, self._buffers = numbers, buffers

    def publish(self, version: int, vector: Vector, change: object = None) -> None:  # noqa: ARG002  not used
        """Make a model available to later work; packets hold all of it."""
        flat = packed(vector)
        with self._lock:
            self._model = version, flat, digest_of(flat).hex()

    def send(self, command: ToClient) -> None:
        """Note a command; the client receives it in its next packet."""
        with self._lock:
            outbox = next((each for each in self._outboxes.values() if each.client == command.client), None)
            if outbox is None:
                return
            match command:
                case Work():
                    self._begin(outbox, command)
                case Continue(_, round_, target, order, lease_s) if outbox.work is not None:
                    work = replace(outbox.work, round=round_, target=target, order=order, lease_s=lease_s)
                    self._begin(outbox, work)
                case Reveal() | Repair():
                    outbox.asks.append(command)
                    stream = StreamId("codeword", command.round, command.attempt)
                    outbox.expected[stream] = form_asked(self._numbers, self._buffers, command)
                case Open() | Roster() | Begin() | Survivors() | Unmask():
                    outbox.packets.append(command)
                    outbox.keyed = command.round
                case Close():
                    outbox.clear()
                    if outbox.leaves:
                        self._let_go(outbox)
                case _:
                    return  # other commands are only for clients that listen while they work
        self.wanted.set()

    def _begin(self, outbox: Outbox, work: Work) -> None:
        outbox.begin(work)
        self._account(outbox.client).round = work.round

    def take(self, client: str, round_: int, attempt: int) -> Numbers:
        """Return a whole codeword, once."""
        with self._lock:
            vector = self._ready.pop((client, StreamId("codeword", round_, attempt)), None)
        if vector is None:
            raise EdgeFailed(f"codeword of {client}, round {round_}, attempt {attempt}: it is not here")
        return vector

    def forget(self, client: str, round_: int, attempt: int) -> None:
        """Free an announced codeword."""
        with self._lock:
            self._ready.pop((client, StreamId("codeword", round_, attempt)), None)

    def settle(self, client: str) -> Amounts:
        """Return this client's byte amounts since the last call."""
        with self._lock:
            return self._account(client).settle()

    def name(self, client: str) -> str:
        """Return the display name of a client."""
        with self._lock:
            return self._names.get(client, "")

    def link(self, _: str) -> str:
        """Return the name of this link."""
        return "messages"

    def clients(self) -> tuple[str, ...]:
        """Return the clients that answer packets."""
        with self._lock:
            return tuple(outbox.client for outbox in self._outboxes.values() if outbox.client)

    def exclude(self, client: str, reason: str) -> None:
        """Lose a client; it is admitted again after a pause."""
        with self._lock:
            self._around.exclude(client, self.name(client), reason)
            for outbox in self._outboxes.values():
                if outbox.client == client:
                    self._failed(outbox)

    # ---- for the grid loop

    def open(self, node: int, asked: bytes | None = None) -> None:
        """Start sending packets to this node; `asked` is the nonce of an introduction it was already sent."""
        with self._lock:
            outbox = self._outboxes.setdefault(node, Outbox())
            if asked is not None:
                outbox.out = introduction(self._run, asked)

    def serves(self, node: int) -> bool:
        """Return whether this node gets packets."""
        with self._lock:
            return node in self._outboxes

    def gone(self, node: int) -> None:
        """Forget a node that is gone."""
        with self._lock:
            if (outbox := self._outboxes.pop(node, None)) is not None:
                self._lose(outbox)

    def packets(self) -> tuple[tuple[int, Packet, float], ...]:
        """Return (node, packet, TTL in seconds) of every packet to send now."""
        now = self._around.clock()
        with self._lock:
            self.wanted.clear()
            due = [
                (node, outbox)
                for node, outbox in self._outboxes.items()
                if outbox.out is None and now >= outbox.next
            ]
            written = [(node, self._fitting(outbox, now)) for node, outbox in due]
            return tuple((node, packet, _life_s(packet, self._numbers)) for node, packet in written if packet)

    def answered(self, node: int, answer: Callable[[Packet], Answer]) -> None:
        """Handle the answer to a packet; `answer` reads it, and may raise a Refused."""
        with self._lock:
            outbox = self._outboxes.get(node)
            packet = outbox.out if outbox else None
            if outbox is None or packet is None:
                return
            outbox.out = None
            try:
                with guarded("an answer", outbox.client or f"node {node}"):
                    self._hear(outbox, answer(packet))
            except Refused as error:
                self._refuse(outbox, error)
                self._failed(outbox)

    def failed(self, node: int, reason: str = "", again_s: float = 0.0) -> None:
        """Handle a packet that will not be answered; the next one follows after `again_s` at the earliest.

        A reason is logged; without one the caller has done so.
        """
        with self._lock:
            outbox = self._outboxes.get(node)
            if outbox is not None and outbox.out is not None:
                if reason:
                    who = self._names.get(outbox.client) or outbox.client or f"node {node}"
                    self._around.log.warning("a message to %s failed: %s", who, printable(reason))
                outbox.out = None
                self._failed(outbox)
                outbox.next = max(outbox.next, self._around.clock() + again_s)

    def waits(self) -> bool:
        """Return whether a packet is in flight, or will soon be sent."""
        with self._lock:
            return any(
                outbox.out is not None or outbox.left or outbox.packets for outbox in self._outboxes.values()
            )

    # ---- writing

    def _fitting(self, outbox: Outbox, now: float) -> Packet | None:
        """Return the packet for a client; if a line of it is too long, the client is lost."""
        try:
            with guarded("a packet", outbox.client):
                return self._written(outbox, now)
        except Refused as error:
            self._refuse(outbox, error)
            outbox.out = None
            self._failed(outbox)
            return None

    def _written(self, outbox: Outbox, now: float) -> Packet | None:
        nonce = self._around.entropy(NONCE_BYTES)
        if not outbox.client:
            outbox.owed, outbox.out = (), introduction(self._run, nonce)
            return outbox.out
        packets = tuple(outbox.packets)
        works = outbox.work is not None and (outbox.asks or (outbox.left and now >= outbox.again))
        if not works and not packets:
            return None
        outbox.packets = []
        if outbox.work is None:  # keys are asked for before there is any work
            outbox.out = Packet(self._run, nonce, 0.0, packets)
            self._count_sent(outbox, outbox.out)
            return outbox.out
        order, lease_s = ((), 0.0) if outbox.asks or not works else (outbox.left, outbox.lease_s(outbox.work))
        work = replace(outbox.work, order=order, lease_s=lease_s)
        outbox.owed, outbox.asks = tuple(outbox.asks), []
        commands = (work, *packets, *outbox.owed)
        outbox.out = Packet(self._run, nonce, lease_s, commands, outbox.lacking(work, self._model))
        self._count_sent(outbox, outbox.out)
        return outbox.out

    def _count_sent(self, outbox: Outbox, packet: Packet) -> None:
        down = 0 if packet.model is None else packet.model[1].nbytes
        control = sum(len(wire.encode(command)) for command in packet.commands)
        account = self._account(outbox.client)
        account.add("down_bytes", down)
        account.add("control_bytes", control)

    # ---- reading

    def _hear(self, outbox: Outbox, answer: Answer) -> None:
        now = self._around.clock()
        self._around.quotas.check(answer.client, now)
        joined = outbox.joined_in(answer)
        joins = [len(line.holds) for line in answer.lines if isinstance(line, Joined)]
        spent = Spent(len(answer.lines), answer.control_bytes, len(joins), max(joins, default=0))
        if told := self._around.spend(answer.client, lambda _: printable(answer.name, LONGEST_NAME), spent):
            raise NotAdmitted(told)
        outbox.pause_s = FIRST_PAUSE_S
        outbox.again = now + AGAIN_S
        outbox.cache = {line.version: line.digest for line in answer.lines if isinstance(line, Shelved)}
        self._names[answer.client] = printable(answer.name, LONGEST_NAME)
        account = self._account(answer.client)
        account.add("up_bytes", answer.up_bytes)
        account.add("control_bytes", answer.control_bytes)
        if not outbox.client and joined is not None:
            self._announce(answer)
            self._around.audit("joined", answer.client, f"over messages, with key {answer.key.hex()}")
            self._admit(outbox, joined)
        for line in answer.lines:
            if isinstance(line, Leaving):
                outbox.leaves, outbox.left = True, ()
                self._emit(line)
            elif isinstance(line, Masking | Scored | Closing | Fetched):
                self._emit(line)
            elif isinstance(line, Progress | Report | Failed):
                self._emit_current(outbox, line)
        self._collect(outbox, answer)

    def _announce(self, answer: Answer) -> None:
        """Emit what a client says of its model before it joins."""
        for line in answer.lines:
            if isinstance(line, Announced):
                self._emit(line)

    def _admit(self, outbox: Outbox, joined: Joined) -> None:
        for other in self._outboxes.values():
            if other is not outbox and other.client == joined.client:
                self._lose(other)
                other.next = self._around.clock() + LONGEST_PAUSE_S  # its node may be gone
        outbox.client, outbox.leaves = joined.client, False
        outbox.work = None
        outbox.clear()
        self._emit(replace(joined, live=False))

    def _emit_current(self, outbox: Outbox, line: Progress | Report | Failed) -> None:
        """Emit an event that belongs to the current round, or the failure of work that is still open."""
        steps = 0 if isinstance(line, Failed) else line.steps if isinstance(line, Report) else line.reached
        if not isinstance(line, Failed) and steps:
            outbox.pace_s.append(line.seconds / steps)
        if isinstance(line, Failed) and line.round == outbox.keyed and not outbox.left:
            self._emit(line)
            return
        if outbox.work is None or line.round != outbox.work.round:
            return
        outbox.settle(line)
        self._emit(line)

    def _collect(self, outbox: Outbox, answer: Answer) -> None:
        """Take the requested codewords; one that did not come counts as failed."""
        offers = {line.stream: line for line in answer.lines if isinstance(line, Offer)}
        failed = {line.round for line in answer.lines if isinstance(line, Failed) and not line.chunks}
        without = {line.round for line in answer.lines if isinstance(line, Report) and not line.steps}
        refused = 0
        for ask in outbox.owed:
            stream = StreamId("codeword", ask.round, ask.attempt)
            if stream not in outbox.expected or ask.round in without:
                continue  # its round is closed, or there is nothing to send
            try:
                self._receive(outbox, answer, offers.get(stream), stream)
            except BadVector as error:
                self._refuse(outbox, error)
                refused += 1
                if ask.round not in failed:
                    reason = str(error)[:LONGEST_REASON]
                    self._emit(Failed(self._around.clock(), outbox.client, ask.round, reason))
        outbox.owed = ()
        if told := self._around.spend(answer.client, self.name, Spent(refusals=refused)):
            raise NotAdmitted(told)

    def _receive(self, outbox: Outbox, answer: Answer, offer: Offer | None, stream: StreamId) -> None:
        array = answer.codewords.get(stream)
        if offer is None or array is None:
            raise BadVector(f"{stream}: it was asked for, and did not come")
        form = outbox.expected.pop(stream)
        vector = codeword(offer, array, form)
        self._ready[outbox.client, stream] = vector
        now, norm = self._around.clock(), form.norm(vector)
        self._emit(Codeword(now, outbox.client, stream.number, stream.attempt, 0.0, offer.size, norm))

    # ---- failures

    def _refuse(self, outbox: Outbox, error: Refused) -> None:
        self.refusals.count(error, outbox.client)
        if outbox.client:
            self._account(outbox.client).add("refused", 1)

    def _failed(self, outbox: Outbox) -> None:
        self._lose(outbox)
        outbox.next = self._around.clock() + outbox.pause_s
        outbox.pause_s = min(2 * outbox.pause_s, LONGEST_PAUSE_S)

    def _let_go(self, outbox: Outbox) -> None:
        """Lose a client that has handed in what it had; its node may be about to end."""
        self._lose(outbox)
        outbox.next = self._around.clock() + LONGEST_PAUSE_S

    def _lose(self, outbox: Outbox) -> None:
        client, outbox.client = outbox.client, ""
        outbox.clear()
        if client:
            self._emit(Lost(self._around.clock(), client))

    def _account(self, client: str) -> Accounts:
        return self._accounts.setdefault(client, Accounts())


def _life_s(packet: Packet, numbers: int) -> float:
    """Return the TTL of a packet, whose vectors have so many numbers."""
    vectors = (packet.model is not None) + sum(isinstance(each, Reveal | Repair) for each in packet.commands)
    return packet.lease_s + OVERHEAD_S + vectors * numbers * 4 / SLOWEST_BYTES_S
