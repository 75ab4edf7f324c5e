"""Test the session guards without a network: hostile, greedy and deaf clients harm no other client."""

import logging
import os
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedgc.config import RunConfig
from fedgc.errors import BadMessage, NotAdmitted
from fedgc.large_vectors import Scratch
from fedgc.links import frames as wire
from fedgc.links import identity
from fedgc.links.frames import Bye, Grant, Hello, Numbered, Offer, Piece, StreamId
from fedgc.links.identity import Identity
from fedgc.links.pieces import Source, offer_of, packed
from fedgc.links.session import channel
from fedgc.links.session.admission import Admission
from fedgc.links.session.peer import Published
from fedgc.links.session.sessions import LEASE_SLACK_S, SessionTable, Surroundings
from fedgc.messages import WIRE_VERSION, Close, Continue, Failed, Joined, Lost, Offered, Refuse, Reveal, Work

pytestmark = pytest.mark.usefixtures("slots_for_all")

NUMBERS, SERVER, NONCE = 1000, b"fingerprint", b"nonce"


class Visitor:
    """One client of a listener, without a stream, on a clock that a test moves."""

    def __init__(self, **around: object) -> None:
        self.now = 1.0
        self.events: list[object] = []
        self.offers: list[Offered] = []
        self.admission = Admission("run", SERVER, 60.0)
        log = logging.getLogger("test")
        surroundings = Surroundings(lambda: self.now, os.urandom, lambda: 1.0, log, **around)
        config = RunConfig(upload_slots=1, work="coded")
        self.sessions = SessionTable(config, NUMBERS, self.admission, self._heard, surroundings)
        self.who = Identity(secrets.token_bytes(32))

    def _heard(self, event: object) -> None:
        (self.offers if isinstance(event, Offered) else self.events).append(event)

    def hello(self, credential: bytes, heard: int = 0) -> Hello:
        signed = identity.statement(WIRE_VERSION, "run", credential, NONCE, SERVER)
        signature = self.who.sign(signed)
        return Hello(WIRE_VERSION, "run", credential, self.who.public, signature, "me", heard, ())


def as_sent(vector: np.ndarray) -> memoryview:
    """Return the bytes of a vector as a session carries them, with their checksum."""
    source = Source(vector)
    return source.read(0, source.size)


def said(peer) -> list[object]:
    """Everything that waits to be sent to a client."""
    lines = []
    while (frame := peer.flow.next_frame()) is not None:
        line = wire.decode(b"".join(frame), wire.FROM_SERVER, now=0.0, client=peer.client)
        lines.append(line.value if isinstance(line, Numbered) else line)
    return lines


@pytest.mark.parametrize("change", [{"run": "another"}, {"key": b"k" * 32}, {"signature": b"s" * 64}])
def test_hello_of_other_run_or_key_is_refused(change: dict[str, object]) -> None:
    visitor = Visitor()
    visitor.admission.expect(b"token")
    with pytest.raises(NotAdmitted):
        visitor.sessions.admit(replace(visitor.hello(b"token"), **change), NONCE)
    assert not visitor.sessions.peers


def test_idle_slot_holder_loses_slot() -> None:
    visitor = Visitor()
    peers = []
    for token in (b"one", b"two"):
        visitor.who = Identity(secrets.token_bytes(32))
        visitor.admission.expect(token)
        peer, _ = visitor.sessions.admit(visitor.hello(token), NONCE)
        visitor.sessions.send(Reveal(peer.client, 1, 0, "local", None))
        offer = offer_of(StreamId("codeword", 1, 0), Source(np.ones(NUMBERS, np.float32)))
        visitor.sessions.arrived(peer, wire.encode(offer, 1))
        peers.append(peer)
    hog, honest = peers
    assert not any(isinstance(line, Grant) for line in said(honest))
    visitor.sessions.uploads.free_stalled(10.0)
    assert not any(isinstance(line, Grant) for line in said(honest))
    visitor.now = 12.0
    visitor.sessions.uploads.free_stalled(10.0)
    assert any(isinstance(line, Grant) for line in said(honest))
    assert [type(event).__name__ for event in visitor.events] == ["Failed"]
    assert visitor.events[0].client == hog.client


