"""One end of a session without the network: what leaves next, and what a second grant does."""

import numpy as np

from fedgc.links import frames as wire
from fedgc.links.byte_counts import Accounts, Amounts
from fedgc.links.frames import Ack, Piece, StreamId
from fedgc.links.pieces import offer_of, packed
from fedgc.links.session.flow import Flow

STREAM = StreamId("codeword", 1, 0)
VECTOR = packed(np.arange(100.0))
PIECE = 40


def resting() -> Flow:
    flow = Flow(PIECE, Accounts(), lambda count: Amounts(up_bytes=count))
    flow.announce(offer_of(STREAM, VECTOR), VECTOR, at_once=False)
    return flow


def pieces(flow: Flow, most: int = 100) -> list[int]:
    """Where the pieces begin that leave now."""
    found: list[int] = []
    while len(found) < most and (frame := flow.next_frame()) is not None:
        value = wire.decode(frame, wire.FROM_CLIENT, now=0.0, client="d")
        found += [value.offset] if isinstance(value, Piece) else []
    return found


def test_a_vector_rests_until_it_is_granted() -> None:
    flow = resting()
    assert pieces(flow) == []
    flow.granted(STREAM, 80)
    assert pieces(flow, 2) == [80, 120]


def test_a_second_grant_sends_nothing_twice_and_what_is_on_its_way_may_be_acknowledged() -> None:
    flow = resting()
    flow.granted(STREAM, 0)
    assert pieces(flow, 3) == [0, 40, 80]
    flow.granted(STREAM, 40)  # said when one piece had arrived
    flow.acknowledged(Ack(STREAM, 120))
    assert pieces(flow, 1) == [120]
    flow.granted(STREAM, 280)  # it was sent so far over a stream that broke
    assert pieces(flow) == [280, 320, 360]
