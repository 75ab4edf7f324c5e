"""Vectors in pieces: acknowledged, idempotent, resumable from the first unacknowledged byte.

The sender keeps a window of unacknowledged pieces in flight, so that small lines never wait behind a
large vector. The receiver takes bytes in order, ignores what it has, and checks as it goes: the size
before it allocates, every number when its bytes are whole, and a checksum at the end.

That what arrives is what was sent is for TLS to see to; the checksum finds what TLS cannot: a vector whose
second half is of another making. It is Poly1305 (Bernstein 2005) under a key that everybody knows, which no
accident passes, in a quarter of the time that SHA-256 takes; at 100 MB that is felt. What is signed, the
offers of a packet, has SHA-256.

Models travel as float32, codewords and updates as the round says (`Form`): by a codec, or as words of a ring,
of which every value is a good one.

A codeword of 758 MB whose last acknowledgement is lost costs one small line here, not the codeword.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.poly1305 import Poly1305
from numpy.typing import NDArray

from fedgc.codecs import EXACT, make_codec, rounding
from fedgc.errors import BadMessage, BadVector
from fedgc.links.frames import CHECKSUM_BYTES, Offer, Piece, StreamId
from fedgc.secagg.keystream import RING_TYPES

WINDOW: Final = 8  # pieces in flight: 8 MiB at 1 MiB each, enough for 80 MB/s over 100 ms
NUMBER: Final = np.dtype("<f4")
SLICE: Final = 1 << 20  # bytes checked at a time
CHECKED_BY: Final = hashlib.sha256(b"fedgc: a vector in pieces").digest()  # a key like any other

Vector = np.ndarray[tuple[int], np.dtype[np.float32]]
Numbers = np.ndarray[Any, np.dtype[Any]]  # any array of floats
Packed = np.ndarray[Any, np.dtype[Any]]  # contiguous: what its bytes hold is its Form's business


@dataclass(frozen=True, slots=True)
class Form:
    """How many numbers a vector has, and by which codec they travel; `ring` is the bits of a masked word.

    >>> Form(1000, "bf16").largest, Form(1000, ring=16).largest
    (2000, 2000)
    """

    numbers: int
    wire: str = EXACT
    ring: int = 0

    @property
    def largest(self) -> int:
        """The most bytes that the whole vector can have."""
        return self.numbers * self.ring // 8 if self.ring else make_codec(self.wire).largest(self.numbers)

    def check_size(self, stream: StreamId, size: int) -> None:
        """Raise BadVector unless a vector of this form can have so many bytes."""
        largest = self.largest
        varies = not self.ring and not make_codec(self.wire).fixed
        if not (1 <= size <= largest if varies else size == largest):
            needed = f"1 to {largest}" if varies else str(largest)
            raise BadVector(
                f"{stream}: saw {size} bytes, needed {needed} ({self.numbers} numbers as {self.wire})"
            )

    @property
    def kind(self) -> np.dtype[Any]:
        """The type in which the packed vector stands in a record of arrays."""
        if self.ring:
            return RING_TYPES[self.ring]
        return NUMBER if self.wire == EXACT else np.dtype(np.uint8)

    def unpacked(self, data: NDArray[np.uint8], stream: StreamId) -> Numbers:
        """Return the numbers in these bytes, or raise BadVector where they are not finite."""
        if self.ring:
            return data.view(RING_TYPES[self.ring])
        try:
            vector = make_codec(self.wire).decode(data, self.numbers)
        except Exception as error:  # a codec of another package reads bytes of another process
            raise BadVector(f"{stream}: codec {self.wire} cannot read it: {error}") from error
        if vector.shape != (self.numbers,) or vector.dtype != np.float32:
            seen = f"{vector.dtype} {vector.shape}"
            raise BadVector(f"{stream}: codec {self.wire} made {seen}, needed float32 ({self.numbers},)")
        check_finite(vector, stream)
        return vector


def checksum_of(vector: Packed) -> bytes:
    """Return what tells a vector from every other that may be taken for it by accident.

    A slice at a time, between which other threads have their turn: it holds on to the interpreter.
    """
    checksum, data = Poly1305(CHECKED_BY), vector.data.cast("B")
    for first in range(0, len(data), SLICE):
        checksum.update(data[first : first + SLICE])
    return checksum.finalize()


def digest_of(vector: Packed) -> bytes:
    """Return the SHA-256 of a vector's bytes."""
    return hashlib.sha256(vector.data.cast("B")).digest()


def packed(vector: Numbers) -> Vector:
    """Return `vector` as it travels: contiguous float32, without a copy where it is that already."""
    return np.ascontiguousarray(vector, NUMBER)