def test_upload_moves_while_part_of_piece_arrives() -> None:
    """A piece of 1 MiB takes longer than a grace time over a link of 100 kB a second."""
    visitor = Visitor()
    visitor.admission.expect(b"one")
    peer, _ = visitor.sessions.admit(visitor.hello(b"one"), NONCE)
    visitor.sessions.send(Reveal(peer.client, 1, 0, "local", None))
    offer = offer_of(StreamId("codeword", 1, 0), Source(np.ones(NUMBERS, np.float32)))
    visitor.sessions.arrived(peer, wire.encode(offer, 1))
    for second in range(1, 31):
        visitor.now = float(second)
        peer.arriving = lambda came=second: 100_000 * came
        visitor.sessions.uploads.free_stalled(10.0)
    assert visitor.events == []
    for second in range(31, 43):
        visitor.now = float(second)
        visitor.sessions.uploads.free_stalled(10.0)
    (failed,) = visitor.events
    assert failed.reason == "the upload of round 1: saw no bytes for 11.0 s, needed some within links.grace-s"


def test_unreading_client_does_not_block_goodbye_to_others(monkeypatch) -> None:
    visitor = Visitor()
    peers = []
    for token in (b"one", b"two"):
        visitor.who = Identity(secrets.token_bytes(32))
        visitor.admission.expect(token)
        peers.append(visitor.sessions.admit(visitor.hello(token), NONCE)[0])
    monkeypatch.setattr(channel, "KEPT_LIMIT", 3)
    for attempt in range(4):
        visitor.sessions.send(Reveal(peers[0].client, 1, attempt, "local", None))
    assert peers[0].client not in visitor.sessions.peers, "it was given up"
    visitor.sessions.dismiss("over")
    assert any(isinstance(line, Bye) for line in said(peers[1]))


def test_returning_client_with_inconsistent_lines_is_lost() -> None:
    visitor = Visitor()
    visitor.admission.expect(b"one")
    peer, _ = visitor.sessions.admit(visitor.hello(b"one"), NONCE)
    with pytest.raises(BadMessage, match="only 0 were sent"):
        visitor.sessions.admit(visitor.hello(peer.ticket, heard=5), NONCE)
    assert not visitor.sessions.peers
    assert [type(event).__name__ for event in visitor.events] == ["Lost"]


def test_lost_client_holds_no_vector() -> None:
    visitor = Visitor()
    visitor.admission.expect(b"one")
    peer, _ = visitor.sessions.admit(visitor.hello(b"one"), NONCE)
    vector = packed(np.ones(NUMBERS, np.float32))
    model = Published(offer_of(StreamId("model", 0), Source(vector)), Source(vector))
    visitor.sessions.publish(0, model)
    visitor.sessions.send(Work(peer.client, 1, 0, 1, (0,), ((0, "a"),), 0, 1.0))
    visitor.sessions.send(Reveal(peer.client, 1, 0, "local", None))
    visitor.sessions.arrived(peer, wire.encode(offer_of(StreamId("codeword", 1, 0), Source(vector)), 1))
    assert peer.flow.incoming
    visitor.sessions.lose(peer)
    assert not peer.flow.incoming
    assert not any(isinstance(line, Piece) for line in said(peer))


def test_names_are_shortened_for_display() -> None:
    visitor = Visitor()
    visitor.admission.expect(b"token")
    peer, _ = visitor.sessions.admit(
        replace(visitor.hello(b"token"), name="\x1b[2Jdevice\n" + "x" * 999), NONCE
    )
    assert visitor.sessions.name(peer.client) == ("[2Jdevice " + "x" * 999)[:64]


