"""One end of a session, without the network: lines, vectors and bytes in the order they should leave.

Lines go first, so that a command waits for at most the piece that is being written; acknowledgements
next; then pieces. Both ends are alike but for who grants: a client's codeword rests until it is granted,
a model flows as soon as it was announced.
"""

from collections.abc import Callable
from typing import Final

from fedgc.links import frames as wire
from fedgc.links.byte_counts import Accounts, Amounts
from fedgc.links.frames import Ack, Offer, Piece, Ping, Position, StreamId
from fedgc.links.pieces import Incoming, Outgoing, Packed
from fedgc.links.session.channel import Channel

Count = Callable[[int], Amounts]


class Flow:
    """What one end has to send and is receiving; it outlives the streams that carry it."""

    def __init__(self, piece_bytes: int, accounts: Accounts, sent: Count) -> None:
        """`sent` makes the amounts of so many bytes of a vector sent from this end."""
        self.channel: Final = Channel()
        self.accounts: Final = accounts
        self.incoming: Final[dict[StreamId, Incoming]] = {}
        self._outgoing: dict[StreamId, Outgoing] = {}
        self._resting: set[StreamId] = set()
        self._acks: dict[StreamId, int] = {}
        self._pings = False
        self._last: tuple[
            Position, ...
        ] = ()  # the vector that was whole last: its last word may be on its way
        self._piece_bytes = piece_bytes
        self._sent = sent

    # ---- out

    def ping(self) -> None:
        """Say something, so that the other end knows that this one is there."""
        self._pings = True

    def announce(self, offer: Offer, vector: Packed, *, at_once: bool) -> None:
        """Offer a vector; it flows at once, or rests until it is granted."""
        self._outgoing[offer.stream] = Outgoing(offer, vector, self._piece_bytes)
        if not at_once:
            self._resting.add(offer.stream)
        self.channel.say(offer)

    def granted(self, stream: StreamId, offset: int) -> None:
        """Let a resting vector flow from `offset`; one that flows already only skips what has arrived.

        A grant may come twice: it was said on a stream that broke, or its slot was taken away and given back
        while pieces were on their way. One that was withdrawn meanwhile is not there.
        """
        outgoing = self._outgoing.get(stream)
        if outgoing is not None and (stream in self._resting or offset > outgoing.sent):
            outgoing.resume(offset)
            self._resting.discard(stream)

    def acknowledged(self, ack: Ack) -> bool:
        """The other end has every byte before this one; return whether that was the last of a vector."""
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
        """Send and take no more of these vectors."""
        for table in (self._outgoing, self.incoming, self._acks):
            for stream in [each for each in table if unwanted(each)]:
                del table[stream]
        self._resting = {stream for stream in self._resting if not unwanted(stream)}

    def next_frame(self) -> bytes | None:
        """Return what should leave next, counted, or None when there is nothing."""
        frame = self.channel.next_frame()
        if frame is None and self._acks:
            frame = wire.encode(Ack(*self._acks.popitem()))
        if frame is None and self._pings:
            frame = wire.encode(Ping())
        if frame is not None:
            self._pings = False
            self.accounts.add(Amounts(control_bytes=len(frame)))
            return frame
        return self._next_piece()

    def _next_piece(self) -> bytes | None:
        for stream, outgoing in self._outgoing.items():
            if stream not in self._resting and (piece := outgoing.next_piece()):
                frame = wire.encode_piece(piece)
                self.accounts.add(self._sent(len(frame)))
                return frame
        return None

    # ---- in

    def take(self, piece: Piece) -> Incoming | None:
        """Take a piece; return its vector, or None where nobody waits for it any more."""
        incoming = self.incoming.get(piece.stream)
        if incoming is not None:
            incoming.accept(piece)
            if not incoming.whole:
                self._acks[piece.stream] = incoming.received
        return incoming

    def close(self, stream: StreamId) -> None:
        """A vector is whole and checked: say so in a line that cannot be lost."""
        incoming = self.incoming.pop(stream)
        self._acks.pop(stream, None)
        self._last = (Position(stream, incoming.offer.size),)
        self.channel.say(Ack(stream, incoming.offer.size))

    def positions(self) -> tuple[Position, ...]:
        """Return how much of each vector is here."""
        return (*(Position(stream, each.received) for stream, each in self.incoming.items()), *self._last)

    def reopen(self, heard: int, positions: tuple[Position, ...], *, rests: bool) -> None:
        """A new stream: what the other end has not is sent again; `rests` waits for new grants."""
        self.channel.reopen(heard)
        self._acks.clear()
        known = {position.stream: position.offset for position in positions}
        for stream, outgoing in self._outgoing.items():
            if rests:
                self._resting.add(stream)
            else:
                outgoing.resume(known.get(stream, 0))
