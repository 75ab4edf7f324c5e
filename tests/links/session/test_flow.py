"""Test one end of a session without the network: the next message, and a second grant."""

import numpy as np

from fedgc.links import frames as wire
from fedgc.links.byte_counts import Accounts, Amounts
from fedgc.links.frames import Ack, Piece, StreamId
from fedgc.links.pieces import Source, offer_of, packed
from fedgc.links.session.flow import Flow

STREAM = StreamId("codeword", 1, 0)
VECTOR = packed(np.arange(100.0))
PIECE = 40


def resting() -> Flow:
    flow = Flow(PIECE, Accounts(), lambda count: Amounts(up_bytes=count))
    flow.announce(offer_of(STREAM, Source(VECTOR)), Source(VECTOR), at_once=False)
    return flow


def pieces(flow: Flow, most: int = 100) -> list[int]:
    """Where the pieces begin that leave now."""
    found: list[int] = []
    while len(found) < most and (frame := flow.next_frame()) is not None:
        value = wire.decode(frame, wire.FROM_CLIENT, now=0.0, client="d")
        found += [value.offset] if isinstance(value, Piece) else []
    return found


def test_vector_waits_until_granted() -> None:
    flow = resting()
    assert pieces(flow) == []
    flow.granted(STREAM, 80)
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