def test_trickling_client_loses_slot_and_not_round() -> None:
    visitor = Visitor()
    vector = packed(np.ones(NUMBERS, np.float32))
    stream, peers = StreamId("codeword", 1, 0), []
    for token in (b"one", b"two"):
        visitor.who = Identity(secrets.token_bytes(32))
        visitor.admission.expect(token)
        peer, _ = visitor.sessions.admit(visitor.hello(token), NONCE)
        visitor.sessions.send(Reveal(peer.client, 1, 0, "local", None))
        visitor.sessions.arrived(peer, wire.encode(offer_of(stream, Source(vector)), 1))
        peers.append(peer)
    (hog, honest), data = peers, as_sent(vector)

    def sends(peer, first: int, last: int) -> None:
        piece = Piece(stream, first, len(data), data[first:last])
        visitor.sessions.arrived(peer, b"".join(wire.encode_piece(piece)))

    for second in range(12):
        visitor.now = 2.0 + second
        sends(hog, second, second + 1)
        visitor.sessions.uploads.free_stalled(10.0)
        assert any(isinstance(line, Grant) for line in said(honest)) == (second == 9), "after a grace time"
    assert visitor.events == [], "it has not failed"
    sends(honest, 0, len(data))
    said(hog)
    visitor.sessions.uploads.take(honest.client, stream)
    visitor.sessions.uploads.forget(honest.client, stream)
    assert [line for line in said(hog) if isinstance(line, Grant)] == [Grant(stream, 12)], "it goes on"
    sends(hog, 12, len(data))
    assert [event.client for event in visitor.events] == [honest.client, hog.client]


@pytest.mark.parametrize("trickles", [False, True], ids=["sends nothing", "sends a byte"])
def test_client_that_opens_streams_again_and_again_keeps_no_slot(*, trickles: bool) -> None:
    """It goes first after a broken stream, but not again and again where it sends nothing, or next to it."""
    room = Room(4)
    (hog, *others), who = room.clients, room.identities[0]
    for peer in room.clients:
        room.offer(peer)
    data, got = as_sent(VECTOR), list[int]()
    for turn in range(6):
        if trickles:
            piece = Piece(STREAM, turn, len(data), data[turn : turn + 1])
            room.sessions.arrived(hog, b"".join(wire.encode_piece(piece)))
        room.now += 9.0
        room.sessions.uploads.free_stalled(10.0)
        room.comes_back(hog, who)
        for at, peer in enumerate(others):
            if at not in got and (peer.client, STREAM) in room.sessions.uploads._slots.sending:
                got.append(at)
                room.sends(peer)
                room.sessions.uploads.forget(peer.client, STREAM)
        if turn == 1:
            assert got == [0, 1, 2]
    room.sessions.lose(hog)
    assert room.sessions.uploads._slow == {}


def test_client_whose_fast_upload_breaks_often_goes_first() -> None:
    room = Room(2)
    (first, other), who = room.clients, room.identities[0]
    for peer in room.clients:
        room.offer(peer)
    data, far = as_sent(VECTOR), 0
    for _ in range(6):
        piece = Piece(STREAM, far, len(data), data[far : (far := far + 500)])
        room.sessions.arrived(first, b"".join(wire.encode_piece(piece)))
        room.now += 0.001
        room.comes_back(first, who)
        room.sessions.uploads.forget(other.client, STREAM)
        assert room.sessions.uploads._slots.sending == {(first.client, STREAM)}
        room.offer(other)


def test_slow_sender_continues_without_waiting_clients() -> None:
    visitor = Visitor()
    visitor.admission.expect(b"one")
    peer, _ = visitor.sessions.admit(visitor.hello(b"one"), NONCE)
    visitor.sessions.send(Reveal(peer.client, 1, 0, "local", None))
    stream, vector = StreamId("codeword", 1, 0), packed(np.ones(NUMBERS, np.float32))
    visitor.sessions.arrived(peer, wire.encode(offer_of(stream, Source(vector)), 1))
    data = as_sent(vector)
    for second in range(30):
        visitor.now = 2.0 + second
        piece = Piece(stream, second, len(data), data[second : second + 1])
        visitor.sessions.arrived(peer, b"".join(wire.encode_piece(piece)))
        visitor.sessions.uploads.free_stalled(10.0)
    assert visitor.sessions.uploads._slots.sending == {(peer.client, stream)}
    assert visitor.events == []


