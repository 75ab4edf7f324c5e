"""The frames of a session; a message is one of them, or a batch of several.

A frame is a piece of a vector (a fixed header, then the bytes) or a line: JSON of `[sequence, kind, fields]`.
Kinds are the events and commands of fedgc.messages and the link's own lines below. The sender keeps lines
with a sequence above 0 until they are acknowledged, and sends them again on the next stream (channel.py).
Lines with sequence 0 concern one stream only.

`now` and `client` are not sent: the receiver fills in its own clock and the session's proven identity, so a
client cannot speak for another. `decode` raises BadMessage, and no other error, for invalid input.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, get_args

from fedgc.errors import BadMessage
from fedgc.links import typed_json as typed
from fedgc.messages import (
    WIRE_VERSION,
    Closing,
    Failed,
    Fetched,
    Joined,
    Leaving,
    Masking,
    ModelEvent,
    Progress,
    Report,
    ToClient,
)

FRAME_LIMIT: Final = 8 * 2**20  # bytes of a message: a longer one is refused by its announced length
LINE_LIMIT: Final = 1 << 20  # of a line: a hello that names 20,000 chunks
HELLO_LIMIT: Final = 65_536
BATCH_BYTES: Final = 256 * 1024  # pieces join a message up to this length: no line waits behind a long one
BATCH_FRAMES: Final = 1024  # of one message: a peer must not make many objects of few bytes
STAMPED: Final = frozenset({"now", "client"})

CHECKSUM_BYTES: Final = 16
DIGEST_BYTES: Final = 32

_HEADER: Final = struct.Struct("<cBQIQQ")  # tag, model or codeword, version or round, attempt, offset, total
_PIECE: Final = b"P"
_LINE: Final = b"L"
_BATCH: Final = b"B"
_LENGTH: Final = struct.Struct("<I")  # of a frame in a batch
_SOURCES: Final = ("model", "codeword")

Data = bytes | memoryview  # that has come
Parts = tuple[bytes | memoryview, ...]  # that go one after the other


@dataclass(frozen=True, slots=True)
class StreamId:
    """The name of a vector: the model of a version, or a client's codeword of a round and attempt."""

    source: Literal["model", "codeword"]
    number: int
    attempt: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.number < 2**63 and 0 <= self.attempt < 2**31):
            raise BadMessage(f"{self!r}: needed a number and an attempt of 0 or more")

    def __str__(self) -> str:
        """Return the name in words.

        >>> print(StreamId("model", 3), StreamId("codeword", 4), sep=", ")
        model 3, the upload of round 4
        """
        return f"model {self.number}" if self.source == "model" else f"the upload of round {self.number}"


@dataclass(frozen=True, slots=True)
class Piece:
    """`total` is the size of the whole vector; this piece starts at `offset`."""

    stream: StreamId
    offset: int
    total: int
    payload: memoryview

    def __post_init__(self) -> None:
        if not 0 <= self.offset < self.offset + len(self.payload) <= self.total:
            raise BadMessage(
                f"{self.stream}: saw {len(self.payload)} bytes at {self.offset} of {self.total}, "
                "needed at least one, inside the vector"
            )


