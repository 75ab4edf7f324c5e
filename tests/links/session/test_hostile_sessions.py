"""Test the limits of one client in the session table: it is excluded, and the others are not affected."""

import secrets
from dataclasses import replace

import numpy as np
import pytest

from fedgc.errors import NotAdmitted
from fedgc.links import frames as wire
from fedgc.links.frames import Ack, Piece, Ping, StreamId
from fedgc.links.identity import Identity
from fedgc.links.pieces import Source, offer_of, packed
from fedgc.links.quotas import FIRST_PAUSE_S, MOST_CHUNKS, MOST_JOINS, MOST_REFUSALS, Quotas
from fedgc.links.session.peer import Peer
from fedgc.links.session.sessions import STREAM_LINES
from fedgc.messages import Held, Joined, Lost, Offered, Reveal
from tests.links.session.test_sessions_guards import NONCE, NUMBERS, Visitor, as_sent

RATE = 10.0
STREAM = StreamId("codeword", 1, 0)


class Timed(Visitor):
    """A visitor of a listener with a low limit of lines, and a record of what was audited."""

    def __init__(self) -> None:
        self.audits = []
        super().__init__(audit=lambda *event: self.audits.append(event), quotas=Quotas(lines_per_s=RATE))

    def enter(self, token: bytes = b"token") -> Peer:
        self.admission.expect(token)
        return self.sessions.admit(self.hello(token), NONCE)[0]

    @property
    def excluded(self) -> list[str]:
        return [what for kind, _, what in self.audits if kind == "excluded"]


def test_client_beyond_its_lines_is_excluded_and_returns_after_pause(caplog) -> None:
    visitor = Timed()
    peer = visitor.enter()
    for _ in range(int(10 * RATE)):
        visitor.sessions.arrived(peer, wire.encode(Ping()))
    assert peer.client in visitor.sessions.peers
    visitor.sessions.arrived(peer, wire.encode(Ping()))
    assert not visitor.sessions.peers
    assert [type(event) for event in visitor.events] == [Lost]
    told = "excluded for 5 s: it sent more than 10 lines a second, and more than 100 at once"
    assert peer.over == told
    assert visitor.excluded == [told]
    assert [record.message for record in caplog.records] == [f"client me ({peer.client}) is {told}"]
    with pytest.raises(NotAdmitted, match="excluded for 5 s more: it sent more than 10 lines"):
        visitor.enter(b"again")
    visitor.now += FIRST_PAUSE_S
    assert visitor.enter(b"later").client == peer.client


def test_client_that_opens_streams_without_end_is_excluded() -> None:
    visitor = Timed()
    visitor.sessions._around = replace(visitor.sessions._around, quotas=Quotas(lines_per_s=STREAM_LINES))
    peer = visitor.enter()
    for _ in range(100):  # one a second, for long
        visitor.now += 1.0
        visitor.sessions.admit(visitor.hello(peer.ticket), NONCE)
    for _ in range(9):
        visitor.sessions.admit(visitor.hello(peer.ticket), NONCE)
    with pytest.raises(
        NotAdmitted, match=f"client {peer.client} is excluded for 5 s: it sent more than 30 lines"
    ):
        visitor.sessions.admit(visitor.hello(peer.ticket), NONCE)
    assert not visitor.sessions.peers
    assert [type(event) for event in visitor.events] == [Lost]


def test_lines_at_rate_are_taken_for_long() -> None:
    visitor = Timed()
    peer = visitor.enter()
    for _ in range(1000):
        visitor.now += 1 / RATE
        visitor.sessions.arrived(peer, wire.encode(Ping()))
    assert peer.client in visitor.sessions.peers


