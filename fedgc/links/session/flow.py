"""The send queue and the receive state of one end of a session, without I/O.

Lines go first, so that a command waits for at most one piece; then acknowledgements; then pieces. What is
short and ready together travels together, and lines are acknowledged at every ping, or when several have
come: each message costs the server more than the line in it. Both ends are alike except that a client's
codeword waits for a grant unless it is short, while a model flows once it is announced. A client sends its
lines in a message of their own: the time of an upload is that from its offer on.
"""

import math
from collections.abc import Callable
from typing import Final

from fedgc.links import frames as wire
from fedgc.links.byte_counts import Accounts, Kind
from fedgc.links.frames import Ack, Offer, Parts, Piece, Ping, Position, StreamId
from fedgc.links.pieces import Incoming, Outgoing, Source, is_short
from fedgc.links.session.channel import Channel

UNHEARD: Final = 16  # received lines that need not be acknowledged before the next ping


class Flow:
    """What one end has to send and is receiving; it outlives the streams that carry it."""

    def __init__(self, piece_bytes: int, accounts: Accounts, sent: Kind) -> None:
        """`sent` is the amount that sent bytes of a vector count as."""
        self.channel: Final = Channel()
        self.accounts: Final = accounts
        self.incoming: Final[dict[StreamId, Incoming]] = {}
        self._outgoing: dict[StreamId, Outgoing] = {}
        self._resting: set[StreamId] = set()
        self._acks: dict[StreamId, int] = {}
        self._pings = False
        self._last: tuple[
            Position, ...
        ] = ()  # the last vector to become whole: its final line may be unacknowledged
        self._piece_bytes = piece_bytes
        self._sent = sent
        self._parts_lines = sent == "up_bytes"

    # ---- sending

    def ping(self) -> None:
        """Send a ping, and the lines that could wait."""
        self._pings = True
        self.channel.hurry()

    def announce(self, offer: Offer, source: Source, *, at_once: bool) -> None:
        """Offer a vector; it flows at once, or `rests` until it is granted."""
        self._outgoing[offer.stream] = Outgoing(offer, source, self._piece_bytes)
        if not at_once:
            self._resting.add(offer.stream)
        self.channel.send(offer)

    def granted(self, stream: StreamId, offset: int) -> None:
        """Let a resting vector flow from `offset`; one that flows already skips what has arrived.

        A grant may come twice: it was repeated on a new stream, or its slot was taken away and given back
        while pieces were in flight. A withdrawn vector is ignored.
        """
        outgoing = self._outgoing.get(stream)
        if outgoing is not None and (stream in self._resting or offset > outgoing.sent):
            outgoing.resume(offset)
            self._resting.discard(stream)

    def acknowledged(self, ack: Ack) -> bool:
        """Note the other end's acknowledgement; return whether it was the last of a vector."""
        outgoing = self._outgoing.get(ack.stream)
        if outgoing is None:
            return False
        if ack.offset < outgoing.offer.size:
            outgoing.acknowledge(ack.offset)
            return False
        del self._outgoing[ack.stream]
        self._resting.discard(ack.stream)
        return True

    def withdraw(self, unwanted: Callable[[StreamId], bool]) -> None:
        """Neither send nor receive these vectors any more."""
        for table in (self._outgoing, self.incoming, self._acks):
            for stream in [each for each in table if unwanted(each)]:
                del table[stream]
        self._resting = {stream for stream in self._resting if not unwanted(stream)}

    @property
    def waits(self) -> bool:
        """Whether `next_message` has something to send."""
        return self._line_waits or any(
            outgoing.waits and stream not in self._resting for stream, outgoing in self._outgoing.items()
        )

    @property
    def _line_waits(self) -> bool:
        short = self.channel.waits or self.channel.unheard >= UNHEARD or self._acks or self._pings
        return bool(short)

    def next_message(self) -> Parts | None:
        """Return the frames that are ready and short as one message, or one long frame, or None."""
        frames: list[Parts] = []
        room: float = math.inf
        while room > 0 and len(frames) < wire.BATCH_FRAMES:
            frame = self.next_frame(room)
            if frame is None:
                break
            room = min(room, wire.BATCH_BYTES) - wire.size_of(frame)
            frames.append(frame)
            if self._parts_lines and len(frame) == 1 and not self._line_waits:
                break
        return wire.join(frames) if frames else None

    def next_frame(self, room: float = math.inf) -> Parts | None:
        """Return the next frame to send, counted, or None; a piece of a vector has at most `room` bytes."""
        frame = self.channel.next_frame(1 if self._pings else UNHEARD)
        if frame is None and self._acks:
            frame = wire.encode(Ack(*self._acks.popitem()))
        if frame is None and self._pings:
            frame = wire.encode(Ping())
        if frame is not None:
            self._pings = False
            self.accounts.add("control_bytes", len(frame))
            return (frame,)
        return self._next_piece(room)

    def _next_piece(self, room: float) -> Parts | None:
        for stream, outgoing in self._outgoing.items():
            if stream in self._resting or outgoing.next_size > room:
                continue
            if piece := outgoing.next_piece():
                frame = wire.encode_piece(piece)
                self.accounts.add(self._sent, wire.size_of(frame))
                return frame
        return None

    # ---- receiving

    def take(self, piece: Piece) -> Incoming | None:
        """Take a piece; return its vector, or None if the vector is not expected."""
        incoming = self.incoming.get(piece.stream)
        if incoming is not None:
            incoming.accept(piece)
            if not incoming.whole:
                self._acks[piece.stream] = incoming.received
        return incoming

    def received(self, stream: StreamId) -> int:
        """Return how many bytes of a vector have arrived."""
        incoming = self.incoming.get(stream)
        return 0 if incoming is None else incoming.received

    def close(self, stream: StreamId, *, can_wait: bool = False) -> None:
        """Note that a vector is whole and checked, and acknowledge it in a line that is kept."""
        incoming = self.incoming.pop(stream)
        self._acks.pop(stream, None)
        self._last = (Position(stream, incoming.offer.size),)
        self.channel.send(Ack(stream, incoming.offer.size), can_wait=can_wait)

    def positions(self) -> tuple[Position, ...]:
        """Return how many bytes of each vector have arrived."""
        return (*(Position(stream, each.received) for stream, each in self.incoming.items()), *self._last)

    def reopen(self, heard: int, positions: tuple[Position, ...], *, rests: bool) -> None:
        """Start a new stream: send again what is missing; vectors that `rests` names wait for new grants."""
        self.channel.reopen(heard)
        self._acks.clear()
        known = {position.stream: position.offset for position in positions}
        for stream, outgoing in self._outgoing.items():
            if rests and not is_short(outgoing.offer.size):
                self._resting.add(stream)
            else:
                outgoing.resume(known.get(stream, 0))
