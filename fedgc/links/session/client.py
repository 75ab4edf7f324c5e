"""The client side of a session: a thread that keeps one gRPC stream open while the engine works.

The engine's thread receives commands and sends events; the session's thread carries them. A broken stream is
opened again with the resume ticket, after a jittered pause that doubles. If the listener stays away for
longer than the grace time, the session ends, so that the SuperNode is free for other runs. One that is silent
but does not break connections may be suspended, and has `SUSPENDED` grace times: it counts its own from when
it notices broken streams. One that answers is busy, not away, however long it takes to admit a client.
"""

import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Self

import grpc

from fedgc.codecs import EXACT
from fedgc.codecs.model_change import Changed, ChangeForm
from fedgc.errors import BadMessage, BadVector, EdgeFailed, FedgcError, Refused
from fedgc.guards import guarded
from fedgc.large_vectors import Readable, Scratch
from fedgc.links import frames as wire
from fedgc.links import identity
from fedgc.links.byte_counts import Accounts, Amounts
from fedgc.links.frames import (
    Ack,
    Bye,
    Challenge,
    Denied,
    Grant,
    Heard,
    Hello,
    Invitation,
    Numbered,
    Offer,
    Piece,
    Ping,
    StreamId,
    Unwanted,
    Welcome,
)
from fedgc.links.identity import Identity
from fedgc.links.pieces import Incoming, Source, Vector, offer_of, shortened
from fedgc.links.session.arrived_models import ArrivedModels
from fedgc.links.session.certificate import fingerprint
from fedgc.links.session.flow import Flow
from fedgc.links.session.options import OPENING_QUIET, QUIET, SILENCE, client_options, ping_s
from fedgc.messages import WIRE_VERSION, Close, ToClient, Validate, Work

GOODBYE_S: Final = 2.0  # minimum for a goodbye to arrive; the listener answers by closing the stream
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
SUSPENDED: Final = 3.0  # grace times
CANCELLED: Final = grpc.StatusCode.CANCELLED  # by the watcher of a stream


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


