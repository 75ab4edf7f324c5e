"""The table of sessions: connected clients, and their lines. No I/O.

Everything runs in the listener's thread. A peer lives as long as a client's session, over any number of
streams; frames come in from the current stream, events go out to the driver.
"""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from logging import Logger
from typing import Any, Final, Protocol

from fedgc.config import RunConfig
from fedgc.errors import BadMessage, BadVector, NotAdmitted, Refused, Unexpected, printable
from fedgc.fragments import buffers_in, fragment_of, numbers_of
from fedgc.guards import guarded
from fedgc.large_vectors import Scratch
from fedgc.links import frames as wire
from fedgc.links.byte_counts import Accounts
from fedgc.links.frames import Ack, Bye, Heard, Hello, Offer, Piece, Ping, Welcome
from fedgc.links.log import LONGEST_NAME
from fedgc.links.quotas import Quotas, Spent
from fedgc.links.refusals import Audit, Refusals, no_audit
from fedgc.links.session.admission import Admission
from fedgc.links.session.flow import Flow
from fedgc.links.session.peer import Length, Peer, Published
from fedgc.links.session.uploads import Reactions, Uploads
from fedgc.messages import (
    LONGEST_REASON,
    Initialize,
    Joined,
    Leaving,
    LinkEvent,
    Loaded,
    Lost,
    Refuse,
    ToClient,
    Validate,
    Work,
)

READMISSION_S: Final = 0.02  # of a busy listener, for each of many clients that come back together
STREAM_LINES: Final = 30  # lines that take as long as a stream that is opened again: 2 ms, most of it for TLS
LEASE_SLACK_S: Final = 60.0  # after a lease and the grace time: a busy client may be late to notice its end


class Timer(Protocol):
    """The return value of `later`."""

    def cancel(self) -> None:
        """Cancel the call."""


Later = Callable[[float, Callable[[], None]], Timer]