STREAM, VECTOR = StreamId("codeword", 1, 0), packed(np.ones(NUMBERS, np.float32))


class Room(Visitor):
    """Several clients of one listener that are asked for a codeword."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.identities: list[Identity] = []
        self.clients = [self._comes(b"%d" % number) for number in range(count)]

    def _comes(self, token: bytes):
        self.who = Identity(secrets.token_bytes(32))
        self.identities.append(self.who)
        self.admission.expect(token)
        peer, _ = self.sessions.admit(self.hello(token), NONCE)
        self.sessions.send(Reveal(peer.client, 1, 0, "local", None))
        return peer

    def comes_back(self, peer, who: Identity) -> None:
        """Open a new stream for a client, as the listener does."""
        self.who = who
        self.sessions.admit(self.hello(peer.ticket), NONCE)
        self.sessions.uploads.resume(peer)

    def offer(self, peer) -> None:
        self.sessions.arrived(peer, wire.encode(offer_of(STREAM, Source(VECTOR)), 1))

    def sends(self, peer, vector=VECTOR) -> None:
        data = as_sent(vector)
        piece = Piece(STREAM, 0, len(data), data)
        self.sessions.arrived(peer, b"".join(wire.encode_piece(piece)))

    def deafens(self, peer) -> None:
        """Let a client leave the allowed maximum unacknowledged."""
        while len(peer.flow.channel._kept) < channel.KEPT_LIMIT:
            self.sessions.arrived(peer, b"junk")


@pytest.fixture
def few_lines(monkeypatch) -> None:
    monkeypatch.setattr(channel, "KEPT_LIMIT", 10)


def granted(peer) -> bool:
    return any(isinstance(line, Grant) for line in said(peer))


def test_offer_is_told_also_while_it_waits_for_slot() -> None:
    room = Room(2)
    for peer in room.clients:
        room.offer(peer)
    assert not granted(room.clients[1])
    assert room.offers == [Offered(1.0, peer.client, 1, 0) for peer in room.clients]


def test_offer_of_closed_round_is_not_told() -> None:
    room = Room(1)
    room.sessions.send(Close(room.clients[0].client, 1, "synced", True))
    room.offer(room.clients[0])
    assert room.offers == []


def test_second_offer_of_wrong_size_releases_slot() -> None:
    room = Room(2)
    hog, honest = room.clients
    room.offer(hog)
    room.offer(honest)
    room.sessions.arrived(hog, wire.encode(Offer(STREAM, 24), 2))
    assert granted(honest)
    assert [(type(event), event.client) for event in room.events] == [(Failed, hog.client)]
    room.now = 100.0
    room.sends(honest)
    room.sessions.uploads.free_stalled(10.0)
    assert room.events[-1].client == honest.client


def test_offer_with_digest_is_refused_in_session() -> None:
    room = Room(2)
    honest, hog = room.clients
    room.offer(honest)
    room.sessions.arrived(hog, wire.encode(Offer(STREAM, VECTOR.nbytes + 16, bytes(32)), 1))
    assert room.sessions.refusals.counts == {"BadVector": 1}
    room.sends(honest)
    room.sessions.uploads.forget(honest.client, STREAM)
    assert hog.client in room.sessions.peers


def test_full_disk_fails_one_upload_and_not_next(tmp_path: Path) -> None:
    room = Room(2)
    unlucky, honest = room.clients
    (tmp_path / "file").touch()
    for peer, folder in ((unlucky, tmp_path / "file"), (honest, tmp_path)):
        peer._scratch = Scratch(folder, in_memory_bytes=0)
        room.offer(peer)
    assert [(type(event), event.client) for event in room.events] == [(Failed, unlucky.client)]
    assert f"no room for a vector of {VECTOR.nbytes} bytes in" in room.events[0].reason
    room.sends(honest)
    np.testing.assert_array_equal(room.sessions.uploads.take(honest.client, STREAM), VECTOR)


def test_slot_of_bad_vector_goes_to_next() -> None:
    room = Room(2)
    bad, honest = room.clients
    room.offer(bad)
    room.offer(honest)
    room.sends(bad, packed(np.full(NUMBERS, np.nan, np.float32)))
    assert granted(honest)


def test_whole_codeword_leaves_nothing_in_flight() -> None:
    room = Room(1)
    (peer,) = room.clients
    room.offer(peer)
    room.sends(peer)
    assert room.sessions.uploads._begun == room.sessions.uploads._uploads == {}


def test_stalled_deaf_client_is_lost_and_next_client_sends(few_lines) -> None:
    room = Room(2)
    hog, honest = room.clients
    room.offer(hog)
    room.offer(honest)
    room.deafens(hog)
    room.now = 50.0
    room.sessions.uploads.free_stalled(10.0)
    assert granted(honest)
    assert [(type(event), event.client) for event in room.events] == [(Lost, hog.client)]


@pytest.mark.parametrize("how", ["leaves", "ends", "stalls"])
def test_slot_release_is_independent_of_deaf_next_client(few_lines, how: str) -> None:
    room = Room(4)
    honest, *deaf, last = room.clients
    for peer in room.clients:
        room.offer(peer)
    for peer in deaf:
        room.deafens(peer)
    if how == "leaves":
        room.sessions.left(honest, honest.stream, lambda *_: Never())
        assert honest.client in room.sessions._timers, "its grace time counts"
    elif how == "ends":
        room.sends(honest)
        room.sessions.uploads.forget(honest.client, STREAM)
    else:
        room.now = 50.0
        room.sessions.uploads.free_stalled(10.0)
    assert room.sessions.peers.keys() == {honest.client, last.client}
    assert granted(last)


class Never:
    """A timer that never fires."""

    def cancel(self) -> None:
        """Nothing was to come."""


def test_restarted_client_hears_of_no_work_before_it_joins() -> None:
    visitor = Visitor()
    visitor.admission.expect(b"one")
    visitor.sessions.admit(visitor.hello(b"one"), NONCE)
    visitor.admission.expect(b"two")
    peer, _ = visitor.sessions.admit(visitor.hello(b"two"), NONCE)
    client = peer.client
    visitor.sessions.send(Reveal(client, 1, 0, "local", None))
    visitor.sessions.send(Refuse(client, 0, "its model differs"))
    assert [type(each) for each in said(peer)] == [Refuse]
    visitor.sessions.arrived(peer, wire.encode(Joined(0.0, client, True, ()), 1))
    visitor.sessions.send(Close(client, 1, "synced", True))
    assert [type(each) for each in said(peer)] == [Close]
    assert not [each for each in visitor.events if isinstance(each, Lost)]


def test_client_past_its_lease_gets_no_work_of_new_round() -> None:
    visitor = Visitor()
    visitor.admission.expect(b"one")
    peer, welcome = visitor.sessions.admit(visitor.hello(b"one"), NONCE)
    model = Source(packed(np.ones(NUMBERS, np.float32)))
    visitor.sessions.publish(0, Published(offer_of(StreamId("model", 0), model), model))
    visitor.sessions.send(Work(peer.client, 1, 0, 4, (0,), ((0, "a"),), 7, 60.0))
    visitor.now += welcome.lease_s + RunConfig().grace_s + LEASE_SLACK_S + 1.0
    visitor.sessions.send(Continue(peer.client, 1, 8, (0,), 60.0))
    assert not visitor.events, "its round goes on"
    visitor.sessions.send(Continue(peer.client, 2, 8, (0,), 60.0))
    assert [type(event) for event in visitor.events] == [Lost]
    assert peer.over == "the session is ended: it has not renewed its lease"
