"""Vectors in pieces: acknowledged, idempotent, resumable from the first unacknowledged byte.

The sender keeps a window of unacknowledged pieces in flight, so that small lines do not wait behind a large
vector. The receiver takes bytes in order, ignores duplicates, and checks the size before it allocates, every
number when its bytes are complete, and a checksum at the end. Large vectors are received into files
(`scratch`).

The sender reads a vector piece by piece, so a vector that is computed from others never exists as a whole.
The checksum follows the vector's bytes. It detects a vector whose halves come from two different vectors
after a resume; TLS protects each stream. It is Poly1305 (Bernstein 2005) under a public key, which takes a
quarter of the time of SHA-256; it detects accidents, not attacks. The offers of a packet are signed and name
the SHA-256 of the whole vector instead.

Models travel as float32, codewords and updates in the round's `Form`: by a codec, or as words of a ring, for
which every value is valid.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.poly1305 import Poly1305
from numpy.typing import NDArray

from fedgc.codecs import EXACT, Codec, codec_of, make_codec, needed, rounding, sizes_of
from fedgc.config.link_settings import SHORT_BYTES
from fedgc.errors import BadMessage, BadVector
from fedgc.large_vectors import Readable, Scratch
from fedgc.links.frames import CHECKSUM_BYTES, Offer, Piece, StreamId
from fedgc.messages import LARGEST_AMOUNT
from fedgc.secagg.keystream import RING_TYPES

CHANGE: Final = 1  # the attempt of a model's stream that holds its change from the model before
WINDOW: Final = 8  # pieces in flight: 8 MiB at 1 MiB each, enough for 80 MB/s over 100 ms
NUMBER: Final = np.dtype("<f4")
SLICE: Final = 1 << 20  # bytes checked at a time
CHECKED_BY: Final = hashlib.sha256(b"fedgc: a vector in pieces").digest()  # a public key

Vector = np.ndarray[tuple[int], np.dtype[np.float32]]
Numbers = np.ndarray[Any, np.dtype[Any]]  # any array of floats
Packed = np.ndarray[Any, np.dtype[Any]]  # contiguous; its Form says what the bytes mean


@dataclass(frozen=True, slots=True)
class Form:
    """How many numbers a vector has and by which codec they travel; `ring` is the bits of a masked word.

    `mixed` is a codeword of coded work, whose norm is measured. The last `exact` numbers, those of buffers,
    travel in float32 whatever the codec.

    >>> Form(1000, "bf16").largest, Form(1000, ring=16).largest
    (2000, 2000)
    """

    numbers: int
    wire: str = EXACT
    ring: int = 0
    mixed: bool = False
    exact: int = 0

    @property
    def largest(self) -> int:
        """The largest size in bytes of the whole vector."""
        return self.numbers * self.ring // 8 if self.ring else self._codec.largest(self.numbers)

    @property
    def _codec(self) -> Codec:
        return codec_of(self.wire, self.exact)

    def check_size(self, stream: StreamId, size: int) -> None:
        """Raise BadVector unless a vector of this form can have this size."""
        masked = range(self.largest, self.largest + 1)
        sizes = masked if self.ring else sizes_of(self._codec, self.numbers)
        if size not in sizes:
            raise BadVector(
                f"{stream}: saw {size} bytes, needed {needed(sizes)} ({self.numbers} numbers as {self.wire})"
            )

    def norm(self, vector: Numbers) -> float:
        """Return the norm of a codeword, as far as an event can hold it; 0 for another vector.

        >>> Form(2, mixed=True).norm(np.array([3, 4], np.float32)), Form(2).norm(np.array([3, 4], np.float32))
        (5.0, 0.0)
        """
        if not self.mixed:
            return 0.0
        slices = (vector[first : first + SLICE] for first in range(0, vector.size, SLICE))
        squared = sum(float(np.square(each, dtype=np.float64).sum()) for each in slices)
        return min(math.sqrt(squared), LARGEST_AMOUNT)

    @property
    def kind(self) -> np.dtype[Any]:
        """The dtype of the packed vector in a record of arrays."""
        if self.ring:
            return RING_TYPES[self.ring]
        return NUMBER if self.wire == EXACT else np.dtype(np.uint8)

    def unpacked(self, data: NDArray[np.uint8], stream: StreamId) -> Numbers:
        """Return the numbers in these bytes, or raise BadVector where they are not finite."""
        if self.ring:
            return data.view(RING_TYPES[self.ring])
        try:
            vector = self._codec.decode(data, self.numbers)
        except Exception as error:  # a codec of another package reads bytes of another process
            raise BadVector(f"{stream}: codec {self.wire} cannot read it: {error}") from error
        if vector.shape != (self.numbers,) or vector.dtype != np.float32:
            seen = f"{vector.dtype} {vector.shape}"
            raise BadVector(f"{stream}: codec {self.wire} made {seen}, needed float32 ({self.numbers},)")
        check_finite(vector, stream)
        return vector


def digest_of(vector: Packed) -> bytes:
    """Return the SHA-256 of a vector's bytes."""
    return hashlib.sha256(vector.data.cast("B")).digest()


