"""The listener's desk without a network: who holds a slot when streams come and go."""

import logging
import os

import pytest

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed
from fedgc.flower import wire
from fedgc.flower.desk import Desk, Surroundings
from fedgc.flower.pieces import offer_of, packed
from fedgc.flower.wire import Grant, Hello, Piece, StreamId
from fedgc.messages import Close, Reveal, Skip

NUMBERS = 100
CODEWORD = packed([1.0] * NUMBERS)
STREAM = StreamId("codeword", 1, 0)


class OpenDoor:
    """Admits by name; whoever has a seat goes on with it."""

    def check(self, hello: Hello, nonce: bytes) -> str:
        return hello.name

    def is_new(self, hello: Hello, device: str, seat: object) -> bool:
        return seat is None

    def used(self, token: bytes, seat: object) -> None:
        """Nothing is noted."""

    def lease_s(self, device: str) -> float:
        return 60.0


@pytest.fixture
def desk() -> Desk:
    around = Surroundings(lambda: 0.0, os.urandom, lambda: 0.0, logging.getLogger("test"))
    config = RunConfig.read({"upload-slots": 1, "piece-kb": 1})
    return Desk(config, NUMBERS, OpenDoor(), lambda _: None, around)


def comes(desk: Desk, name: str, heard: int = 0):
    seat, _ = desk.admit(Hello(1, "run", b"", b"", b"", name, heard), b"")
    desk.resume(seat)
    return seat


def grants(seat) -> list[Grant]:
    """What this stream of the device is told about its uploads."""
    found = []
    while (frame := seat.flow.next_frame()) is not None:
        line = wire.decode(frame, wire.FROM_SERVER, now=0.0, device=seat.device)
        found += [line.value] if isinstance(line.value, Grant) else []
    return found


def test_an_upload_goes_on_over_a_new_stream_though_the_old_one_seems_open(desk) -> None:
    """A half-open connection: the device has noticed and is back, and we have not."""
    seat = comes(desk, "a")
    desk.send(Reveal("a", 1, 0, "local", None))
    desk.arrived(seat, wire.encode(offer_of(STREAM, CODEWORD), 1))
    assert grants(seat) == [Grant(STREAM, 0)]
    desk.arrived(seat, wire.encode_piece(Piece(STREAM, 0, 400, CODEWORD.data.cast("B")[:40])))
    seat.flow.channel.confirm(2)
    assert comes(desk, "a", heard=2) is seat
    assert grants(seat) == [Grant(STREAM, 40)]


def test_its_slot_is_not_kept_from_others_while_it_is_away(desk) -> None:
    first, second = comes(desk, "a"), comes(desk, "b")
    for seat in (first, second):
        desk.send(Reveal(seat.device, 1, 0, "local", None))
        desk.arrived(seat, wire.encode(offer_of(STREAM, CODEWORD), 1))
    assert grants(first) == [Grant(STREAM, 0)]
    assert grants(second) == []
    desk.left(first, first.stream, lambda *_: None)
    assert grants(second) == [Grant(STREAM, 0)]


@pytest.mark.parametrize("taken", ["taken", "unwanted", "lost", "closed"])
def test_the_next_codeword_comes_when_the_sum_has_taken_the_one_before(desk, taken) -> None:
    """So no more of them stand in memory than there are slots, however slow the sum is."""
    first, second = comes(desk, "a"), comes(desk, "b")
    for seat in (first, second):
        desk.send(Reveal(seat.device, 1, 0, "local", None))
        desk.arrived(seat, wire.encode(offer_of(STREAM, CODEWORD), 1))
    desk.arrived(first, wire.encode_piece(Piece(STREAM, 0, 400, CODEWORD.data.cast("B"))))
    desk.send(Skip("a", 1, 0))
    assert grants(second) == []
    if taken == "taken":
        assert desk.take("a", STREAM).tolist() == CODEWORD.tolist()
        assert grants(second) == []
        desk.forget("a", STREAM)
    elif taken == "unwanted":
        desk.forget("a", STREAM)
        with pytest.raises(EdgeFailed, match="not here"):
            desk.take("a", STREAM)
    elif taken == "closed":
        desk.send(Close("a", 1, "synced", True))
    else:
        desk.lose(first)
    assert grants(second) == [Grant(STREAM, 0)]
