"""Test one end of a session without the network: the next message, and a second grant."""

import numpy as np

from fedgc.links import frames as wire
from fedgc.links.byte_counts import Accounts
from fedgc.links.frames import Ack, Bye, Heard, Piece, StreamId
from fedgc.links.pieces import WINDOW, Source, offer_of, packed
from fedgc.links.session.flow import UNHEARD, Flow

STREAM = StreamId("codeword", 1, 0)
VECTOR = packed(np.arange(100.0))
PIECE = 40


def resting() -> Flow:
    flow = Flow(PIECE, Accounts(), "up_bytes")
    flow.announce(offer_of(STREAM, Source(VECTOR)), Source(VECTOR), at_once=False)
    return flow


def pieces(flow: Flow, most: int = 100) -> list[int]:
    """Where the pieces begin that leave now."""
    found: list[int] = []
    while len(found) < most and (frame := flow.next_frame()) is not None:
        value = wire.decode(b"".join(frame), wire.FROM_CLIENT, now=0.0, client="d")
        found += [value.offset] if isinstance(value, Piece) else []
    return found


def test_vector_waits_until_granted() -> None:
    flow = resting()
    assert pieces(flow) == []
    assert not flow.waits
    flow.granted(STREAM, 80)
    assert flow.waits
    assert pieces(flow, 2) == [80, 120]


def test_second_grant_repeats_nothing_and_allows_late_ack() -> None:
    flow = resting()
    flow.granted(STREAM, 0)
    assert pieces(flow, 3) == [0, 40, 80]
    flow.granted(STREAM, 40)  # said when one piece had arrived
    flow.acknowledged(Ack(STREAM, 120))
    assert pieces(flow, 1) == [120]
    flow.granted(STREAM, 280)  # it was sent so far over a stream that broke
    assert pieces(flow) == [280, 320, 360, 400]


def test_lines_and_short_vector_travel_in_one_message() -> None:
    flow = Flow(PIECE, Accounts(), "down_bytes")
    flow.announce(offer_of(STREAM, Source(VECTOR)), Source(VECTOR), at_once=True)
    flow.channel.send(Bye("later"))
    message = flow.next_message()
    assert message is not None
    kinds = [frame[:1] for frame in wire.split(b"".join(message))]
    assert kinds[:2] == [b"L", b"L"]
    assert set(kinds[2:]) == {b"P"}
    assert not flow.waits
    assert flow.next_message() is None


def test_pieces_of_upload_follow_its_offer_in_their_own_message() -> None:
    """The server measures an upload from its offer on."""
    flow = Flow(PIECE, Accounts(), "up_bytes")
    flow.announce(offer_of(STREAM, Source(VECTOR)), Source(VECTOR), at_once=True)
    flow.channel.send(Bye("later"))
    for kinds in ([b"L", b"L"], [b"P"] * WINDOW):
        message = flow.next_message()
        assert message is not None
        assert [frame[:1] for frame in wire.split(b"".join(message))] == kinds


def test_line_does_not_wait_behind_long_piece() -> None:
    vector = packed(np.zeros(wire.BATCH_BYTES // 2))
    flow = Flow(vector.nbytes, Accounts(), "up_bytes")
    flow.announce(offer_of(STREAM, Source(vector)), Source(vector), at_once=True)
    for kind in (b"L", b"P"):
        message = flow.next_message()
        assert message is not None
        assert {frame[:1] for frame in wire.split(b"".join(message))} == {kind}


def test_lines_are_acknowledged_at_ping_or_in_numbers() -> None:
    flow = Flow(PIECE, Accounts(), "up_bytes")
    flow.channel.accept(1)
    assert flow.next_message() is None
    flow.ping()
    assert flow.next_message() == (wire.encode(Heard(1)),)
    for number in range(2, 2 + UNHEARD):
        assert not flow.waits
        flow.channel.accept(number)
    assert flow.waits
    assert flow.next_message() == (wire.encode(Heard(1 + UNHEARD)),)