def packed(vector: Numbers) -> Vector:
    """Return `vector` as contiguous float32, without a copy where it is that already."""
    return np.ascontiguousarray(vector, NUMBER)


def shortened(vector: Readable, wire: str, stream: StreamId, client: str) -> Readable:
    """Return a vector encoded by this codec; one that is sent exactly is left as it is."""
    if wire == EXACT:
        return vector
    chance = rounding(stream.number, stream.attempt, client)
    return make_codec(wire).encode(packed(vector[:]), chance)


class Source:
    """The bytes that are sent of a vector, read piece by piece: its own, then their checksum.

    Several clients can be sent the same source.
    """

    def __init__(self, vector: Readable) -> None:
        self._vector = vector
        self._kind = NUMBER if vector.dtype.kind == "f" else vector.dtype
        self._body = vector.size * self._kind.itemsize
        self.size: Final = self._body + CHECKSUM_BYTES
        self._running = Poly1305(CHECKED_BY)
        self._summed = 0  # bytes in the running checksum
        self._checksum = b""

    def read(self, start: int, end: int) -> memoryview:
        """Return these bytes."""
        own = self._own(start, min(end, self._body))
        self._sum(own, start)
        if end <= self._body:
            return own
        rest = self._whole_checksum()[max(0, start - self._body) : end - self._body]
        return memoryview(b"".join((own, rest)))

    def _own(self, start: int, end: int) -> memoryview:
        if start >= end:
            return memoryview(b"")
        each = self._kind.itemsize
        first = start // each
        part = np.ascontiguousarray(self._vector[first : -(-end // each)], self._kind)
        return part.data.cast("B")[start - first * each : end - first * each]

    def _sum(self, own: memoryview, start: int) -> None:
        """Enter bytes into the checksum that are not in it yet, and those before them."""
        while self._summed < start and self._summed < self._body:  # a receiver continues a broken upload
            skipped = self._own(self._summed, min(start, self._body, self._summed + SLICE))
            self._running.update(skipped)
            self._summed += len(skipped)
        if fresh := own[self._summed - start :]:
            self._running.update(fresh)
            self._summed += len(fresh)

    def _whole_checksum(self) -> bytes:
        if not self._checksum:
            self._checksum = self._running.finalize()
        return self._checksum


class Outgoing:
    """A vector being sent; several can share one source."""

    def __init__(self, offer: Offer, source: Source, piece_bytes: int) -> None:
        self.offer: Final = offer
        self._source = source
        self._piece = piece_bytes
        self.sent = 0
        self._acknowledged = 0

    @property
    def next_size(self) -> int:
        """Bytes of the next piece."""
        return min(self._piece, self.offer.size - self.sent)

    @property
    def waits(self) -> bool:
        """Whether a piece can be sent: not all is sent, and the window is not full."""
        return self.sent < self.offer.size and self.sent - self._acknowledged < WINDOW * self._piece

    def next_piece(self) -> Piece | None:
        """Return the next piece, if one can be sent."""
        if not self.waits:
            return None
        start = self.sent
        self.sent = min(start + self._piece, self.offer.size)
        return Piece(self.offer.stream, start, self.offer.size, self._source.read(start, self.sent))

    def acknowledge(self, offset: int) -> None:
        """Note that all bytes before `offset` have arrived, also over an earlier stream."""
        if not 0 <= offset <= self.offer.size:
            raise BadMessage(f"{self.offer.stream}: byte {offset} of {self.offer.size} acknowledged")
        self._acknowledged = max(self._acknowledged, offset)
        self.sent = max(self.sent, offset)

    def resume(self, offset: int) -> None:
        """Continue at `offset`, on a new stream or after a grant."""
        if not 0 <= offset <= self.offer.size:
            raise BadMessage(
                f"{self.offer.stream}: saw a request to continue at {offset} of {self.offer.size}"
            )
        self.sent = self._acknowledged = offset


class Incoming:
    """A vector being received."""

    def __init__(self, offer: Offer, form: Form, scratch: Scratch) -> None:
        """Make room for the offered vector, which must have this form."""
        check_offer(offer, form)
        self.offer: Final = offer
        self._form = form
        self.size_bytes: Final = offer.size - CHECKSUM_BYTES  # of the vector
        self._packed = scratch.empty(self.size_bytes)
        self._bytes = self._packed.data
        self._announced = bytearray()  # the checksum that follows the vector
        self._checked = 0
        self._running = Poly1305(CHECKED_BY)
        self._checksum = b""  # of the whole vector, once complete
        self.received = 0

    @property
    def whole(self) -> bool:
        """Every byte has arrived."""
        return self.received == self.offer.size

    def accept(self, piece: Piece) -> None:
        """Take the new bytes of a piece; ignore those that arrived before."""
        if piece.total != self.offer.size:
            raise BadVector(f"{piece.stream}: a piece of {piece.total} bytes, {self.offer.size} were offered")
        if piece.offset > self.received:
            raise BadVector(f"{piece.stream}: a piece at {piece.offset}, needed {self.received}")
        fresh = piece.payload[self.received - piece.offset :]
        if fresh:
            own = fresh[: max(0, self.size_bytes - self.received)]
            self._bytes[self.received : self.received + len(own)] = own
            self._running.update(own)
            self._announced += fresh[len(own) :]
            self.received += len(fresh)
            self._check_numbers()
            if self.whole:
                self._checksum = self._running.finalize()

    def verified(self) -> Packed:
        """Return the vector as it travelled, once it is complete and matches its offer."""
        if not self.whole or self._checksum != self._announced:
            raise BadVector(f"{self.offer.stream}: the checksum of what arrived is not the one announced")
        return self._packed.view(NUMBER) if self._form.kind == NUMBER else self._packed

    def finish(self) -> Numbers:
        """Return the numbers of the vector once it is complete and matches its offer."""
        vector = self.verified()
        if self._form.kind == NUMBER:  # floats were checked as they came
            return vector
        return self._form.unpacked(self._packed, self.offer.stream)

    def _check_numbers(self) -> None:
        if self._form.kind == NUMBER:
            end = min(self.received, self.size_bytes) // NUMBER.itemsize
            check_finite(self._packed.view(NUMBER)[self._checked : end], self.offer.stream)
            self._checked = end


def check_finite(numbers: Vector, stream: StreamId) -> None:
    """Raise BadVector unless all numbers are finite."""
    if not np.isfinite(numbers).all():
        raise BadVector(f"{stream}: saw NaN or Inf, needed finite numbers")


def check_offer(offer: Offer, form: Form) -> None:
    """Raise BadVector unless an offer over a stream is of a vector of this form."""
    if offer.digest:
        raise BadVector(
            f"{offer.stream}: saw a digest of {len(offer.digest)} bytes, needed none in a session"
        )
    form.check_size(offer.stream, offer.size - CHECKSUM_BYTES)


def is_short(size: int) -> bool:
    """Whether a codeword that is offered with so many bytes, its checksum included, comes without a grant."""
    return size <= SHORT_BYTES + CHECKSUM_BYTES


def offer_of(stream: StreamId, source: Source) -> Offer:
    """Return the offer of a vector over a stream, whose last bytes are its checksum."""
    return Offer(stream, source.size)


def signed_offer_of(stream: StreamId, vector: Packed) -> Offer:
    """Return the offer of a vector in a packet, with the digest of every byte."""
    return Offer(stream, vector.nbytes, digest_of(vector))