class _Stream:
    """One gRPC stream: first the frames that open it, then those of the flow."""

    def __init__(self, now: float) -> None:
        self.heard = now
        self.answered = False
        self.opening: deque[bytes] = deque()
        self.open = False
        self.over = False
        self.call: Any = None


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
        self._flow = Flow(terms.piece_bytes, Accounts(), lambda count: Amounts(up_bytes=count))
        self._changed = threading.Condition()
        self._inbox: deque[ToClient] = deque()
        self._closed = -1  # the last round whose codewords are no longer wanted
        self._stream = _Stream(terms.clock())
        self._contact = terms.clock()
        self._lease_end: float | None = None
        self._reached = self._complete = False
        self._silent = False  # since it last answered, the listener let a stream open and said nothing on it
        self._ended = ""
        self._thread = threading.Thread(target=self._keep_open, name="fedgc-session", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end("left")
        self._thread.join(self._terms.grace_s)

    # ---- for the engine's thread

    @property
    def run(self) -> str:
        """The run of the invitation."""
        return self._invitation.run

    @property
    def ended(self) -> str:
        """Why the session is over; empty while it is open."""
        return self._ended

    @property
    def complete(self) -> bool:
        """Whether the server has said that the run is complete."""
        return self._complete

    @property
    def reached(self) -> bool:
        """Whether the listener ever answered; if not, its port may be blocked."""
        return self._reached

    @property
    def lease_over(self) -> bool:
        """Whether the session should end when no round is open."""
        return self._lease_end is not None and self._terms.clock() >= self._lease_end

    @property
    def accounts(self) -> Accounts:
        """The byte accounts, by round."""
        return self._flow.accounts

    def receive(self, wait_s: float) -> ToClient | None:
        """Return the next command, waiting up to `wait_s` seconds; None if there is none."""
        with self._changed:
            self._watch()
            self._changed.wait_for(lambda: self._ended or self._next_ready(), wait_s)
            if self._ended or not self._next_ready():
                return None
            command = self._inbox.popleft()
            if isinstance(
                command, Work | Validate
            ):  # now: the next model may come before this one is asked for
                self._models.release()
            return command

    def expect(self, numbers: int) -> None:
        """Take models of this length."""
        with self._changed:
            self._models.numbers = numbers

    def rest(self, wait_s: float) -> None:
        """Wait, at most until a command can be received."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._next_ready(), wait_s)

    def fresh_model(self, version: int) -> Vector | None:
        """Return the model of the last work, once, if it arrived and is of this version."""
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
        """Send an event; it arrives even if the stream breaks now."""
        with self._changed:
            self._flow.channel.send(event)
            self._changed.notify_all()

    def offer(self, round_: int, attempt: int, vector: Readable, wire: str = EXACT) -> None:
        """Send a codeword in this format once the listener grants a slot.

        It is read while it is sent: it must not change until the round is closed.
        """
        stream = StreamId("codeword", round_, attempt)
        self.offer_packed(stream, shortened(vector, wire, stream, self._who.client))

    def offer_packed(self, stream: StreamId, vector: Readable) -> None:
        """Send an encoded vector, unless its round was closed meanwhile."""
        source = Source(vector)
        with self._changed:
            if stream.number > self._closed:
                self._flow.announce(offer_of(stream, source), source, at_once=False)
                self._changed.notify_all()

    def end(self, reason: str) -> None:
        """Send a goodbye and end; the stream closes when it is acknowledged or after a timeout."""
        with self._changed:
            if not self._ended:
                with contextlib.suppress(BadMessage):  # the queue is full: the end of the stream must do
                    self._flow.channel.send(Bye(reason))
            self._finish(reason)

    # ---- state, with the lock held

    def _finish(self, reason: str) -> None:
        self._ended = self._ended or reason
        self._changed.notify_all()

    def _watch(self) -> None:
        away, limit_s = self._terms.clock() - self._contact, self._terms.grace_s
        limit_s *= SUSPENDED if self._silent else 1.0
        if self._lease_end is None and self._terms.connect_s is not None:
            limit_s = self._terms.connect_s
        if not self._stream.open and away > limit_s:
            where = "" if self._reached else f": {self._invitation.address} could not be reached"
            self._finish(f"the server was away for {away:.1f} s{where}")

    def _next_ready(self) -> bool:
        """Whether the first command can be carried out; work waits for its model, unless it is over."""
        while (
            self._inbox
            and isinstance(work := self._inbox[0], Work | Validate)
            and work.version != self._models.version
        ):
            if not any(isinstance(each, Close) and each.round >= work.round for each in self._inbox):
                return False
            self._inbox.popleft()
        return bool(self._inbox)

    # ---- the session's thread

    def _keep_open(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._ended:
            try:
                with guarded("a session's stream"):
                    was_open = self._converse()
            except Refused as error:  # nothing else ends this thread: the engine waits for it
                self.end(str(error))
                return
            if was_open:
                pause_s = FIRST_PAUSE_S
            with self._changed:
                self._watch()
                self._changed.wait_for(lambda: self._ended, pause_s * (0.5 + self._terms.chance()))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _converse(self) -> bool:
        """Open one stream and read it to its end; return whether the listener admitted this client."""
        stream = self._stream = _Stream(self._terms.clock())
        proxied = self._invitation.authority
        credentials = grpc.ssl_channel_credentials(proxied or self._invitation.certificate)
        options = client_options(self._terms.grace_s, direct=not proxied)
        with grpc.secure_channel(self._invitation.address, credentials, options=options) as channel:
            stream.call = channel.stream_stream(wire.METHOD)(self._frames(stream))
            watcher = threading.Thread(target=self._ping, args=(stream,), daemon=True)
            watcher.start()
            was_open = False
            try:
                for message in stream.call:
                    with guarded("a frame of the server"):
                        for frame in wire.split(message):
                            self._arrived(stream, frame)
                    was_open = was_open or stream.open
            except grpc.RpcError as error:  # a broken stream: try again until the grace time is over
                self._silent = error.code() is CANCELLED or (self._silent and not stream.answered)
            except Refused as error:  # a server that breaks the protocol: no new stream helps
                self.end(str(error))
                self._drain(stream)
            finally:
                with self._changed:
                    if was_open or stream.answered:
                        self._contact = self._terms.clock()
                    stream.open = False
                    stream.over = True
                    self._changed.notify_all()
                stream.call.cancel()
                watcher.join()
        return was_open

    @staticmethod
    def _drain(stream: _Stream) -> None:
        """Discard what arrives until the listener closes the stream or the watcher cancels it."""
        with contextlib.suppress(grpc.RpcError):
            for _ in stream.call:
                pass

    def _ping(self, stream: _Stream) -> None:
        """Ping; close the stream when the session ends, or after too long a silence.

        A stream that is not open yet has longer: a busy listener opens one after the other.
        """
        grace_s = self._terms.grace_s
        with self._changed:
            quiet = 0
            while not (self._ended or stream.over) and quiet < (QUIET if stream.open else OPENING_QUIET):
                self._flow.ping()
                self._changed.notify_all()
                before = stream.heard
                self._changed.wait_for(lambda: self._ended or stream.over, ping_s(grace_s))
                quiet = quiet + 1 if stream.heard == before else 0
            if self._ended:
                last_s = max(GOODBYE_S, SILENCE * grace_s)
                self._changed.wait_for(lambda: stream.over or not stream.open, last_s)
        stream.call.cancel()

    def _frames(self, stream: _Stream) -> Iterator[bytes]:
        while True:
            with self._changed:
                frame = None
                while frame is None:
                    if stream.over:
                        return
                    if stream.opening:
                        frame = stream.opening.popleft()
                    elif stream.open and (self._flow.channel.waits or not self._ended):
                        frame = _next_message(self._flow, self.end)
                    if frame is None and self._ended:
                        return
                    if frame is None:
                        self._changed.notify_all()
                        self._changed.wait()
            self._slow_down(stream, len(frame))
            yield frame

    def _slow_down(self, stream: _Stream, size: int) -> None:
        """Sleep as long as `size` bytes take at `uplink_bytes_s`."""
        if math.isfinite(self._terms.uplink_bytes_s):
            with self._changed:
                self._changed.wait_for(lambda: self._ended or stream.over, size / self._terms.uplink_bytes_s)

    def _arrived(self, stream: _Stream, frame: bytes) -> None:
        now = self._terms.clock()
        value = wire.decode(frame, wire.FROM_SERVER, now=now, client=self._who.client)
        with self._changed:
            stream.heard = now
            self._reached = stream.answered = True
            if isinstance(value, Piece):
                self._piece(value, len(frame))
            else:
                self._flow.accounts.add(Amounts(control_bytes=len(frame)))
                if value.sequence == 0 or self._flow.channel.accept(value.sequence):
                    self._line(stream, value)
            self._changed.notify_all()

    def _line(self, stream: _Stream, line: Numbered) -> None:
        match line.value:
            case Challenge() as challenge:
                stream.opening.append(wire.encode(self._hello(challenge)))
            case Welcome() as welcome:
                self._welcome(stream, welcome)
            case Denied(reason):
                self._finish(reason)
            case Bye(reason, complete):
                self._complete = self._complete or complete
                self._finish(reason)
            case Offer() as offer:
                self._expect(offer)
            case Heard() | Ack() | Grant() | Unwanted() | Ping() as about:
                self._progress(about)
            case command:
                self._command(command)

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

    def _welcome(self, stream: _Stream, welcome: Welcome) -> None:
        self._credential = welcome.ticket
        if self._lease_end is None:
            self._lease_end = self._terms.clock() + welcome.lease_s
        self._flow.reopen(welcome.heard, (), rests=True)
        stream.open = True

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
        self._flow.accounts.add(Amounts(down_bytes=size))
        try:
            incoming = self._flow.take(piece)
            if incoming is not None and incoming.whole:
                self._models.enter(piece.stream, incoming.verified())
                self._flow.close(piece.stream)
        except BadVector as error:
            self.end(str(error))

    def _command(self, command: ToClient) -> None:
        if isinstance(command, Close):
            self._closed = max(self._closed, command.round)
            self._flow.withdraw(lambda stream: stream.source == "codeword" and stream.number <= command.round)
        if isinstance(command, Work):  # it overtakes its model, so that the model counts in its round
            self._flow.accounts.round = command.round
        self._inbox.append(command)


def _next_message(flow: Flow, end: Callable[[str], None]) -> bytes | None:
    """Return what is to be sent next; end the session if a vector can no longer be read."""
    try:
        return flow.next_message()
    except FedgcError as error:
        flow.withdraw(lambda stream: stream.source == "codeword")
        end(str(error))
        return flow.next_message()
