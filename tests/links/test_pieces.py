"""Test vectors in pieces: bit-identical after repeats, breaks and bad pieces."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codecs import EPSILON, Wire
from fedgc.errors import BadMessage, BadVector
from fedgc.links.frames import Piece, StreamId
from fedgc.links.pieces import WINDOW, Form, Incoming, Outgoing, offer_of, packed, shortened

STREAM = StreamId("codeword", 3, 1)


def some(numbers: int) -> np.ndarray:
    return packed(np.random.default_rng(numbers).standard_normal(numbers))


@given(
    numbers=st.integers(1, 400),
    piece_bytes=st.integers(1, 100),
    faults=st.lists(st.sampled_from(["ok", "ok", "ok", "twice", "break", "lose ack"]), max_size=60),
)
def test_vector_arrives_bit_identical_after_repeats_and_breaks(
    numbers: int, piece_bytes: int, faults: list[str]
) -> None:
    vector = some(numbers)
    offer = offer_of(STREAM, vector)
    source, sink = Outgoing(offer, vector, piece_bytes), Incoming(offer, Form(numbers))
    steps = iter(faults)
    while not sink.whole:
        fault = next(steps, "ok")
        piece = source.next_piece()
        if piece is None or fault == "break":  # what was on its way is lost; the receiver says where to go on
            source.resume(sink.received)
            continue
        sink.accept(piece)
        if fault == "twice":
            sink.accept(piece)
        if fault != "lose ack":
            source.acknowledge(sink.received)
    np.testing.assert_array_equal(sink.finish(), vector)
    source.acknowledge(sink.received)
    assert source.done


def send_all(source: Outgoing, sink: Incoming) -> None:
    while piece := source.next_piece():
        sink.accept(piece)
        source.acknowledge(sink.received)


def test_unacknowledged_pieces_stay_within_window() -> None:
    vector = some(100)
    source = Outgoing(offer_of(STREAM, vector), vector, 4)
    sent = []
    while piece := source.next_piece():
        sent.append(piece)
    assert len(sent) == WINDOW
    source.acknowledge(4)
    assert source.next_piece() is not None


@given(numbers=st.integers(1, 3000), piece_bytes=st.integers(1, 700), wire=st.sampled_from(Wire))
def test_codeword_arrives_in_requested_format(numbers: int, piece_bytes: int, wire: Wire) -> None:
    vector, form = some(numbers), Form(numbers, wire)
    short = shortened(vector, wire, STREAM, "me")
    assert short.nbytes == form.largest
    offer = offer_of(STREAM, short)
    assert offer == offer_of(STREAM, shortened(vector, wire, STREAM, "me"))  # a new process continues it
    source, sink = Outgoing(offer, short, piece_bytes), Incoming(offer, form)
    send_all(source, sink)
    arrived = sink.finish()
    assert arrived.dtype == np.float32
    np.testing.assert_allclose(arrived, vector, atol=EPSILON[wire] * 2 * np.abs(vector).max())


@pytest.mark.parametrize("wire", [Wire.BF16, Wire.INT8])
def test_invalid_low_precision_codeword_is_refused_when_complete(wire: Wire) -> None:
    short = np.full(Form(100, wire).largest, 0xFF, np.uint8)  # NaN as bf16, and as the scale of int8
    offer = offer_of(STREAM, short)
    source, sink = Outgoing(offer, short, 64), Incoming(offer, Form(100, wire))
    send_all(source, sink)
    with pytest.raises(BadVector, match="NaN or Inf"):
        sink.finish()


def test_pieces_are_views_of_one_vector() -> None:
    vector = some(100)
    piece = Outgoing(offer_of(STREAM, vector), vector, 64).next_piece()
    assert piece is not None
    assert np.shares_memory(np.frombuffer(piece.payload, np.uint8), vector)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 57, 99])
@pytest.mark.parametrize("piece_bytes", [7, 64])
def test_non_finite_number_is_found_in_completing_piece(bad: float, place: int, piece_bytes: int) -> None:
    vector = some(100)
    vector[place] = bad
    offer = offer_of(STREAM, vector)
    source, sink = Outgoing(offer, vector, piece_bytes), Incoming(offer, Form(100))
    with pytest.raises(BadVector, match="NaN or Inf"):
        send_all(source, sink)
    assert (sink.received - 1) // 4 >= place > (sink.received - piece_bytes) // 4 - 1


def test_other_size_is_refused_before_allocation() -> None:
    huge = replace(offer_of(STREAM, some(4)), size=2**60)
    with pytest.raises(BadVector, match="needed 400"):
        Incoming(huge, Form(100))
    with pytest.raises(BadVector, match="saw a checksum of 32 bytes, needed 16"):
        Incoming(offer_of(STREAM, some(4), signed=True), Form(4))


def test_bytes_with_wrong_checksum_are_refused() -> None:
    offer = replace(offer_of(STREAM, some(4)), digest=bytes(16))
    source, sink = Outgoing(offer, some(4), 64), Incoming(offer, Form(4))
    piece = source.next_piece()
    assert piece is not None
    sink.accept(piece)
    with pytest.raises(BadVector, match="checksum"):
        sink.finish()


def test_incomplete_or_foreign_vector_is_not_released() -> None:
    first, second = some(100), some(100)
    second[60:] *= 2
    sink = Incoming(offer_of(STREAM, first), Form(100))
    source, other = Outgoing(sink.offer, first, 200), Outgoing(offer_of(STREAM, second), second, 200)
    for pieces in (source, other):
        with pytest.raises(BadVector, match="checksum"):
            sink.finish()
        piece = next(each for each in iter(pieces.next_piece, None) if each.offset == sink.received)
        sink.accept(piece)
    assert sink.whole
    for _ in range(2):
        with pytest.raises(BadVector, match="checksum"):
            sink.finish()


def test_signed_digest_is_collision_resistant() -> None:
    assert offer_of(STREAM, some(4), signed=True).digest == hashlib.sha256(some(4).tobytes()).digest()
    assert len(offer_of(STREAM, some(4)).digest) < 32


def test_gap_and_foreign_piece_are_refused() -> None:
    sink = Incoming(offer_of(STREAM, some(4)), Form(4))
    with pytest.raises(BadVector, match="needed 0"):
        sink.accept(Piece(STREAM, 8, 16, memoryview(b"12345678")))
    with pytest.raises(BadVector, match="were offered"):
        sink.accept(Piece(STREAM, 0, 99, memoryview(b"12345678")))


def test_bytes_received_before_break_are_not_sent_again() -> None:
    source = Outgoing(offer_of(STREAM, some(4)), some(4), 4)
    source.resume(0)
    source.acknowledge(8)
    piece = source.next_piece()
    assert piece is not None
    assert piece.offset == 8


def test_acknowledgement_of_unsent_bytes_is_refused() -> None:
    source = Outgoing(offer_of(STREAM, some(4)), some(4), 4)
    with pytest.raises(BadMessage, match="byte 17 of 16 acknowledged"):
        source.acknowledge(17)
    with pytest.raises(BadMessage, match="continue at 17"):
        source.resume(17)
