"""The client side of a session: a thread that keeps one stream open while the engine works.

The engine's thread receives commands and sends events; the session's thread carries them. A broken stream is
opened again with the resume ticket, after a jittered pause that doubles. If the listener stays away for
longer than the grace time, the session ends, so that the SuperNode is free for other runs. One that is silent
but does not break connections may be suspended, and has `SUSPENDED` grace times: it counts its own from when
it notices broken streams. One that answers is busy, not away, however long it takes to admit a client.
"""

import contextlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

from fedgc.codecs import EXACT
from fedgc.codecs.model_change import Changed, ChangeForm
from fedgc.errors import BadMessage, BadVector, EdgeFailed, FedgcError, Refused
from fedgc.guards import guarded
from fedgc.large_vectors import Readable, Scratch
from fedgc.links import frames as wire
from fedgc.links import identity
from fedgc.links.byte_counts import Accounts
from fedgc.links.frames import (
    Ack,
    Bye,
    Challenge,
    Data,
    Denied,
    Grant,
    Heard,
    Hello,
    Invitation,
    Numbered,
    Offer,
    Parts,
    Piece,
    Ping,
    StreamId,
    Unwanted,
    Welcome,
)
from fedgc.links.identity import Identity
from fedgc.links.pieces import Incoming, Source, Vector, is_short, offer_of, shortened
from fedgc.links.session.arrived_models import ArrivedModels
from fedgc.links.session.certificate import fingerprint
from fedgc.links.session.channel import Unacknowledged
from fedgc.links.session.client_stream import ClientStream, Connector
from fedgc.links.session.flow import Flow
from fedgc.links.session.inbox import Inbox
from fedgc.links.session.waker import Waker
from fedgc.messages import WIRE_VERSION, Close, ToClient, Validate, Work

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
SUSPENDED: Final = 3.0  # grace times


@dataclass(frozen=True, slots=True)
class Terms:
    """What a session needs besides its invitation."""

    grace_s: float
    piece_bytes: int
    numbers: int  # length of the model's vector; 0 while it is not known
    clock: Callable[[], float]
    chance: Callable[[], float]  # uniform in [0, 1): the jitter of the pauses
    name: str = ""  # the client's display name
    connect_s: float | None = None  # how long to try before the first welcome (None: the grace time)
    uplink_bytes_s: float = math.inf  # an upper limit, to simulate a slow uplink
    scratch: Scratch = field(default_factory=Scratch)  # where models are received
    changes: ChangeForm = field(default_factory=ChangeForm)  # how a model travels that follows the last one


