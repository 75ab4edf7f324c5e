"""Test short codewords, which follow their offers without a grant, on streams that come and go."""

import secrets
from collections.abc import Sequence

import numpy as np
import pytest

from fedgc.config.link_settings import SHORT_BYTES
from fedgc.errors import EdgeFailed
from fedgc.links import frames as wire
from fedgc.links.byte_counts import Accounts
from fedgc.links.frames import CHECKSUM_BYTES, Grant, Offer, Parts, Piece, StreamId
from fedgc.links.identity import Identity
from fedgc.links.pieces import Source, is_short, offer_of, packed
from fedgc.links.session.flow import Flow
from fedgc.links.session.peer import Peer
from fedgc.messages import Codeword, Failed, Reveal
from tests.links.session.test_sessions_guards import NONCE, NUMBERS, Visitor, said

STREAM = StreamId("codeword", 1, 0)
VECTOR = packed(np.arange(NUMBERS, dtype=np.float32))
PIECE = 1024  # bytes: the vector has four


class Host(Visitor):
    """A listener with one slot, whose clients are asked for an update."""

    def enter(self, token: bytes = b"token") -> Peer:
        self.who = Identity(secrets.token_bytes(32))
        self.admission.expect(token)
        peer, _ = self.sessions.admit(self.hello(token), NONCE)
        self.sessions.send(Reveal(peer.client, 1, 0, "local", None))
        return peer

    def takes(self, peer: Peer, messages: Sequence[Parts]) -> None:
        for message in messages:
            self.sessions.arrived(peer, b"".join(message))

    @property
    def whole(self) -> list[str]:
        return [event.client for event in self.events if isinstance(event, Codeword)]


def sender() -> Flow:
    """The flow of a client that hands in its update."""
    flow = Flow(PIECE, Accounts(), "up_bytes")
    source = Source(VECTOR)
    flow.announce(offer_of(STREAM, source), source, at_once=is_short(source.size))
    return flow


def messages(flow: Flow) -> list[Parts]:
    return list(iter(flow.next_message, None))


def frames(flow: Flow) -> list[Parts]:
    return [(each,) for each in (b"".join(frame) for frame in iter(flow.next_frame, None))]


def test_short_codewords_of_all_clients_come_without_slots() -> None:
    host = Host()
    peers = [host.enter(token) for token in (b"one", b"two", b"three")]
    for peer in peers:
        host.takes(peer, messages(sender()))
    assert host.whole == [peer.client for peer in peers]
    assert host.sessions.uploads.take(peers[0].client, STREAM).tolist() == VECTOR.tolist()
    assert not any(isinstance(line, Grant) for peer in peers for line in said(peer))


def test_seconds_of_short_codeword_begin_with_its_offer() -> None:
    host = Host()
    peer = host.enter()
    offer, *pieces = messages(sender())
    host.takes(peer, [offer])
    host.now += 2.0
    host.takes(peer, pieces)
    (codeword,) = (event for event in host.events if isinstance(event, Codeword))
    assert codeword.seconds == 2.0


@pytest.mark.parametrize("arrived", range(6))
def test_short_codeword_is_sent_again_after_broken_stream(arrived: int) -> None:
    """Whatever part of its offer and its pieces has arrived."""
    host = Host()
    peer, flow = host.enter(), sender()
    host.takes(peer, frames(flow)[:arrived])
    host.sessions.left(peer, peer.stream, lambda *_: None)
    _, welcome = host.sessions.admit(host.hello(peer.ticket), NONCE)
    host.sessions.uploads.resume(peer)
    flow.reopen(welcome.heard, (), rests=True)
    host.takes(peer, messages(flow))
    assert host.whole == [peer.client]
    assert host.sessions.uploads.take(peer.client, STREAM).tolist() == VECTOR.tolist()


def test_short_codeword_that_never_comes_has_failed() -> None:
    host = Host()
    peer = host.enter()
    host.takes(peer, messages(sender())[:1])
    host.sessions.uploads.free_stalled(10.0)
    assert not host.events
    host.now += 11.0
    host.sessions.uploads.free_stalled(10.0)
    (failed,) = host.events
    assert isinstance(failed, Failed)
    assert "saw no bytes for 11.0 s" in failed.reason


def test_short_codeword_without_room_on_disk_has_failed() -> None:
    host = Host()
    peer = host.enter()

    def full(_: int) -> None:
        raise EdgeFailed("no space left")

    peer._scratch.empty = full
    host.takes(peer, messages(sender()))
    assert [type(event) for event in host.events] == [Failed]


def test_codeword_beyond_limit_waits_for_grant() -> None:
    sizes = (SHORT_BYTES, SHORT_BYTES + 4)
    assert [is_short(size + CHECKSUM_BYTES) for size in sizes] == [True, False]
    host = Host()
    peer = host.enter()
    form = peer._expected[STREAM]
    peer._expected[STREAM] = type(form)(SHORT_BYTES // 4 + 1)
    host.takes(peer, [(wire.encode(Offer(STREAM, SHORT_BYTES + 4 + CHECKSUM_BYTES), 1),)])
    assert any(isinstance(line, Grant) for line in said(peer))
    host.takes(
        peer, [(b"".join(wire.encode_piece(Piece(STREAM, 0, SHORT_BYTES + 20, memoryview(b"1234")))),)]
    )
    assert peer.flow.received(STREAM) == 4


def test_pieces_without_offer_are_no_bytes_of_update() -> None:
    """A client that sends them gives nothing, and is excluded once rounds have waited for it."""
    host = Host()
    peer = host.enter()
    host.takes(peer, messages(sender())[1:])
    assert not host.events
    amounts = peer.flow.accounts.settle()
    assert amounts.up_bytes == 0
    assert amounts.control_bytes > VECTOR.nbytes
