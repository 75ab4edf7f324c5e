"""Test the listener's sessions without a network: slots while streams come and go."""

import logging
import os
from types import SimpleNamespace

import pytest

from fedgc.errors import EdgeFailed
from fedgc.links import frames as wire
from fedgc.links.frames import Grant, Hello, Piece, StreamId
from fedgc.links.pieces import Source, offer_of, packed
from fedgc.links.session.sessions import SessionTable, Surroundings
from fedgc.messages import Close, Leaving, Mix, Reveal, Skip
from tests.config_of import config_of
from tests.links.session.test_sessions_guards import as_sent

pytestmark = pytest.mark.usefixtures("slots_for_all")

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
        line = wire.decode(b"".join(frame), wire.FROM_SERVER, now=0.0, client=peer.client)
        found += [line.value] if isinstance(line.value, Grant) else []
    return found


def test_upload_continues_on_new_stream_while_old_seems_open(sessions) -> None:
    """A half-open connection: the client reconnects before the server notices."""
    peer = comes(sessions, "a")
    sessions.send(Reveal("a", 1, 0, "local", None))
    sessions.arrived(peer, wire.encode(offer_of(STREAM, Source(CODEWORD)), 1))
    assert grants(peer) == [Grant(STREAM, 0)]
    sessions.arrived(peer, b"".join(wire.encode_piece(Piece(STREAM, 0, 416, as_sent(CODEWORD)[:40]))))
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


def test_upload_of_earlier_round_takes_no_slot_from_present_one(sessions) -> None:
    slow, quick = comes(sessions, "a"), comes(sessions, "b")
    for peer, round_ in ((slow, 1), (quick, 2)):
        stream = StreamId("codeword", round_, 0)
        sessions.send(Reveal(peer.client, round_, 0, "local", None))
        sessions.arrived(peer, wire.encode(offer_of(stream, Source(CODEWORD)), 1))
        assert grants(peer) == [Grant(stream, 0)]


@pytest.mark.parametrize("taken", ["taken", "unwanted", "lost", "closed"])
def test_next_codeword_comes_after_previous_one_is_added(sessions, taken) -> None:
    """So memory holds at most one codeword per slot, even if the sum is slow."""
    first, second = comes(sessions, "a"), comes(sessions, "b")
    for peer in (first, second):
        sessions.send(Reveal(peer.client, 1, 0, "local", None))
        sessions.arrived(peer, wire.encode(offer_of(STREAM, Source(CODEWORD)), 1))
    sessions.arrived(first, b"".join(wire.encode_piece(Piece(STREAM, 0, 416, as_sent(CODEWORD)))))
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


def told(peer) -> list[str]:
    """The kinds of the lines that are sent now."""
    found = []
    while (frame := peer.flow.next_frame()) is not None:
        found.append(type(wire.decode(b"".join(frame), wire.FROM_SERVER, now=0.0, client="a").value).__name__)
    return found


def hands_in(sessions: SessionTable, reveal: Reveal):
    """A client whose answer to this command is here."""
    peer = comes(sessions, "a")
    sessions.send(reveal)
    sessions.arrived(peer, wire.encode(offer_of(STREAM, Source(CODEWORD)), 1))
    assert told(peer) == ["Reveal", "Grant"]
    sessions.arrived(peer, b"".join(wire.encode_piece(Piece(STREAM, 0, 416, as_sent(CODEWORD)))))
    return peer


@pytest.mark.parametrize("then", ["the next round", "a ping", "the client leaves"])
def test_end_of_round_waits_for_next_line_to_client_without_work(sessions, then) -> None:
    """A message costs the server more than the lines in it."""
    peer = hands_in(sessions, Reveal("a", 1, 0, "local", None))
    assert told(peer) == []
    sessions.send(Close("a", 1, "synced", True))
    assert told(peer) == []
    if then == "the next round":
        sessions.send(Reveal("a", 2, 0, "local", None))
        assert told(peer) == ["Ack", "Close", "Reveal"]
    elif then == "a ping":
        peer.flow.ping()
        assert told(peer) == ["Ack", "Close"]
    else:
        sessions.arrived(peer, wire.encode(Leaving(0.0, "a", 5.0), 2))
        assert told(peer) == ["Ack", "Close"]


@pytest.mark.parametrize("leaves", [False, True])
def test_end_of_round_is_told_at_once_where_client_works_or_leaves(sessions, leaves) -> None:
    mix = None if leaves else Mix((0,), ((1.0,),))
    peer = comes(sessions, "a")
    if leaves:
        sessions.arrived(peer, wire.encode(Leaving(0.0, "a", 5.0), 1))
    sessions.send(Reveal("a", 1, 0, "local" if leaves else "coded", mix))
    sessions.arrived(peer, wire.encode(offer_of(STREAM, Source(CODEWORD)), 1 + leaves))
    assert told(peer) == ["Reveal", "Grant"]
    sessions.arrived(peer, b"".join(wire.encode_piece(Piece(STREAM, 0, 416, as_sent(CODEWORD)))))
    assert told(peer) == ["Ack"]
    sessions.send(Close("a", 1, "synced", True))
    assert told(peer) == ["Close"]


def test_end_of_round_is_told_at_once_where_client_keeps_long_update(sessions, monkeypatch) -> None:
    """So that it can free the memory before the next model comes."""
    monkeypatch.setattr("fedgc.links.session.peer.SHORT_BYTES", 8)
    peer = hands_in(sessions, Reveal("a", 1, 0, "local", None))
    assert told(peer) == ["Ack"]
    sessions.send(Close("a", 1, "synced", True))
    assert told(peer) == ["Close"]


class Calls:
    """Calls that are due at some time of a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: dict[object, tuple[float, object]] = {}

    def later(self, seconds, act):
        key = object()
        self.due[key] = (self.now + seconds, act)
        return SimpleNamespace(cancel=lambda: self.due.pop(key, None))

    def at(self, moment) -> None:
        self.now = moment
        for key in [key for key, (due, _) in self.due.items() if due <= moment]:
            self.due.pop(key)[1]()


def test_many_broken_streams_have_longer_to_come_back(monkeypatch) -> None:
    calls, lost = Calls(), []
    around = Surroundings(lambda: calls.now, os.urandom, lambda: 0.0, logging.getLogger("test"))
    config = config_of({"work": "coded", "grace_s": 10.0})
    sessions = SessionTable(config, NUMBERS, OpenDoor(), lost.append, around)
    monkeypatch.setattr("fedgc.links.session.sessions.READMISSION_S", 1.0)
    peers = [comes(sessions, f"client-{n}") for n in range(5)]

    def leave(*those):
        for each in those:
            sessions.left(each, each.stream, calls.later)

    def return_(*those):
        for each in those:
            sessions.admit(Hello(1, "run", b"", b"", b"", each.client, 0), b"")

    leave(*peers[:4])
    calls.at(10.0)
    return_(*peers[:2])
    calls.at(12.9)
    assert lost == []
    calls.at(13.0)
    assert {each.client for each in lost} == {"client-2", "client-3"}
    leave(peers[4])
    for moment in range(14, 22):  # two others, again and again: they count once
        calls.at(moment)
        leave(*peers[:2])
        return_(*peers[:2])
    calls.at(24.9)
    assert len(lost) == 2
    calls.at(25.0)
    assert [each.client for each in lost][2:] == ["client-4"]
