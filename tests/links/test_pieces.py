"""Test vectors in pieces: bit-identical after repeats, breaks and bad pieces."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.codecs import EPSILON, Wire, codec_of
from fedgc.errors import BadMessage, BadVector
from fedgc.large_vectors import Scratch
from fedgc.links.frames import CHECKSUM_BYTES, Offer, Piece, StreamId
from fedgc.links.pieces import (
    WINDOW,
    Form,
    Incoming,
    Outgoing,
    Source,
    offer_of,
    packed,
    shortened,
    signed_offer_of,
)

STREAM = StreamId("codeword", 3, 1)


def outgoing(vector: np.ndarray, piece_bytes: int) -> Outgoing:
    source = Source(vector)
    return Outgoing(offer_of(STREAM, source), source, piece_bytes)


def incoming(offer: Offer, form: Form) -> Incoming:
    return Incoming(offer, form, Scratch())


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
    source = outgoing(vector, piece_bytes)
    sink = incoming(source.offer, Form(numbers))
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


def send_all(source: Outgoing, sink: Incoming) -> None:
    while piece := source.next_piece():
        sink.accept(piece)
        source.acknowledge(sink.received)


def test_unacknowledged_pieces_stay_within_window() -> None:
    vector = some(100)
    source = outgoing(vector, 4)
    sent = []
    while piece := source.next_piece():
        sent.append(piece)
    assert len(sent) == WINDOW
    source.acknowledge(4)
    assert source.next_piece() is not None


@given(numbers=st.integers(1, 3000), share=st.floats(0, 1), wire=st.sampled_from([*Wire, "top-k"]))
def test_last_numbers_of_vector_arrive_exactly(numbers: int, share: float, wire: str) -> None:
    exact = round(share * numbers)
    vector, form = some(numbers), Form(numbers, wire, exact=exact)
    short = codec_of(wire, exact).encode(vector, np.random.default_rng(0))
    assert short.nbytes == form.largest == codec_of(wire, exact).expected(numbers)
    source = outgoing(short, 700)
    sink = incoming(source.offer, form)
    send_all(source, sink)
    np.testing.assert_array_equal(sink.finish()[numbers - exact :], vector[numbers - exact :])


@pytest.mark.parametrize("size", [0, 79, 81, 400])
def test_vector_of_other_size_than_its_exact_numbers_is_refused(size: int) -> None:
    with pytest.raises(BadVector, match=rf"saw {size} bytes, needed 80 \(40 numbers as int4\)"):
        incoming(Offer(STREAM, size + CHECKSUM_BYTES), Form(40, "int4", exact=16))


@given(numbers=st.integers(1, 3000), piece_bytes=st.integers(1, 700), wire=st.sampled_from(Wire))
def test_codeword_arrives_in_requested_format(numbers: int, piece_bytes: int, wire: Wire) -> None:
    vector, form = some(numbers), Form(numbers, wire)
    short = shortened(vector, wire, STREAM, "me")
    assert short.nbytes == form.largest
    source = outgoing(short, piece_bytes)
    again = shortened(vector, wire, STREAM, "me")  # a new process continues it
    np.testing.assert_array_equal(again, short)
    sink = incoming(source.offer, form)
    send_all(source, sink)
    arrived = sink.finish()
    assert arrived.dtype == np.float32
    np.testing.assert_allclose(arrived, vector, atol=EPSILON[wire] * 2 * np.abs(vector).max())


@pytest.mark.parametrize("wire", [Wire.BF16, Wire.INT8])
def test_invalid_low_precision_codeword_is_refused_when_complete(wire: Wire) -> None:
    short = np.full(Form(100, wire).largest, 0xFF, np.uint8)  # NaN as bf16, and as the scale of int8
    source = outgoing(short, 64)
    sink = incoming(source.offer, Form(100, wire))
    send_all(source, sink)
    with pytest.raises(BadVector, match="NaN or Inf"):
        sink.finish()


def test_pieces_are_views_of_one_vector() -> None:
    vector = some(100)
    piece = outgoing(vector, 64).next_piece()
    assert piece is not None
    assert np.shares_memory(np.frombuffer(piece.payload, np.uint8), vector)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 57, 99])
@pytest.mark.parametrize("piece_bytes", [7, 64])
def test_non_finite_number_is_found_in_completing_piece(bad: float, place: int, piece_bytes: int) -> None:
    vector = some(100)
    vector[place] = bad
    source = outgoing(vector, piece_bytes)
    sink = incoming(source.offer, Form(100))
    with pytest.raises(BadVector, match="NaN or Inf"):
        send_all(source, sink)
    assert (sink.received - 1) // 4 >= place > (sink.received - piece_bytes) // 4 - 1


def test_other_size_is_refused_before_allocation() -> None:
    with pytest.raises(BadVector, match="needed 400"):
        incoming(Offer(STREAM, 2**60), Form(100))
    with pytest.raises(BadVector, match="saw a digest of 32 bytes, needed none in a session"):
        incoming(signed_offer_of(STREAM, some(4)), Form(4))


def test_bytes_with_wrong_checksum_are_refused() -> None:
    source = outgoing(some(4), 64)
    sink = incoming(source.offer, Form(4))
    piece = source.next_piece()
    assert piece is not None
    spoiled = bytes(piece.payload[:-1]) + bytes([piece.payload[-1] ^ 1])
    sink.accept(replace(piece, payload=memoryview(spoiled)))
    with pytest.raises(BadVector, match="checksum"):
        sink.finish()


def test_incomplete_or_foreign_vector_is_not_released() -> None:
    first, second = some(100), some(100)
    second[10:] *= 2
    source, other = outgoing(first, 208), outgoing(second, 208)
    sink = incoming(source.offer, Form(100))
    for pieces in (source, other):
        with pytest.raises(BadVector, match="checksum"):
            sink.finish()
        piece = next(each for each in iter(pieces.next_piece, None) if each.offset == sink.received)
        sink.accept(piece)
    assert sink.whole
    for _ in range(2):
        with pytest.raises(BadVector, match="checksum"):
            sink.finish()


def test_vector_that_is_computed_is_read_once_and_in_parts() -> None:
    begin, end, parts = some(1000), some(1000)[::-1].copy(), []

    class Difference:
        size, dtype = 1000, np.dtype(np.float32)

        def __getitem__(self, part: slice) -> np.ndarray:
            parts.append((part.start, part.stop))
            return begin[part] - end[part]

    source = outgoing(Difference(), 400)
    sink = incoming(source.offer, Form(1000))
    send_all(source, sink)
    np.testing.assert_array_equal(sink.finish(), begin - end)
    assert parts == [(first, first + 100) for first in range(0, 1000, 100)]


@given(at=st.integers(0, 416))
def test_new_process_continues_upload_with_its_checksum(at: int) -> None:
    vector = some(100)
    sink = incoming(outgoing(vector, 64).offer, Form(100))
    every = bytes(Source(vector).read(0, 400 + CHECKSUM_BYTES))
    if at:
        sink.accept(Piece(STREAM, 0, len(every), memoryview(every[:at])))
    other = outgoing(vector, 64)
    other.resume(at)
    send_all(other, sink)
    np.testing.assert_array_equal(sink.finish(), vector)


def test_large_vector_is_received_into_file(tmp_path: Path) -> None:
    source = outgoing(some(1000), 512)
    sink = Incoming(source.offer, Form(1000), Scratch(tmp_path / "scratch", in_memory_bytes=100))
    send_all(source, sink)
    np.testing.assert_array_equal(sink.finish(), some(1000))
    assert list((tmp_path / "scratch").iterdir()) == []  # the file has no name


def test_signed_digest_is_collision_resistant() -> None:
    assert signed_offer_of(STREAM, some(4)).digest == hashlib.sha256(some(4).tobytes()).digest()


def test_gap_and_foreign_piece_are_refused() -> None:
    sink = incoming(outgoing(some(4), 64).offer, Form(4))
    with pytest.raises(BadVector, match="needed 0"):
        sink.accept(Piece(STREAM, 8, 32, memoryview(b"12345678")))
    with pytest.raises(BadVector, match="were offered"):
        sink.accept(Piece(STREAM, 0, 99, memoryview(b"12345678")))


def test_bytes_received_before_break_are_not_sent_again() -> None:
    source = outgoing(some(4), 4)
    source.resume(0)
    source.acknowledge(8)
    piece = source.next_piece()
    assert piece is not None
    assert piece.offset == 8


def test_acknowledgement_of_unsent_bytes_is_refused() -> None:
    source = outgoing(some(4), 4)
    with pytest.raises(BadMessage, match="byte 33 of 32 acknowledged"):
        source.acknowledge(33)
    with pytest.raises(BadMessage, match="continue at 33"):
        source.resume(33)
