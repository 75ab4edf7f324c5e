"""The codewords on their way from clients: they wait for a slot, have one, or are whole. No I/O.

A codeword keeps its slot until it is summed or not wanted. A stalled upload loses its slot, and has failed; a
slow one goes to the end of the queue. One of an earlier round has a slot of its own (`upload_slots.py`). A
short codeword follows its offer, without a slot: a grant would take longer than its bytes.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fedgc.errors import BadMessage, BadVector, EdgeFailed
from fedgc.links.frames import Offer, StreamId
from fedgc.links.pieces import Incoming, Numbers
from fedgc.links.session.peer import Peer
from fedgc.links.session.upload_slots import Slots
from fedgc.messages import LONGEST_REASON, Codeword, Failed, LinkEvent, Offered

SLOWEST_BYTES_S: Final = 125_000.0  # one megabit: a slower upload goes to the end of the queue
MOST_SLOW: Final = 1  # times that an upload was that slow, and still goes first after a broken stream

Stub = tuple[str, StreamId]


@dataclass(slots=True)
class _Upload:
    """A codeword under way: when it last grew, to which size, and its size at the last check of its rate.

    A size counts the part of a piece that has come: a piece may take longer than `links.grace-s`.
    """

    moved: float
    looked: float
    size: int
    newest: int

    def trickles(self, size: int, now: float) -> bool:
        """Whether it was too slow since its last check."""
        return size - self.size < SLOWEST_BYTES_S * (now - self.looked)


@dataclass(frozen=True, slots=True)
class Reactions:
    """What follows from uploads for the session of a client."""

    emit: Callable[[LinkEvent], None]
    refuse: Callable[[Peer, int, BadVector], None]  # something of a round
    overflowed: Callable[[Peer, BadMessage], None]  # its queue of lines is full


class Uploads:
    """All uploads of one run."""

    def __init__(
        self, slots: int, peers: Mapping[str, Peer], clock: Callable[[], float], reactions: Reactions
    ) -> None:
        """`peers` are the connected clients at any time."""
        self._peers, self._clock, self._reactions = peers, clock, reactions
        self._ready: dict[Stub, Numbers] = {}
        self._slots: Slots[Stub] = Slots(slots)
        self._newest = 0  # the last round of which an upload was offered
        self._asked: dict[str, set[StreamId]] = {}  # of each client: what is under way or waits for a slot
        self._begun: dict[str, dict[StreamId, float]] = {}  # since when the bytes of each may come
        self._uploads: dict[Stub, _Upload] = {}
        self._slow: dict[str, Counter[StreamId]] = {}  # of each client: how often each was too slow

    # ---- whole codewords

    def take(self, client: str, stream: StreamId) -> Numbers:
        """Return a whole codeword, once, from any thread; its slot is held until `forget`."""
        vector = self._ready.pop((client, stream), None)
        if vector is None:
            raise EdgeFailed(f"{stream} of {client}: it is not here")
        return vector

    @property
    def untaken(self) -> int:
        """The number of whole codewords that nobody has taken."""
        return len(self._ready)

    def forget(self, client: str, stream: StreamId) -> None:
        """Free the slot of a codeword that is summed or not wanted: another may come."""
        self._ready.pop((client, stream), None)
        self._release((client, stream))

    def not_taken(self, event: LinkEvent, error: BadVector) -> None:
        """Give up a whole codeword that could not be announced; its client is told."""
        if isinstance(event, Codeword) and (peer := self._peers.get(event.client)) is not None:
            stream = StreamId("codeword", event.round, event.attempt)
            self._ready.pop((event.client, stream), None)
            self.give_up(peer, stream, error)

    # ---- what clients send

    def offered(self, peer: Peer, offer: Offer) -> None:
        """Queue a codeword that a client offers, or refuse it."""
        try:
            if peer.offered(offer):
                number, attempt = offer.stream.number, offer.stream.attempt
                self._reactions.emit(Offered(self._clock(), peer.client, number, attempt))
                self._expect(peer, offer.stream)
        except BadVector as error:
            if peer.awaits(offer.stream):  # a bad offer in place of the codeword: nobody waits for it
                self.give_up(peer, offer.stream, error)
            else:
                peer.drop(offer.stream)
                self._reactions.refuse(peer, offer.stream.number, error)

    def grown(self, peer: Peer, incoming: Incoming) -> None:
        """Note that a piece has come; announce the codeword once it is whole."""
        stream, now = incoming.offer.stream, self._clock()
        stub = (peer.client, stream)
        if upload := self._uploads.get(stub):
            upload.moved, upload.newest = now, incoming.received
        if not incoming.whole:
            return
        self._ready[stub], norm = peer.finished(stream)
        seconds = now - self._ended(stub, now)
        peer.flow.accounts.add("upload_s", seconds)
        codeword = Codeword(
            now, peer.client, stream.number, stream.attempt, seconds, incoming.size_bytes, norm
        )
        self._reactions.emit(codeword)

    def resume(self, peer: Peer) -> None:
        """Queue the uploads again that were under way when the last stream broke.

        They go first, unless they were slow: else a client could keep a slot by new streams, without a byte.
        """
        slow = self._slow.get(peer.client, Counter())
        for stream in peer.waiting():
            self._expect(peer, stream, first=stream in peer.flow.incoming and slow[stream] <= MOST_SLOW)

    # ---- what does not arrive

    def give_up(self, peer: Peer, stream: StreamId, error: BadVector) -> None:
        """Give up a codeword that will not arrive, and free its slot."""
        peer.drop(stream)
        self._reactions.refuse(peer, stream.number, error)
        self._ended((peer.client, stream))
        self._release((peer.client, stream))
        failed = Failed(self._clock(), peer.client, stream.number, str(error)[:LONGEST_REASON])
        self._reactions.emit(failed)

    def give_up_unwanted(self, peer: Peer) -> None:
        """Free the slots of a client that is away, and of codewords that are not wanted any more.

        A complete one keeps its slot until it is summed or its round is over.
        """
        if peer.stream is None:
            self._broke_off(peer)
        wanted = (*peer.waiting(), *peer.whole) if peer.stream is not None else ()
        for stream in tuple(self._asked.get(peer.client, ())):
            if stream not in wanted:
                self._release((peer.client, stream))
        for stream in self._begun.get(peer.client, {}).keys() - set(peer.waiting()):
            self._ended((peer.client, stream))

    def _broke_off(self, peer: Peer) -> None:
        """Note which uploads of a client that is away were too slow."""
        now = self._clock()
        for stream, incoming in peer.flow.incoming.items():
            upload = self._uploads.pop((peer.client, stream), None)
            if upload is not None and upload.trickles(incoming.received, now):
                self._note_slow(peer.client, stream)

    def _note_slow(self, client: str, stream: StreamId) -> None:
        self._slow.setdefault(client, Counter())[stream] += 1

    def lost(self, peer: Peer) -> None:
        """Free all slots of a client that is gone for good."""
        self.give_up_unwanted(peer)
        self._begun.pop(peer.client, None)
        self._slow.pop(peer.client, None)

    def free_stalled(self, limit_s: float) -> None:
        """Take the slot from uploads that are stalled or too slow.

        A stalled upload has failed; a slow one goes to the end of the queue and later continues.
        """
        now = self._clock()
        for stub, upload in list(self._uploads.items()):
            peer = self._peers.get(stub[0])
            incoming = peer.flow.incoming.get(stub[1]) if peer is not None else None
            sends = stub in self._slots.sending or (peer is not None and peer.is_short(stub[1]))
            if peer is None or peer.stream is None or incoming is None or not sends:
                self._uploads.pop(stub, None)
                continue
            size = incoming.received + peer.arriving()
            if size != upload.newest:
                upload.newest, upload.moved = size, now
            if now - upload.moved > limit_s:
                self._stalled(peer, stub[1], now - upload.moved)
            elif now - upload.looked >= limit_s:
                trickles = upload.trickles(size, now)
                upload.looked, upload.size = now, size
                if trickles:
                    self._note_slow(*stub)
                    self._grant(self._slots.turn(stub))

    def _stalled(self, peer: Peer, stream: StreamId, seconds: float) -> None:
        error = BadVector(f"{stream}: saw no bytes for {seconds:.1f} s, needed some within links.grace-s")
        try:
            self.give_up(peer, stream, error)
        except BadMessage as overflow:
            self._reactions.overflowed(peer, overflow)

    # ---- slots

    def _expect(self, peer: Peer, stream: StreamId, *, first: bool = False) -> None:
        """Expect a codeword at once if it is short, else once it has a slot."""
        self._asked.setdefault(peer.client, set()).add(stream)
        if not peer.is_short(stream):
            self._ask(peer, stream, first=first)
            return
        try:
            peer.expect(stream)
        except EdgeFailed as error:  # the disk is full
            self.give_up(peer, stream, BadVector(str(error)))
        else:
            self._begin(peer, stream)

    def _begin(self, peer: Peer, stream: StreamId) -> None:
        """Note that the bytes of a codeword may come from now on."""
        now, received = self._clock(), peer.flow.incoming[stream].received
        self._begun.setdefault(peer.client, {}).setdefault(stream, now)
        self._uploads[peer.client, stream] = _Upload(now, now, received, received)

    def _ask(self, peer: Peer, stream: StreamId, *, first: bool = False) -> None:
        if stream.number != self._newest:
            self._newest = max(self._newest, stream.number)
            asked = [(client, each) for client, streams in self._asked.items() for each in streams]
            self._grant(self._slots.set_late(each for each in asked if each[1].number < self._newest))
        self._grant(self._slots.ask((peer.client, stream), first=first))

    def _release(self, stub: Stub) -> None:
        client, stream = stub
        asked = self._asked.get(client, set())
        asked.discard(stream)
        if not asked:
            self._asked.pop(client, None)
        self._grant(self._slots.free(stub))

    def _grant(self, stubs: list[Stub]) -> None:
        for client, stream in stubs:
            peer = self._peers.get(client)
            if peer is not None and self._granted(peer, stream):
                self._begin(peer, stream)
            else:
                self._release((client, stream))

    def _granted(self, peer: Peer, stream: StreamId) -> bool:
        try:
            return peer.grant(stream)
        except BadMessage as error:
            self._reactions.overflowed(peer, error)
        except EdgeFailed as error:  # the disk is full
            self.give_up(peer, stream, BadVector(str(error)))
        return False

    def _ended(self, stub: Stub, unknown: float = 0.0) -> float:
        """Forget an upload, and return since when its bytes could come."""
        client, stream = stub
        begun = self._begun.get(client, {})
        since = begun.pop(stream, unknown)
        if not begun:
            self._begun.pop(client, None)
        self._uploads.pop(stub, None)
        self._slow.get(client, Counter()).pop(stream, None)
        return since