def shortened(vector: Numbers, wire: str, stream: StreamId, client: str) -> Packed:
    """Return a vector as it travels by this codec."""
    if wire == EXACT:
        return packed(vector)
    chance = rounding(stream.number, stream.attempt, client)
    return make_codec(wire).encode(packed(vector), chance)


class Outgoing:
    """A vector on its way out; many of them can share one vector."""

    def __init__(self, offer: Offer, vector: Packed, piece_bytes: int) -> None:
        self.offer: Final = offer
        self._bytes = vector.data.cast("B")
        self._piece = piece_bytes
        self.sent = 0
        self._acknowledged = 0

    @property
    def done(self) -> bool:
        """Every byte is acknowledged."""
        return self._acknowledged == self.offer.size

    def next_piece(self) -> Piece | None:
        """Return the next piece, or None while the window is full or all is sent."""
        if self.sent == self.offer.size or self.sent - self._acknowledged >= WINDOW * self._piece:
            return None
        start = self.sent
        self.sent = min(start + self._piece, self.offer.size)
        return Piece(self.offer.stream, start, self.offer.size, self._bytes[start : self.sent])

    def acknowledge(self, offset: int) -> None:
        """Every byte before `offset` has arrived, be it over a stream that went farther before it broke."""
        if not 0 <= offset <= self.offer.size:
            raise BadMessage(f"{self.offer.stream}: byte {offset} of {self.offer.size} acknowledged")
        self._acknowledged = max(self._acknowledged, offset)
        self.sent = max(self.sent, offset)

    def resume(self, offset: int) -> None:
        """A new stream, or a grant: go on at `offset`."""
        if not 0 <= offset <= self.offer.size:
            raise BadMessage(
                f"{self.offer.stream}: saw a request to continue at {offset} of {self.offer.size}"
            )
        self.sent = self._acknowledged = offset


class Incoming:
    """A vector on its way in."""

    def __init__(self, offer: Offer, form: Form) -> None:
        """Make room for the offered vector, which must have this form."""
        if len(offer.digest) != CHECKSUM_BYTES:
            raise BadVector(
                f"{offer.stream}: saw a checksum of {len(offer.digest)} bytes, needed {CHECKSUM_BYTES}"
            )
        form.check_size(offer.stream, offer.size)
        self.offer: Final = offer
        self._form = form
        self._packed = np.empty(offer.size, np.uint8)
        self._bytes = self._packed.data
        self._checked = 0
        self._running = Poly1305(CHECKED_BY)
        self._checksum = b""  # of all of it, once it is whole
        self.received = 0

    @property
    def whole(self) -> bool:
        """Every byte is here."""
        return self.received == self.offer.size

    def accept(self, piece: Piece) -> None:
        """Take the bytes of a piece that are new; what is here already is ignored."""
        if piece.total != self.offer.size:
            raise BadVector(f"{piece.stream}: a piece of {piece.total} bytes, {self.offer.size} were offered")
        if piece.offset > self.received:
            raise BadVector(f"{piece.stream}: a piece at {piece.offset}, needed {self.received}")
        fresh = piece.payload[self.received - piece.offset :]
        if fresh:
            end = self.received + len(fresh)
            self._bytes[self.received : end] = fresh
            self._running.update(fresh)
            self.received = end
            self._check_numbers()
            if self.whole:
                self._checksum = self._running.finalize()

    def finish(self) -> Numbers:
        """Return the vector once it is whole and is what was offered."""
        if self._checksum != self.offer.digest:
            raise BadVector(f"{self.offer.stream}: the checksum of what arrived is not the one announced")
        if self._form.kind == NUMBER:  # they were checked as they came
            return self._packed.view(NUMBER)
        return self._form.unpacked(self._packed, self.offer.stream)

    def _check_numbers(self) -> None:
        if self._form.kind == NUMBER:
            end = self.received // NUMBER.itemsize
            check_finite(self._packed.view(NUMBER)[self._checked : end], self.offer.stream)
            self._checked = end


def check_finite(numbers: Vector, stream: StreamId) -> None:
    """Raise BadVector unless all numbers are finite."""
    if not np.isfinite(numbers).all():
        raise BadVector(f"{stream}: saw NaN or Inf, needed finite numbers")


def offer_of(stream: StreamId, vector: Packed, *, signed: bool = False) -> Offer:
    """Return what announces a vector; one that is signed stands for every byte of it."""
    return Offer(stream, vector.nbytes, digest_of(vector) if signed else checksum_of(vector))