# ---- the opening of a stream


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a client needs to open its session; sent inside a Flower message.

    `certificate` is the listener's own, which every signed hello names. Where a proxy ends the client's TLS,
    the certificate at `address` must be signed by `authority` for the name in that address.
    """

    address: str
    certificate: bytes
    token: bytes = field(repr=False)
    run: str
    authority: bytes = b""  # empty: no proxy, the client sees the listener's own certificate


@dataclass(frozen=True, slots=True)
class Challenge:
    """Server, first line of a stream: a nonce to sign."""

    version: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Position:
    """How many bytes of a vector have arrived."""

    stream: StreamId
    offset: int


@dataclass(frozen=True, slots=True)
class Hello:
    """Client: its identity, its credential (a one-time token, later a ticket) and what it has received.

    `name` is for display and proves nothing.
    """

    version: int
    run: str
    credential: bytes = field(repr=False)
    key: bytes
    signature: bytes
    name: str
    heard: int
    positions: tuple[Position, ...] = ()


@dataclass(frozen=True, slots=True)
class Welcome:
    """Server: the resume ticket, the lease, and what it has received."""

    ticket: bytes = field(repr=False)
    lease_s: float
    heard: int
    positions: tuple[Position, ...] = ()


@dataclass(frozen=True, slots=True)
class Denied:
    """Server: this client is not admitted and must not retry."""

    reason: str


# ---- while it is open


@dataclass(frozen=True, slots=True)
class Heard:
    """All lines up to this sequence have arrived."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Ack:
    """All bytes of this vector before `offset` have arrived."""

    stream: StreamId
    offset: int


@dataclass(frozen=True, slots=True)
class Offer:
    """A vector is ready: the client asks for an upload slot, or the server announces a model.

    In a session the bytes end with the checksum of those before. In a packet, which is signed, `digest` is
    the SHA-256 of the bytes.
    """

    stream: StreamId
    size: int
    digest: bytes = b""

    def __post_init__(self) -> None:
        if not (self.size > 0 and len(self.digest) in (0, DIGEST_BYTES)):
            raise BadMessage(f"{self!r}: needed at least one byte, and a digest of {DIGEST_BYTES} or none")


@dataclass(frozen=True, slots=True)
class Grant:
    """Server: send the vector now, from this byte."""

    stream: StreamId
    offset: int


@dataclass(frozen=True, slots=True)
class Unwanted:
    """Server: send no more of this vector."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Ping:
    """Keeps the session alive."""


@dataclass(frozen=True, slots=True)
class Bye:
    """The session ends deliberately."""

    reason: str
    complete: bool = False  # server: the run has reached its end


Line = Challenge | Hello | Welcome | Denied | Heard | Ack | Offer | Grant | Unwanted | Ping | Bye
EventFromClient = Joined | Leaving | Closing | Fetched | Failed | Progress | Report | ModelEvent | Masking
FROM_CLIENT: Final = {
    kind.__name__: kind for kind in (Heard, Ack, Offer, Ping, Bye, *get_args(EventFromClient))
}
FROM_SERVER: Final = {
    kind.__name__: kind
    for kind in (
        Challenge,
        Welcome,
        Denied,
        Heard,
        Ack,
        Offer,
        Grant,
        Unwanted,
        Ping,
        Bye,
        *get_args(ToClient),
    )
}


class Numbered(NamedTuple):
    """A line and its sequence (0: not kept)."""

    sequence: int
    value: Any


def encode(value: object, sequence: int = 0) -> bytes:
    """Return the frame of a line, event or command."""
    fields = typed.write(value, STAMPED)
    frame = _LINE + typed.dumps([sequence, type(value).__name__, fields])
    if len(frame) > LINE_LIMIT:
        raise BadMessage(f"{type(value).__name__}: saw {len(frame)} bytes, needed at most {LINE_LIMIT}")
    return frame


def encode_piece(piece: Piece) -> Parts:
    """Return the frame of a piece: its header, and the vector's bytes where they are."""
    stream = piece.stream
    header = _HEADER.pack(
        _PIECE,
        _SOURCES.index(stream.source),
        stream.number,
        stream.attempt,
        piece.offset,
        piece.total,
    )
    return header, piece.payload


