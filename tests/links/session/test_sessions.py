"""The listener's desk without a network: who holds a slot when streams come and go."""

import logging
import os

import pytest

from fedgc.errors import EdgeFailed
from fedgc.links import frames as wire
from fedgc.links.frames import Grant, Hello, Piece, StreamId
from fedgc.links.pieces import offer_of, packed
from fedgc.links.session.sessions import SessionTable, Surroundings
from fedgc.messages import Close, Reveal, Skip
from tests.config_of import config_of

NUMBERS = 100
CODEWORD = packed([1.0] * NUMBERS)
STREAM = StreamId("codeword", 1, 0)


class OpenDoor:
    """Admits by name; whoever has a peer goes on with it."""

    def check(self, hello: Hello, nonce: bytes) -> str:
        return hello.name

    def is_new(self, hello: Hello, client: str, peer: object) -> bool:
        return peer is None

    def used(self, token: bytes, peer: object) -> None:
        """Nothing is noted."""

    def lease_s(self, client: str) -> float:
        return 60.0


@pytest.fixture
def sessions() -> SessionTable:
    around = Surroundings(lambda: 0.0, os.urandom, lambda: 0.0, logging.getLogger("test"))
    config = config_of({"work": "coded", "upload_slots": 1, "piece_kb": 1})
    return SessionTable(config, NUMBERS, OpenDoor(), lambda _: None, around)


def comes(sessions: SessionTable, name: str, heard: int = 0):
    peer, _ = sessions.admit(Hello(1, "run", b"", b"", b"", name, heard), b"")
    sessions.resume(peer)
    return peer


def grants(peer) -> list[Grant]:
    """What this stream of the client is told about its uploads."""
    found = []
    while (frame := peer.flow.next_frame()) is not None:
        line = wire.decode(frame, wire.FROM_SERVER, now=0.0, client=peer.client)
        found += [line.value] if isinstance(line.value, Grant) else []
    return found


def test_an_upload_goes_on_over_a_new_stream_though_the_old_one_seems_open(sessions) -> None:
    """A half-open connection: the client has noticed and is back, and we have not."""
    peer = comes(sessions, "a")
    sessions.send(Reveal("a", 1, 0, "local", None))
    sessions.arrived(peer, wire.encode(offer_of(STREAM, CODEWORD), 1))
    assert grants(peer) == [Grant(STREAM, 0)]
    sessions.arrived(peer, wire.encode_piece(Piece(STREAM, 0, 400, CODEWORD.data.cast("B")[:40])))
    peer.flow.channel.confirm(2)
    assert comes(sessions, "a", heard=2) is peer
    assert grants(peer) == [Grant(STREAM, 40)]


def test_its_slot_is_not_kept_from_others_while_it_is_away(sessions) -> None:
    first, second = comes(sessions, "a"), comes(sessions, "b")
    for peer in (first, second):
        sessions.send(Reveal(peer.client, 1, 0, "local", None))
        sessions.arrived(peer, wire.encode(offer_of(STREAM, CODEWORD), 1))
    assert grants(first) == [Grant(STREAM, 0)]
    assert grants(second) == []
    sessions.left(first, first.stream, lambda *_: None)
    assert grants(second) == [Grant(STREAM, 0)]


@pytest.mark.parametrize("taken", ["taken", "unwanted", "lost", "closed"])
def test_the_next_codeword_comes_when_the_sum_has_taken_the_one_before(sessions, taken) -> None:
    """So no more of them stand in memory than there are slots, however slow the sum is."""
    first, second = comes(sessions, "a"), comes(sessions, "b")
    for peer in (first, second):
        sessions.send(Reveal(peer.client, 1, 0, "local", None))
        sessions.arrived(peer, wire.encode(offer_of(STREAM, CODEWORD), 1))
    sessions.arrived(first, wire.encode_piece(Piece(STREAM, 0, 400, CODEWORD.data.cast("B"))))
    sessions.send(Skip("a", 1, 0))
    assert grants(second) == []
    if taken == "taken":
        assert sessions.take("a", STREAM).tolist() == CODEWORD.tolist()
        assert grants(second) == []
        sessions.forget("a", STREAM)
    elif taken == "unwanted":
        sessions.forget("a", STREAM)
        with pytest.raises(EdgeFailed, match="not here"):
            sessions.take("a", STREAM)
    elif taken == "closed":
        sessions.send(Close("a", 1, "synced", True))
    else:
        sessions.lose(first)
    assert grants(second) == [Grant(STREAM, 0)]
