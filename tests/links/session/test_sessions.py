"""Test the listener's sessions without a network: slots while streams come and go."""

import logging
import os

import pytest

from fedgc.errors import EdgeFailed
from fedgc.links import frames as wire
from fedgc.links.frames import Grant, Hello, Piece, StreamId
from fedgc.links.pieces import Source, offer_of, packed
from fedgc.links.session.sessions import SessionTable, Surroundings
from fedgc.messages import Close, Reveal, Skip
from tests.config_of import config_of
from tests.links.session.test_sessions_guards import as_sent

NUMBERS = 100
CODEWORD = packed([1.0] * NUMBERS)
STREAM = StreamId("codeword", 1, 0)


class OpenDoor:
    """Admit by name; a client with a peer keeps it."""

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
    sessions.uploads.resume(peer)
    return peer


def grants(peer) -> list[Grant]:
    """The grants and refusals sent on this stream of the client."""
    found = []
    while (frame := peer.flow.next_frame()) is not None:
        line = wire.decode(frame, wire.FROM_SERVER, now=0.0, client=peer.client)
        found += [line.value] if isinstance(line.value, Grant) else []
    return found


def test_upload_continues_on_new_stream_while_old_seems_open(sessions) -> None:
    """A half-open connection: the client reconnects before the server notices."""
    peer = comes(sessions, "a")
    sessions.send(Reveal("a", 1, 0, "local", None))
    sessions.arrived(peer, wire.encode(offer_of(STREAM, Source(CODEWORD)), 1))
    assert grants(peer) == [Grant(STREAM, 0)]
    sessions.arrived(peer, wire.encode_piece(Piece(STREAM, 0, 416, as_sent(CODEWORD)[:40])))
    peer.flow.channel.confirm(2)
    assert comes(sessions, "a", heard=2) is peer
    assert grants(peer) == [Grant(STREAM, 40)]


def test_slot_of_absent_client_goes_to_others(sessions) -> None:
    first, second = comes(sessions, "a"), comes(sessions, "b")
    for peer in (first, second):
        sessions.send(Reveal(peer.client, 1, 0, "local", None))
        sessions.arrived(peer, wire.encode(offer_of(STREAM, Source(CODEWORD)), 1))
    assert grants(first) == [Grant(STREAM, 0)]
    assert grants(second) == []
    sessions.left(first, first.stream, lambda *_: None)
    assert grants(second) == [Grant(STREAM, 0)]


@pytest.mark.parametrize("taken", ["taken", "unwanted", "lost", "closed"])
def test_next_codeword_comes_after_previous_one_is_added(sessions, taken) -> None:
    """So memory holds at most one codeword per slot, even if the sum is slow."""
    first, second = comes(sessions, "a"), comes(sessions, "b")
    for peer in (first, second):
        sessions.send(Reveal(peer.client, 1, 0, "local", None))
        sessions.arrived(peer, wire.encode(offer_of(STREAM, Source(CODEWORD)), 1))
    sessions.arrived(first, wire.encode_piece(Piece(STREAM, 0, 416, as_sent(CODEWORD))))
    sessions.send(Skip("a", 1, 0))
    assert grants(second) == []
    if taken == "taken":
        assert sessions.uploads.take("a", STREAM).tolist() == CODEWORD.tolist()
        assert grants(second) == []
        sessions.uploads.forget("a", STREAM)
    elif taken == "unwanted":
        sessions.uploads.forget("a", STREAM)
        with pytest.raises(EdgeFailed, match="not here"):
            sessions.uploads.take("a", STREAM)
    elif taken == "closed":
        sessions.send(Close("a", 1, "synced", True))
    else:
        sessions.lose(first)
    assert grants(second) == [Grant(STREAM, 0)]


def test_many_broken_streams_have_longer_to_come_back(monkeypatch) -> None:
    now, lost, timers = [0.0], [], set()
    around = Surroundings(lambda: now[0], os.urandom, lambda: 0.0, logging.getLogger("test"))
    config = config_of({"work": "coded", "grace_s": 10.0})
    sessions = SessionTable(config, NUMBERS, OpenDoor(), lost.append, around)
    monkeypatch.setattr("fedgc.links.session.sessions.READMISSION_S", 1.0)

    class Call:
        def __init__(self, seconds, act):
            self.due, self.act = now[0] + seconds, act
            timers.add(self)

        def cancel(self):
            timers.discard(self)

    def at(moment):
        now[0] = moment
        for each in [each for each in timers if each.due <= moment]:
            timers.discard(each)
            each.act()

    peers = [comes(sessions, f"client-{n}") for n in range(5)]
    for each in peers[:4]:
        sessions.left(each, each.stream, Call)
    at(10.0)
    for each in peers[:2]:
        sessions.admit(Hello(1, "run", b"", b"", b"", each.client, 0), b"")
    at(12.9)
    assert lost == []
    at(13.0)
    assert {each.client for each in lost} == {"client-2", "client-3"}
    sessions.left(peers[4], peers[4].stream, Call)  # alone
    at(23.0)
    assert [each.client for each in lost][2:] == ["client-4"]