def decode(frame: Data, kinds: dict[str, type], *, now: float, client: str) -> Numbered | Piece:
    """Return the content of `frame`, one of `kinds` or a piece, or raise BadMessage."""
    if not isinstance(frame, Data) or not 0 < len(frame) <= FRAME_LIMIT:
        raise BadMessage(f"a frame of {len(frame)} bytes: needed 1 to {FRAME_LIMIT}")
    if frame[:1] == _PIECE:
        return _decode_piece(frame)
    if len(frame) > LINE_LIMIT:  # parsing text takes far longer than sending it
        raise BadMessage(f"a line of {len(frame)} bytes: needed at most {LINE_LIMIT}")
    if frame[:1] != _LINE:
        raise BadMessage(f"a frame that begins with {bytes(frame[:1])!r}: needed a line or a piece")
    line = typed.loads(bytes(frame[1:]))
    if not (isinstance(line, list) and len(line) == 3 and isinstance(line[1], str) and line[1] in kinds):
        raise BadMessage("saw no such line, needed a line of a known kind")
    if type(line[0]) is not int or not 0 <= line[0] < 2**63:
        raise BadMessage(f"saw the sequence {typed.short(line[0])}, needed a number of 0 or more")
    return Numbered(line[0], typed.read(kinds[line[1]], line[2], {"now": now, "client": client}))


def size_of(parts: Parts) -> int:
    """Return how many bytes a frame or message has."""
    return sum(map(len, parts))


def join(frames: Sequence[Parts]) -> Parts:
    """Return one message of these frames: a message costs both ends more than a short frame.

    >>> join([(b"L[]",)]), split(*join([(b"L[]",), (b"Lx",)]))
    ((b'L[]',), (b'L[]', b'Lx'))
    """
    if len(frames) == 1:
        return frames[0]
    batch = [_BATCH, *(part for frame in frames for part in (_LENGTH.pack(size_of(frame)), *frame))]
    return (b"".join(batch),)


def split(message: Data) -> tuple[Data, ...]:
    """Return the frames of a message, or raise BadMessage."""
    if message[:1] != _BATCH:
        return (message,)
    frames, at = list[Data](), 1
    while at < len(message):
        start = at + _LENGTH.size
        size = _LENGTH.unpack_from(message, at)[0] if start <= len(message) else 0
        at = start + size
        if not size or at > len(message):
            raise BadMessage(f"a batch of {len(message)} bytes: saw a frame of {size}, needed one that fits")
        if len(frames) == BATCH_FRAMES:
            raise BadMessage(f"a batch: saw more than {BATCH_FRAMES} frames, needed at most as many")
        frames.append(bytes(message[start:at]))
    return tuple(frames)


def is_piece(frame: Data) -> bool:
    """Whether a frame is a piece of a vector, by its first byte."""
    return frame[:1] == _PIECE


def decode_hello(frame: Data) -> Hello:
    """Return the hello in `frame`, or raise BadMessage, which does not repeat its token.

    A hello comes from an unauthenticated peer, perhaps of another version: check its length, then its
    version, before the rest.
    """
    if len(frame) > HELLO_LIMIT:
        raise BadMessage(f"hello: saw {len(frame)} bytes, needed at most {HELLO_LIMIT}")
    if frame[:1] == _LINE:
        match typed.loads(bytes(frame[1:])):
            case [_, "Hello", [version, *_]] if version != WIRE_VERSION:
                seen = version if type(version) is int else type(version).__name__
                raise BadMessage(f"hello: saw wire version {seen}, needed {WIRE_VERSION}")
    line = decode(frame, {Hello.__name__: Hello}, now=0.0, client="")
    if not isinstance(line, Numbered) or not isinstance(line.value, Hello):
        raise BadMessage("saw a piece, needed a hello")
    return line.value


def _decode_piece(frame: Data) -> Piece:
    if len(frame) <= _HEADER.size:
        raise BadMessage(f"a piece of {len(frame)} bytes: needed more than its header")
    _, source, number, attempt, offset, total = _HEADER.unpack_from(frame)
    if source >= len(_SOURCES):
        raise BadMessage(f"a piece of source {source}: needed 0 or 1")
    stream = StreamId("model" if source == 0 else "codeword", number, attempt)
    return Piece(stream, offset, total, memoryview(frame)[_HEADER.size :])