def test_broken_lines_are_refused_and_then_excluded() -> None:
    visitor = Timed()
    visitor.sessions._around = replace(visitor.sessions._around, quotas=Quotas())
    peer = visitor.enter()
    for _ in range(int(MOST_REFUSALS)):
        visitor.sessions.arrived(peer, b"Lnothing")
    assert peer.client in visitor.sessions.peers
    visitor.sessions.arrived(peer, b"Lnothing")
    assert not visitor.sessions.peers
    assert "messages to refuse" in visitor.excluded[0]


@pytest.mark.parametrize(
    ("joins", "chunks"), [(1, MOST_CHUNKS + 1), (int(MOST_JOINS) + 1, 1)], ids=["chunks", "joins"]
)
def test_joins_beyond_limit_do_not_reach_run(joins: int, chunks: int) -> None:
    visitor = Timed()
    peer = visitor.enter()
    holds = tuple(Held(f"{at}", 1) for at in range(chunks))
    for at in range(joins):
        visitor.sessions.arrived(peer, wire.encode(Joined(0.0, "me", True, holds), at + 1))
    assert [type(event) for event in visitor.events] == [Joined] * (joins - 1) + [Lost]


def test_unexpected_pieces_count_as_lines() -> None:
    visitor = Timed()
    peer = visitor.enter()
    frame = b"".join(wire.encode_piece(Piece(STREAM, 0, 100, memoryview(b"x" * 100))))
    for _ in range(int(10 * RATE) + 1):
        visitor.sessions.arrived(peer, frame)
    assert not visitor.sessions.peers


def test_pieces_of_codeword_do_not_count() -> None:
    visitor = Timed()
    peer = visitor.enter()
    vector = packed(np.ones(NUMBERS, np.float32))
    visitor.sessions.send(Reveal(peer.client, 1, 0, "local", None))
    visitor.sessions.arrived(peer, wire.encode(offer_of(STREAM, Source(vector)), 1))
    data = as_sent(vector)
    for at in range(0, len(data), 4):
        visitor.sessions.arrived(
            peer, b"".join(wire.encode_piece(Piece(STREAM, at, len(data), data[at : at + 4])))
        )
    assert visitor.sessions.uploads.take(peer.client, STREAM).size == NUMBERS


def test_repeated_piece_is_no_progress_of_upload() -> None:
    visitor = Timed()
    peer = visitor.enter()
    vector = packed(np.ones(NUMBERS, np.float32))
    visitor.sessions.send(Reveal(peer.client, 1, 0, "local", None))
    visitor.sessions.arrived(peer, wire.encode(offer_of(STREAM, Source(vector)), 1))
    data = as_sent(vector)
    frame = b"".join(wire.encode_piece(Piece(STREAM, 0, len(data), data[:100])))
    for _ in range(5):
        visitor.sessions.arrived(peer, frame)
        visitor.now += 3.0
    visitor.sessions.uploads.free_stalled(10.0)
    assert [type(event).__name__ for event in visitor.events] == ["Failed"]
    assert "saw no bytes for 15.0 s" in visitor.events[0].reason


def test_run_excludes_client_by_name() -> None:
    visitor = Timed()
    peer = visitor.enter()
    visitor.sessions.exclude(peer.client, "3 rounds waited for it")
    assert not visitor.sessions.peers
    assert visitor.excluded == ["excluded for 5 s: 3 rounds waited for it"]


def test_offers_and_acknowledgements_of_others_continue() -> None:
    visitor = Timed()
    hog = visitor.enter(b"one")
    visitor.who = Identity(secrets.token_bytes(32))
    honest = visitor.enter(b"two")
    for _ in range(500):
        visitor.sessions.arrived(hog, wire.encode(Ack(STREAM, 0)))
    assert list(visitor.sessions.peers) == [honest.client]
    visitor.sessions.send(Reveal(honest.client, 1, 0, "local", None))
    vector = packed(np.ones(NUMBERS, np.float32))
    visitor.sessions.arrived(honest, wire.encode(offer_of(STREAM, Source(vector)), 1))
    assert [type(event) for event in visitor.offers] == [Offered]