class Session:
    """The client's session. Open it as a context; then call `receive`, `send` and `offer` from one thread."""

    def __init__(self, invitation: Invitation, who: Identity, terms: Terms) -> None:
        self._invitation = invitation
        self._who = who
        self._terms = terms
        self._server = fingerprint(invitation.certificate)
        self._credential = invitation.token
        self._models = ArrivedModels(terms.changes, terms.scratch)
        self._models.numbers = terms.numbers
        self._flow = Flow(terms.piece_bytes, Accounts(), "up_bytes")
        self._changed = threading.Condition()
        self._inbox = Inbox()
        self._closed = -1  # the last round whose codewords are no longer wanted
        self._stream = ClientStream()
        self._contact = terms.clock()
        self._lease_end: float | None = None
        self.reached = False  # whether the listener ever answered; if not, its port may be blocked
        self.complete = False  # whether the server has said that the run is complete
        self._silent = False  # since it last answered, the listener let a stream open and said nothing on it
        self.ended = ""  # why the session is over; empty while it is open
        self._broken = ""
        self._waker: Waker | None = None  # of the session's thread
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._waker = Waker()
        connector = Connector(self._invitation, self._terms.grace_s, self._terms.uplink_bytes_s, self._waker)
        self._thread = threading.Thread(
            target=self._keep_open, args=(connector,), name="fedgc-session", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end("left")
        if self._thread is not None and self._waker is not None:
            self._thread.join(self._terms.grace_s)
            self._waker.close()

    # ---- for the engine's thread

    @property
    def run(self) -> str:
        """The run of the invitation."""
        return self._invitation.run

    @property
    def lease_over(self) -> bool:
        """Whether the session should end when no round is open."""
        return self._lease_end is not None and self._terms.clock() >= self._lease_end

    @property
    def accounts(self) -> Accounts:
        """The byte accounts, and the round that the client works on."""
        return self._flow.accounts

    def receive(self, wait_s: float) -> ToClient | None:
        """Return the next command, waiting up to `wait_s` seconds; None if there is none."""
        with self._changed:
            self._watch()
            self._changed.wait_for(lambda: self.ended or self._next_ready(), wait_s)
            if self.ended or not self._next_ready():
                return None
            command = self._inbox.popleft()
            if isinstance(
                command, Work | Validate
            ):  # now: the next model may come before this one is asked for
                self._models.release()
            return command

    def expect(self, numbers: int, buffers: int = 0) -> None:
        """Take models of this length; the last numbers are those of buffers."""
        with self._changed:
            self._models.numbers, self._models.buffers = numbers, buffers

    def rest(self, wait_s: float) -> None:
        """Wait, at most until a command can be received."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended or self._next_ready(), wait_s)

    def fresh_model(self, version: int) -> Vector | None:
        """Return the model of the last work, once, if it arrived and is of this version; it is finite."""
        try:
            return self._models.take(version)
        except (BadVector, EdgeFailed) as error:  # a new session gets all of the model
            self.end(str(error))
            return None

    @property
    def changed(self) -> Changed | None:
        """Where the last fresh model differs from one before it; None if all of it came."""
        return self._models.changed

    def send(self, event: object) -> None:
        """Send an event; it arrives even if the stream breaks now.

        A server that acknowledges none of too many ends the session.
        """
        with self._changed:
            try:
                self._flow.channel.send(event)
            except Unacknowledged as error:
                self._finish(str(error))
            self._tell()

    def offer(self, round_: int, attempt: int, vector: Readable, wire: str = EXACT) -> None:
        """Send a codeword in this format: a short one at once, another once the listener grants a slot.

        It is read while it is sent: it must not change until the round is closed.
        """
        stream = StreamId("codeword", round_, attempt)
        self.offer_packed(stream, shortened(vector, wire, stream, self._who.client))

    def offer_packed(self, stream: StreamId, vector: Readable) -> None:
        """Send an encoded vector, unless its round was closed meanwhile."""
        source = Source(vector)
        with self._changed:
            if stream.number > self._closed:
                self._flow.announce(offer_of(stream, source), source, at_once=is_short(source.size))
                self._tell()

    def end(self, reason: str) -> None:
        """Send a goodbye and end; the stream closes when it is acknowledged or after a timeout."""
        with self._changed:
            if not self.ended:
                with contextlib.suppress(BadMessage):  # the queue is full: the end of the stream must do
                    self._flow.channel.send(Bye(reason))
            self._finish(reason)

    # ---- state, with the lock held

    def _finish(self, reason: str) -> None:
        self.ended = self.ended or reason
        self._tell()

    def _tell(self) -> None:
        """Tell the other thread that something has changed."""
        self._changed.notify_all()
        if self._waker is not None:
            self._waker.wake()

    def _watch(self) -> None:
        away, limit_s = self._terms.clock() - self._contact, self._terms.grace_s
        limit_s *= SUSPENDED if self._silent else 1.0
        if self._lease_end is None and self._terms.connect_s is not None:
            limit_s = self._terms.connect_s
        if not self._stream.open and away > limit_s:
            why = f" ({self._broken})" if self._broken else ""
            where = "" if self.reached else f": {self._invitation.address} could not be reached{why}"
            self._finish(f"the server was away for {away:.1f} s{where}")

    def _next_ready(self) -> bool:
        """Whether the first command can be carried out; work waits for its model, unless it is over."""
        while isinstance(work := self._inbox.first, Work | Validate) and work.version != self._models.version:
            if not any(isinstance(each, Close) and each.round >= work.round for each in self._inbox):
                return False
            self._inbox.popleft()
        return bool(self._inbox)

    # ---- the session's thread

    def _keep_open(self, connector: Connector) -> None:
        pause_s = FIRST_PAUSE_S
        while not self.ended:
            stream = self._stream = ClientStream()
            try:
                with guarded("a session's stream"):
                    is_silent = stream.carry(connector, self)
            except Refused as error:  # nothing else ends this thread: the engine waits for it
                self.end(str(error))
                return
            if stream.was_open:
                pause_s = FIRST_PAUSE_S
            with self._changed:
                self._closed_stream(stream, is_silent=is_silent)
                self._watch()
                self._changed.wait_for(lambda: self.ended, pause_s * (0.5 + self._terms.chance()))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _closed_stream(self, stream: ClientStream, *, is_silent: bool) -> None:
        self._silent = is_silent or (self._silent and not stream.answered)
        self._broken = stream.broken or self._broken
        if stream.was_open or stream.answered:
            self._contact = self._terms.clock()
        stream.open = False
        self._changed.notify_all()

    def ping(self) -> None:
        """Send a ping."""
        with self._changed:
            self._flow.ping()

    def next_message(self, stream: ClientStream) -> Parts | None:
        """Return what is to be sent next on an open stream; after the end only lines, a goodbye for one."""
        with self._changed:
            if stream.open and (self._flow.channel.waits or not self.ended):
                return _next_message(self._flow, self.end)
            return None

    def arrived(self, stream: ClientStream, frame: Data) -> None:
        """Take in a frame of the listener."""
        now = self._terms.clock()
        value = wire.decode(frame, wire.FROM_SERVER, now=now, client=self._who.client)
        with self._changed:
            self.reached = stream.answered = True
            if isinstance(value, Piece):
                self._piece(value, len(frame))
            else:
                self._flow.accounts.add("control_bytes", len(frame))
                if value.sequence == 0 or self._flow.channel.accept(value.sequence):
                    self._line(stream, value, len(frame))
            self._changed.notify_all()

    def _line(self, stream: ClientStream, line: Numbered, size: int) -> None:
        match line.value:
            case Challenge() as challenge:
                if stream.challenged:
                    raise BadMessage("saw a second challenge on one stream, needed one")
                stream.challenged = True
                stream.opening.append(wire.encode(self._hello(challenge)))
            case Welcome() as welcome:
                self._welcome(stream, welcome)
            case Denied(reason):
                self._finish(reason)
            case Bye(reason, complete):
                self.complete = self.complete or complete
                self._finish(reason)
            case Offer() as offer:
                self._expect(offer)
            case Heard() | Ack() | Grant() | Unwanted() | Ping() as about:
                self._progress(about)
            case command:
                self._command(command, size)

    def _progress(self, line: Heard | Ack | Grant | Unwanted | Ping) -> None:
        match line:
            case Heard(sequence):
                self._flow.channel.confirm(sequence)
            case Ack():
                self._flow.acknowledged(line)
            case Grant(stream, offset):
                self._flow.granted(stream, offset)
            case Unwanted(stream):
                self._flow.withdraw(lambda each: each == stream)
            case Ping():
                pass

    def _hello(self, challenge: Challenge) -> Hello:
        run, credential = self._invitation.run, self._credential
        if challenge.version != WIRE_VERSION:
            self._finish(f"the server speaks wire version {challenge.version}, this client {WIRE_VERSION}")
        signed = identity.statement(WIRE_VERSION, run, credential, challenge.nonce, self._server)
        return Hello(
            WIRE_VERSION,
            run,
            credential,
            self._who.public,
            self._who.sign(signed),
            self._terms.name,
            self._flow.channel.heard,
            self._flow.positions(),
        )

    def _welcome(self, stream: ClientStream, welcome: Welcome) -> None:
        self._credential = welcome.ticket
        if self._lease_end is None:
            self._lease_end = self._terms.clock() + welcome.lease_s
        self._flow.reopen(welcome.heard, (), rests=True)
        stream.open = stream.was_open = True

    def _expect(self, offer: Offer) -> None:
        if offer.stream.source != "model":
            raise BadMessage(f"{offer.stream}: the server offered it, needed a model")
        self._flow.withdraw(lambda stream: stream.source == "model")
        try:
            form = self._models.form(offer.stream)
            self._flow.incoming[offer.stream] = Incoming(offer, form, self._terms.scratch)
        except (BadVector, EdgeFailed) as error:  # another model, or a full disk: no new stream helps
            self.end(str(error))

    def _piece(self, piece: Piece, size: int) -> None:
        self._flow.accounts.add("down_bytes", size)
        try:
            incoming = self._flow.take(piece)
            if incoming is not None and incoming.whole:
                self._models.enter(piece.stream, incoming.verified())
                self._flow.close(piece.stream)
        except BadVector as error:
            self.end(str(error))

    def _command(self, command: ToClient, size: int) -> None:
        if isinstance(command, Close):
            self._closed = max(self._closed, command.round)
            self._flow.withdraw(lambda stream: stream.source == "codeword" and stream.number <= command.round)
        if isinstance(command, Work):  # it overtakes its model, so that the model counts in its round
            self._flow.accounts.round = command.round
        self._inbox.append(command, size)


def _next_message(flow: Flow, end: Callable[[str], None]) -> Parts | None:
    """Return what is to be sent next; end the session if a vector can no longer be read."""
    try:
        return flow.next_message()
    except FedgcError as error:
        flow.withdraw(lambda stream: stream.source == "codeword")
        end(str(error))
        return flow.next_message()
