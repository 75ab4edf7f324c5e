"""The desk without a network: what strangers, hogs and the deaf cannot do to others."""

import logging
import os
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgc.config import RunConfig
from fedgc.errors import BadMessage, NotAdmitted
from fedgc.flower import channel, identity, wire
from fedgc.flower.admission import Admission
from fedgc.flower.desk import Desk, Surroundings
from fedgc.flower.identity import Identity
from fedgc.flower.pieces import offer_of, packed
from fedgc.flower.wire import Bye, Grant, Hello, Numbered, Piece, StreamId
from fedgc.messages import WIRE_VERSION, Reveal, Work

NUMBERS, SERVER, NONCE = 1000, b"fingerprint", b"nonce"


class Visitor:
    """One device at a desk, without a stream."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.admission = Admission("run", SERVER, 60.0)
        around = Surroundings(lambda: 1.0, os.urandom, lambda: 1.0, logging.getLogger("test"))
        config = RunConfig(upload_slots=1)
        self.desk = Desk(config, NUMBERS, self.admission, self.events.append, around)
        self.who = Identity(Ed25519PrivateKey.generate())

    def hello(self, credential: bytes, heard: int = 0) -> Hello:
        signed = identity.statement(WIRE_VERSION, "run", credential, NONCE, SERVER)
        signature = self.who.sign(signed)
        return Hello(WIRE_VERSION, "run", credential, self.who.public, signature, "me", heard, ())


def said(seat) -> list[object]:
    """Everything that waits to be sent to a device."""
    lines = []
    while (frame := seat.flow.next_frame()) is not None:
        line = wire.decode(frame, wire.FROM_SERVER, now=0.0, device=seat.device)
        lines.append(line.value if isinstance(line, Numbered) else line)
    return lines


@pytest.mark.parametrize("change", [{"run": "another"}, {"key": b"k" * 32}, {"signature": b"s" * 64}])
def test_a_hello_of_another_run_or_key_is_refused(change: dict[str, object]) -> None:
    visitor = Visitor()
    visitor.admission.expect(b"token")
    with pytest.raises(NotAdmitted):
        visitor.desk.admit(replace(visitor.hello(b"token"), **change), NONCE)
    assert not visitor.desk.seats


def test_who_has_a_slot_and_sends_nothing_gives_it_up() -> None:
    visitor = Visitor()
    now = [1.0]
    visitor.desk._around = replace(visitor.desk._around, clock=lambda: now[0])
    seats = []
    for token in (b"one", b"two"):
        visitor.who = Identity(Ed25519PrivateKey.generate())
        visitor.admission.expect(token)
        seat, _ = visitor.desk.admit(visitor.hello(token), NONCE)
        visitor.desk.send(Reveal(seat.device, 1, 0, "local", None))
        offer = offer_of(StreamId("codeword", 1, 0), packed(np.ones(NUMBERS, np.float32)))
        visitor.desk.arrived(seat, wire.encode(offer, 1))
        seats.append(seat)
    hog, honest = seats
    assert not any(isinstance(line, Grant) for line in said(honest))
    visitor.desk.free_stalled(10.0)
    assert not any(isinstance(line, Grant) for line in said(honest))
    now[0] = 12.0
    visitor.desk.free_stalled(10.0)
    assert any(isinstance(line, Grant) for line in said(honest))
    assert [type(event).__name__ for event in visitor.events] == ["Failed"]
    assert visitor.events[0].device == hog.device


def test_one_device_that_leaves_everything_unheard_does_not_keep_others_from_a_goodbye(monkeypatch) -> None:
    visitor = Visitor()
    seats = []
    for token in (b"one", b"two"):
        visitor.who = Identity(Ed25519PrivateKey.generate())
        visitor.admission.expect(token)
        seats.append(visitor.desk.admit(visitor.hello(token), NONCE)[0])
    monkeypatch.setattr(channel, "KEPT_LIMIT", 3)
    for attempt in range(4):
        visitor.desk.send(Reveal(seats[0].device, 1, attempt, "local", None))
    assert seats[0].device not in visitor.desk.seats, "it was given up"
    visitor.desk.dismiss("over")
    assert any(isinstance(line, Bye) for line in said(seats[1]))


def test_who_comes_back_with_lines_that_are_out_of_step_is_lost() -> None:
    visitor = Visitor()
    visitor.admission.expect(b"one")
    seat, _ = visitor.desk.admit(visitor.hello(b"one"), NONCE)
    with pytest.raises(BadMessage, match="only 0 were said"):
        visitor.desk.admit(visitor.hello(seat.ticket, heard=5), NONCE)
    assert not visitor.desk.seats
    assert [type(event).__name__ for event in visitor.events] == ["Lost"]


def test_a_device_that_was_lost_holds_no_vector() -> None:
    visitor = Visitor()
    visitor.admission.expect(b"one")
    seat, _ = visitor.desk.admit(visitor.hello(b"one"), NONCE)
    vector = packed(np.ones(NUMBERS, np.float32))
    visitor.desk.publish(offer_of(StreamId("model", 0), vector), vector)
    visitor.desk.send(Work(seat.device, 1, 0, 1, (0,), ((0, "a"),), 0, 1.0))
    visitor.desk.send(Reveal(seat.device, 1, 0, "local", None))
    visitor.desk.arrived(seat, wire.encode(offer_of(StreamId("codeword", 1, 0), vector), 1))
    assert seat.flow.incoming
    visitor.desk.lose(seat)
    assert not seat.flow.incoming
    assert not any(isinstance(line, Piece) for line in said(seat))


def test_names_are_for_people_and_kept_short() -> None:
    visitor = Visitor()
    visitor.admission.expect(b"token")
    seat, _ = visitor.desk.admit(replace(visitor.hello(b"token"), name="\x1b[2Jdevice\n" + "x" * 999), NONCE)
    assert visitor.desk.name(seat.device) == ("[2Jdevice " + "x" * 999)[:64]


def test_a_device_that_trickles_loses_its_slot_and_not_the_round() -> None:
    visitor = Visitor()
    now = [1.0]
    visitor.desk._around = replace(visitor.desk._around, clock=lambda: now[0])
    vector = packed(np.ones(NUMBERS, np.float32))
    stream, seats = StreamId("codeword", 1, 0), []
    for token in (b"one", b"two"):
        visitor.who = Identity(Ed25519PrivateKey.generate())
        visitor.admission.expect(token)
        seat, _ = visitor.desk.admit(visitor.hello(token), NONCE)
        visitor.desk.send(Reveal(seat.device, 1, 0, "local", None))
        visitor.desk.arrived(seat, wire.encode(offer_of(stream, vector), 1))
        seats.append(seat)
    hog, honest = seats

    def sends(seat, first: int, last: int) -> None:
        piece = Piece(stream, first, vector.nbytes, vector.data.cast("B")[first:last])
        visitor.desk.arrived(seat, wire.encode_piece(piece))

    for second in range(12):
        now[0] = 2.0 + second
        sends(hog, second, second + 1)
        visitor.desk.free_stalled(10.0)
        assert any(isinstance(line, Grant) for line in said(honest)) == (second == 9), "after a grace time"
    assert visitor.events == [], "it has not failed"
    sends(honest, 0, vector.nbytes)
    said(hog)
    visitor.desk.take(honest.device, stream)
    visitor.desk.forget(honest.device, stream)
    assert [line for line in said(hog) if isinstance(line, Grant)] == [Grant(stream, 12)], "it goes on"
    sends(hog, 12, vector.nbytes)
    assert [event.device for event in visitor.events] == [honest.device, hog.device]


def test_who_trickles_while_nobody_waits_goes_on() -> None:
    visitor = Visitor()
    now = [1.0]
    visitor.desk._around = replace(visitor.desk._around, clock=lambda: now[0])
    visitor.admission.expect(b"one")
    seat, _ = visitor.desk.admit(visitor.hello(b"one"), NONCE)
    visitor.desk.send(Reveal(seat.device, 1, 0, "local", None))
    stream, vector = StreamId("codeword", 1, 0), packed(np.ones(NUMBERS, np.float32))
    visitor.desk.arrived(seat, wire.encode(offer_of(stream, vector), 1))
    for second in range(30):
        now[0] = 2.0 + second
        piece = Piece(stream, second, vector.nbytes, vector.data.cast("B")[second : second + 1])
        visitor.desk.arrived(seat, wire.encode_piece(piece))
        visitor.desk.free_stalled(10.0)
    assert visitor.desk._slots.sending == {(seat.device, stream)}
    assert visitor.events == []