def _called(client: str, name: str) -> str:
    return f"{name} ({client})" if name else client


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Clock, randomness and log, passed in from outside."""

    clock: Callable[[], float]  # seconds on the driver's clock
    entropy: Callable[[int], bytes]
    wall: Callable[[], float]  # seconds since 1970, for the certificate only
    log: Logger
    audit: Audit = no_audit
    quotas: Quotas = field(default_factory=Quotas)
    scratch: Scratch = field(default_factory=Scratch)  # where vectors are received
    began: Callable[[bytes], None] = lambda _: None  # gets the token with which a session began

    def exclude(self, client: str, name: str, reason: str) -> str:
        """Exclude a client for a while; return what it is told."""
        text = f"excluded for {self.quotas.exclude(client, reason, self.clock()):g} s: {reason}"
        self.audit("excluded", client, text)
        self.log.warning("client %s is %s", _called(client, name), printable(text))
        return text

    def spend(self, client: str, name: Callable[[str], str], spent: Spent) -> str:
        """Exclude a client that is now beyond a limit; return what it is told, or an empty string."""
        reason = self.quotas.spend(client, spent, self.clock())
        return self.exclude(client, name(client), reason) if reason else ""


class SessionTable:
    """All peers of one run."""

    def __init__(
        self,
        config: RunConfig,
        numbers: int,
        admission: Admission,
        emit: Callable[[LinkEvent], None],
        around: Surroundings,
    ) -> None:
        """`numbers` is the length of the model's vector."""
        self._config = config
        self._numbers, self._buffers = numbers, 0
        self._admission = admission
        self._emit = emit
        self._around = around
        self._timers: dict[str, Timer] = {}  # of the clients whose streams are broken
        self._models: dict[int, Published] = {}
        self._accounts: dict[str, Accounts] = {}
        self._names: dict[str, str] = {}
        self.peers: Final[dict[str, Peer]] = {}
        self.refusals: Final = Refusals(around.log, around.audit)
        reactions = Reactions(emit, self._refuse, self._lose_overflowed)
        self.uploads: Final = Uploads(config.upload_slots, self.peers, around.clock, reactions)

    # ---- for the driver

    def expect(self, numbers: int, buffers: int) -> None:
        """Take vectors of this length from now on; the last numbers are those of buffers."""
        self._numbers, self._buffers = numbers, buffers

    def publish(self, version: int, model: Published) -> None:
        """Make a model available; clients still receiving the model before are not affected."""
        self._models = {version: model}

    def send(self, command: ToClient) -> None:
        """Queue a command for its client, if it is connected.

        A process that was started again is told nothing of the work of the one before: it has to join first.
        """
        peer = self.peers.get(command.client)
        if peer is not None and (peer.knows_work or isinstance(command, Initialize | Refuse)):
            self._tell(peer, command)

    def _tell(self, peer: Peer, command: ToClient) -> None:
        if peer.is_overdue(command, self._around.clock()):
            self._end(peer, "it has not renewed its lease")
            return
        model = self._models.get(command.version) if isinstance(command, Work | Validate) else None
        try:
            peer.command(command, model, self._around.clock())
        except BadMessage as error:
            self._lose_overflowed(peer, error)
            return
        self.uploads.give_up_unwanted(peer)

    def _lose_overflowed(self, peer: Peer, error: BadMessage) -> None:
        """Lose a client whose queue of unacknowledged lines is full; the current client is not affected."""
        self.refusals.count(error, peer.client)
        self.lose(peer)

    def accounts(self, client: str) -> Accounts:
        """Return the byte accounts of a client."""
        return self._accounts.setdefault(client, Accounts())

    def name(self, client: str) -> str:
        """Return the display name of a client."""
        return self._names.get(client, "")

    def dismiss(self, reason: str, *, complete: bool = False) -> None:
        """Say goodbye to all clients."""
        for peer in self.peers.values():
            with contextlib.suppress(BadMessage):  # the queue of a client that acknowledges nothing is full
                peer.flow.channel.send(Bye(reason, complete))
            peer.wake()

    # ---- joining and leaving

    def admit(self, hello: Hello, nonce: bytes) -> tuple[Peer, Welcome]:
        """Return the peer of a client, new or resumed, for a new stream; or raise NotAdmitted."""
        client = self._admission.check(hello, nonce)
        self._around.quotas.check(client, self._around.clock())
        peer = self.peers.get(client)
        if self._admission.is_new(hello, client, peer):
            peer = self._new_peer(client, hello.credential)
            self._around.audit("joined", client, f"over a session, with key {hello.key.hex()}")
        elif peer is None:
            raise BadMessage("hello: a ticket without a peer")
        elif self._exceeds(peer, Spent(lines=STREAM_LINES)):
            raise NotAdmitted(f"client {client} is {peer.over}")
        peer.stream = None  # the client may have left a stream that looks open here
        peer.wake()
        self.uploads.give_up_unwanted(peer)
        try:
            peer.flow.reopen(hello.heard, hello.positions, rests=False)
        except BadMessage:  # its lines are out of step: no other stream helps
            self.lose(peer)
            raise
        peer.stream = object()
        self._names[client] = printable(hello.name, LONGEST_NAME)
        if timer := self._timers.pop(client, None):
            timer.cancel()
            peer.readmitted_at = self._around.clock()
        lease_s = self._admission.lease_s(client)
        if peer.lease_end == math.inf:
            allowed_s = lease_s + self._config.grace_s + LEASE_SLACK_S
            peer.lease_end = self._around.clock() + allowed_s
        return peer, Welcome(peer.ticket, lease_s, peer.flow.channel.heard)

    def _new_peer(self, client: str, token: bytes) -> Peer:
        before = self.peers.get(client)
        if before is not None:  # its process was started again: what it still has is in its `Joined`
            self._drop(before)
        flow = Flow(self._config.piece_kb * 1024, self.accounts(client), "down_bytes")
        peer = Peer(client, self._around.entropy(32), self._numbers_asked, flow, self._around.scratch)
        peer.knows_work = before is None
        self.peers[client] = peer
        self._admission.used(token, peer)
        self._around.began(token)
        return peer

    def _numbers_asked(self, version: int | None) -> Length:
        """Return how many numbers the updates from a model have; all of the model's without one."""
        if version is None:
            return self._numbers, self._buffers
        part = fragment_of(version, self._config.fragments, self._numbers)
        return numbers_of(part), buffers_in(part, self._numbers, self._buffers)

    def left(self, peer: Peer, stream: object, later: Later) -> None:
        """Handle the end of a stream; its client may come back within the grace time."""
        if peer.stream is not stream:
            return
        peer.stream = None
        self.uploads.give_up_unwanted(peer)
        if self.peers.get(peer.client) is peer:
            since = self._around.clock()
            missed = partial(self._missed, peer, since, later)
            self._timers[peer.client] = later(self._config.grace_s, missed)

    def _missed(self, peer: Peer, since: float, later: Later) -> None:
        """Lose a client that has been away since then, or give it longer.

        Where many streams broke together, their clients are admitted one after the other.
        """
        returned = sum(each.readmitted_at >= since for each in self.peers.values())
        due = since + self._config.grace_s + READMISSION_S * (returned + len(self._timers) - 1)
        rest_s = due - self._around.clock()
        if rest_s <= 0.0 or self.peers.get(peer.client) is not peer:
            self.lose(peer)
        else:
            self._timers[peer.client] = later(rest_s, partial(self._missed, peer, since, later))

    def lose(self, peer: Peer) -> None:
        """Lose a client for good."""
        if self.peers.get(peer.client) is peer:
            self._drop(peer)
            self._emit(Lost(self._around.clock(), peer.client))

    def cancel(self, token: bytes, reason: str) -> None:
        """Void a token; end the session that began with it, if that has a stream: no other can follow.

        Without a stream it ends with its grace time. A process of its client that was started again may take
        its place.
        """
        peer = self._admission.cancel(token)
        if peer is not None and peer.stream is not None:
            self._end(peer, reason)

    def _end(self, peer: Peer, reason: str) -> None:
        """Lose a client that should have ended its session, and tell it why."""
        if self.peers.get(peer.client) is peer:
            peer.over = f"the session is ended: {reason}"
            self._around.log.warning("client %s: %s", _called(peer.client, self.name(peer.client)), peer.over)
            self.lose(peer)

    def _drop(self, peer: Peer) -> None:
        del self.peers[peer.client]
        peer.stream = None
        peer.wake()
        if timer := self._timers.pop(peer.client, None):
            timer.cancel()
        self.uploads.lost(peer)
        peer.flow.withdraw(lambda _: True)  # the peer is known by its token for as long as its message is out

    def exclude(self, client: str, reason: str) -> None:
        """Lose a client; it is admitted again after a pause."""
        told = self._around.exclude(client, self.name(client), reason)
        if peer := self.peers.get(client):
            peer.over = told
            self.lose(peer)

    def _exceeds(self, peer: Peer, spent: Spent) -> bool:
        """Whether a client is now beyond a limit; then it is excluded."""
        peer.over = self._around.spend(peer.client, self.name, spent)
        if peer.over:
            self.lose(peer)
        return bool(peer.over)

    # ---- incoming frames

    def arrived(self, peer: Peer, message: wire.Data) -> None:
        """Handle the frames of a message; raise BadMessage if the lines are out of step for good."""
        try:
            frames = wire.split(message)
        except BadMessage as error:
            self._refuse(peer, peer.flow.accounts.round, error)
            self._exceeds(peer, Spent(lines=1, size_bytes=len(message), refusals=1))
            return
        for frame in frames:
            self._frame(peer, frame)
        if peer.flow.waits:
            peer.wake()

    def _frame(self, peer: Peer, frame: wire.Data) -> None:
        if self.peers.get(peer.client) is not peer:
            return  # the peer is lost or replaced: later frames do not count
        now = self._around.clock()
        if not wire.is_piece(frame) and self._exceeds(peer, Spent(lines=1, size_bytes=len(frame))):
            return
        try:
            with guarded("a session's frame", peer.client):
                self._take_in(peer, frame, now)
        except Unexpected as error:
            self._refuse(peer, peer.flow.accounts.round, error)
            self._exceeds(peer, Spent(refusals=1))

    def _take_in(self, peer: Peer, frame: wire.Data, now: float) -> None:
        try:
            value = wire.decode(frame, wire.FROM_CLIENT, now=now, client=peer.client)
        except BadMessage as error:
            self._refuse(peer, peer.flow.accounts.round, error)
            self._exceeds(peer, Spent(refusals=1))
            return
        if isinstance(value, Piece):
            self._piece(peer, value, len(frame))
        else:
            peer.flow.accounts.add("control_bytes", len(frame))
            if value.sequence == 0 or peer.flow.channel.accept(value.sequence):
                peer.confirmed = peer.confirmed or value.sequence > 0
                self._line(peer, value.value)

    def _line(self, peer: Peer, value: Any) -> None:  # noqa: ANN401  a line or an event
        match value:
            case Heard(sequence):
                peer.flow.channel.confirm(sequence)
            case Ack():
                if peer.flow.acknowledged(value):
                    self._loaded(peer, value)
            case Offer():
                self.uploads.offered(peer, value)
            case Bye():
                self.lose(peer)
            case Ping():
                pass
            case _:
                self._event(peer, value)

    def _event(self, peer: Peer, event: LinkEvent) -> None:
        if isinstance(event, Joined) and self._exceeds(peer, Spent(joins=1, chunks=len(event.holds))):
            return
        peer.knows_work = peer.knows_work or isinstance(event, Joined)
        if isinstance(event, Leaving):
            peer.leave()
        self._emit(event)

    def _loaded(self, peer: Peer, ack: Ack) -> None:
        now = self._around.clock()
        seconds = now - peer.model_since
        peer.flow.accounts.add("download_s", seconds)
        size = peer.loaded(ack.stream)  # the client may claim any size
        self._emit(Loaded(now, peer.client, ack.stream.number, seconds, size))

    def _piece(self, peer: Peer, piece: Piece, size: int) -> None:
        before = peer.flow.received(piece.stream)
        is_new = piece.stream in peer.flow.incoming and piece.offset + len(piece.payload) > before
        # What nobody waits for is no part of an update: its sender gives nothing.
        peer.flow.accounts.add("up_bytes" if is_new else "control_bytes", size)
        try:
            incoming = peer.flow.take(piece)
            if incoming is None or not is_new:
                self._exceeds(peer, Spent(lines=1))
                return
            self.uploads.grown(peer, incoming)
        except BadVector as error:
            self.uploads.give_up(peer, piece.stream, error)
            self._exceeds(peer, Spent(refusals=1))

    def _refuse(self, peer: Peer, round_: int, error: Refused) -> None:
        self.refusals.count(error, peer.client)
        peer.refuse(round_, str(error)[:LONGEST_REASON])
