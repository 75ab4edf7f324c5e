"""The server's state for one client's session: queued commands, codewords owed, uploads in progress.

It lives as long as the client's session, over any number of broken streams. No I/O: the listener moves the
frames and the events.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fedgc.config.link_settings import SHORT_BYTES
from fedgc.errors import BadMessage, BadVector
from fedgc.large_vectors import Scratch
from fedgc.links.frames import CHECKSUM_BYTES, Ack, Grant, Offer, StreamId, Unwanted
from fedgc.links.pieces import Form, Incoming, Numbers, Source, check_offer, is_short
from fedgc.links.session.flow import Flow
from fedgc.messages import (
    SUMMED,
    Close,
    Continue,
    Initialize,
    Refuse,
    Repair,
    Reveal,
    ToClient,
    Validate,
    Work,
)

Length = tuple[int, int]  # of a vector: its numbers, and how many of them, the last ones, are of buffers


@dataclass(frozen=True, slots=True, eq=False)
class Published:
    """A model that can be sent, and its change from the one before, if clients can be sent that."""

    offer: Offer
    source: Source
    change: tuple[Offer, Source] | None = None


def idle() -> None:
    """Do nothing: the client has no connection."""


def nothing() -> int:
    """Return 0: nothing is arriving."""
    return 0


def form_asked(numbers: int, buffers: int, command: Reveal | Repair | Initialize) -> Form:
    """Return the form of the codeword that this command asks for, of so many numbers; the last are buffers.

    >>> form_asked(10, 0, Reveal("a", 1, 0, "local", None)).largest
    40
    """
    if isinstance(command, Reveal) and command.ring is not None:
        return Form(command.ring.words, ring=command.ring.bits)
    if isinstance(command, Initialize):
        return Form(numbers)
    if command.mix is None:
        return Form(numbers, command.wire, exact=buffers)
    return Form(-(-numbers // command.mix.blocks), command.wire, mixed=True)


class Peer:
    """One admitted client."""

    def __init__(
        self,
        client: str,
        ticket: bytes,
        numbers: Callable[[int | None], Length],
        flow: Flow,
        scratch: Scratch,
    ) -> None:
        """`numbers` returns the length of an update from a model; without one, that of the model's vector."""
        self.client: Final = client
        self.ticket: Final = ticket
        self.flow: Final = flow
        self.wake: Callable[[], None] = idle  # tells its connection that there is something to send
        self.arriving: Callable[[], int] = nothing  # bytes that have come of the frame that is arriving
        self.stream: object = None  # the stream that carries the session now, if any
        self.readmitted_at = -math.inf  # when a stream followed a broken one
        self.over = ""  # why its session was ended
        self.may_return = True  # with its ticket, until the message of its session is answered
        self.lease_end = math.inf  # when it gets no new work
        self._leaves = False  # it was asked to end, and does so once its round is over
        self.confirmed = False  # the client has its ticket: its token is void from here on
        self._numbers = numbers
        self._scratch = scratch
        self.knows_work = True  # its process has joined, or is the first of its client
        self.model_since = 0.0  # when the model in transit was announced
        self._round = -1  # for which it has work
        self._version: int | None = None  # that was announced last
        self._loaded: int | None = None  # that has arrived last
        self._model_bytes = 0
        self._expected: dict[StreamId, Form] = {}
        self._offers: dict[StreamId, Offer] = {}
        self._done: set[StreamId] = set()

    # ---- commands to the client

    def command(self, command: ToClient, model: Published | None, now: float) -> None:
        """Queue a command, preceded by the model that it needs if the client lacks it."""
        if isinstance(command, Work | Continue):
            self._round = command.round
        if isinstance(command, Work | Validate):
            self.flow.accounts.round = command.round
            self._send_model(command.version, model, now)
        elif isinstance(command, Reveal | Repair | Initialize):
            stream = StreamId("codeword", command.round, command.attempt)
            version = self._version if isinstance(command, Reveal) else None
            self._expected[stream] = form_asked(*self._numbers(version), command)
        can_wait = False
        if isinstance(command, Close):
            can_wait = command.outcome in SUMMED and self._only_waits(command.round)
            self.forget(command.round)
        self.flow.channel.send(command, can_wait=can_wait)
        if not can_wait:
            self.wake()

    def _only_waits(self, round_: int) -> bool:
        """Whether the client's update of a round is here, so that it waits for the next round."""
        return any(stream.number == round_ and self._may_keep(stream) for stream in self._done)

    def _may_keep(self, stream: StreamId) -> bool:
        """Whether the client may keep its vector until its next work, and hear only then that it is here."""
        form = self._expected[stream]
        return form.largest <= SHORT_BYTES and not (form.mixed or self._leaves)

    def _send_model(self, version: int, model: Published | None, now: float) -> None:
        if version == self._version:
            return
        if model is None:
            raise BadMessage(f"work from model {version}: it was never published")
        self.flow.withdraw(lambda stream: stream.source == "model")
        has_last = self._loaded is not None and self._loaded == self._version == version - 1
        offer, source = model.change if has_last and model.change is not None else (model.offer, model.source)
        self.flow.announce(offer, source, at_once=True)
        self._version, self._model_bytes = version, offer.size - CHECKSUM_BYTES
        self.model_since = now

    def loaded(self, stream: StreamId) -> int:
        """Note that the model in transit has arrived; return its bytes."""
        self._loaded = stream.number
        return self._model_bytes

    def forget(self, round_: int) -> None:
        """Discard the codewords of all rounds up to this one."""

        def old(stream: StreamId) -> bool:
            return stream.source == "codeword" and stream.number <= round_

        self.flow.withdraw(old)
        self._expected = {stream: form for stream, form in self._expected.items() if not old(stream)}
        self._offers = {stream: offer for stream, offer in self._offers.items() if not old(stream)}
        self._done = {stream for stream in self._done if not old(stream)}

    def refuse(self, round_: int, reason: str) -> None:
        """Tell the client what was left out, and count it."""
        self.flow.accounts.add("refused", 1)
        self.flow.channel.send(Refuse(self.client, round_, reason))
        self.wake()

    def is_overdue(self, command: ToClient, now: float) -> bool:
        """Whether a command begins a round for which the client should have renewed its lease."""
        return now > self.lease_end and isinstance(command, Work | Continue) and command.round > self._round

    def leave(self) -> None:
        """Let the client, which was asked to end, wait for nothing."""
        self._leaves = True
        self.flow.channel.hurry()

    # ---- codewords from the client

    def offered(self, offer: Offer) -> bool:
        """Note an offer; return whether it now waits for a slot."""
        stream = offer.stream
        if stream in self._done:
            self.flow.channel.send(Ack(stream, offer.size))
            return False
        needed = self._expected.get(stream)
        if needed is None:
            raise BadVector(f"{stream}: not asked for")
        check_offer(offer, needed)  # now, not when a slot becomes free
        self._offers[stream] = offer
        return True

    def awaits(self, stream: StreamId) -> bool:
        """Whether a codeword was asked for."""
        return stream in self._expected

    def grant(self, stream: StreamId) -> bool:
        """Let an offered codeword flow from its first missing byte; return False if it is not wanted.

        Raises:
            EdgeFailed: The disk has no room for it.
        """
        if stream not in self._offers or self.stream is None:
            return False
        self.expect(stream)
        self.flow.channel.send(Grant(stream, self.flow.incoming[stream].received))
        self.wake()
        return True

    def expect(self, stream: StreamId) -> None:
        """Make room for an offered codeword.

        Raises:
            EdgeFailed: The disk has no room for it.
        """
        if stream not in self.flow.incoming:
            self.flow.incoming[stream] = Incoming(self._offers[stream], self._expected[stream], self._scratch)

    def is_short(self, stream: StreamId) -> bool:
        """Whether an offered codeword is so short that it comes without a grant."""
        offer = self._offers.get(stream)
        return offer is not None and is_short(offer.size)

    def waiting(self) -> tuple[StreamId, ...]:
        """Return the codewords that were offered and are not whole."""
        return tuple(self._offers)

    @property
    def whole(self) -> frozenset[StreamId]:
        """The complete codewords of rounds that are open."""
        return frozenset(self._done)

    def finished(self, stream: StreamId) -> tuple[Numbers, float]:
        """Return a whole codeword, checked, and its norm."""
        incoming = self.flow.incoming[stream]
        vector = incoming.finish()
        can_wait = self._may_keep(stream)
        self.flow.close(stream, can_wait=can_wait)
        self._done.add(stream)
        del self._offers[stream]
        if not can_wait:
            self.wake()
        return vector, self._expected[stream].norm(vector)

    def drop(self, stream: StreamId) -> None:
        """Discard a codeword that is bad or was not asked for."""
        self.flow.channel.send(Unwanted(stream))
        self.flow.withdraw(lambda each: each == stream)
        self._offers.pop(stream, None)
        self._expected.pop(stream, None)
