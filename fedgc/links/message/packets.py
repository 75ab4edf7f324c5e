"""The Flower messages of the message link: a packet to a client, and its answer.

Their lines are the frames of a session (frames.py), so both links use the same messages and the same checks.
Vectors travel as Flower's own ArrayRecord, where its mods and its accounting see them. A packet is
self-contained: its client has no memory but its cache, so every packet that asks for anything begins with its
work.

An answer is signed by the client's key over the packet's nonce, its lines and, by the digest in each offer,
its codewords: Flower authenticates the node that answered, the key authenticates the client.
"""

import hashlib
import io
import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, get_args

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedgc.errors import BadMessage, BadVector
from fedgc.links import frames as wire
from fedgc.links import identity
from fedgc.links.frames import EventFromClient, Numbered, Offer, StreamId
from fedgc.links.identity import Identity
from fedgc.links.pieces import NUMBER, Form, Numbers, Packed, Vector, digest_of
from fedgc.links.quotas import LEAST_BURST_BYTES
from fedgc.messages import WIRE_VERSION, Survivors, ToClient, Unmask, Work

ACTION: Final = "packet"
TYPE: Final = f"train.{ACTION}"
_RECORD: Final = "packet"
_MODEL: Final = "model"
_CODEWORDS: Final = "codewords"
_NUMPY_HEADER: Final = 1024  # bytes that numpy's format adds to the numbers, at most
_NUMPY: Final = ("numpy.ndarray", (1, 0))  # Flower's name of that format, and its version for plain numbers
_PURPOSE: Final = b"messages"
LONGEST_VERSION: Final = 18  # digits of a model's version
MOST_LINES: Final = 50_000  # of an answer: more than two for each chunk that a client may announce


@dataclass(frozen=True, slots=True)
class Shelved:
    """Client: a common model in its cache."""

    version: int
    digest: str


_TO_CLIENT: Final = MappingProxyType({kind.__name__: kind for kind in get_args(ToClient)})
AnswerLine = EventFromClient | Offer | Shelved
_FROM_CLIENT: Final = MappingProxyType({kind.__name__: kind for kind in get_args(AnswerLine)})


@dataclass(frozen=True, slots=True, eq=False)
class Packet:
    """What one message asks of a client; without commands it asks for the client's identity and holdings."""

    run: str
    nonce: bytes
    lease_s: float
    commands: tuple[ToClient, ...] = ()
    model: tuple[int, Vector] | None = None

    @property
    def ends_exchange(self) -> bool:
        """Whether it asks for what ends a masked exchange, and for neither training nor an update."""
        ends = [each for each in self.commands if isinstance(each, Survivors | Unmask)]
        rest = [each for each in self.commands if not isinstance(each, Survivors | Unmask)]
        trains_nothing = all(isinstance(each, Work) and not each.order for each in rest)
        return bool(ends) and trains_nothing and self.model is None


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The answer of a client to one packet."""

    client: str
    key: bytes
    name: str
    lines: tuple[AnswerLine, ...]
    codewords: "MappingProxyType[StreamId, Array]"
    control_bytes: int
    up_bytes: int  # size of all vectors that came with it, used or not


# ---- packets


def introduction(run: str, nonce: bytes) -> Packet:
    """Return the packet that asks a client for its identity and holdings."""
    return Packet(run, nonce, 0.0)


def write_packet(packet: Packet) -> RecordDict:
    """Return the content of a packet's Flower message."""
    about = ConfigRecord(
        {
            "version": WIRE_VERSION,
            "run": packet.run,
            "nonce": packet.nonce,
            "lease_s": packet.lease_s,
            "lines": [wire.encode(command) for command in packet.commands],
        }
    )
    content = RecordDict({_RECORD: about})
    if packet.model is not None:
        version, vector = packet.model
        content[_MODEL] = ArrayRecord({str(version): Array(vector)})
    return content


def read_packet(content: RecordDict, client: str) -> Packet:
    """Return the packet in a message, or raise BadMessage."""
    about: Any = _config(content)
    if about.get("version") != WIRE_VERSION:
        raise BadMessage(f"packet: saw wire version {about.get('version')}, needed {WIRE_VERSION}")
    commands = tuple(_decoded(frame, _TO_CLIENT, 0.0, client) for frame in about["lines"])
    run, nonce, lease_s = (
        _field(about, *each) for each in (("run", str), ("nonce", bytes), ("lease_s", float))
    )
    if not 0 <= lease_s < math.inf:
        raise BadMessage(f"packet: saw lease_s={lease_s}, needed seconds, 0 or more")
    return Packet(run, nonce, lease_s, commands, _model_in(content))


def run_in(content: RecordDict) -> str:
    """Return the run of the packet in a message, or raise BadMessage."""
    return str(_field(_config(content), "run", str))


def _field(about: Any, name: str, kind: type) -> Any:  # noqa: ANN401  Flower's record of plain values
    value = about.get(name)
    if type(value) is not kind:
        raise BadMessage(f"packet: saw {type(value).__name__} as {name}, needed {kind.__name__}")
    return value


def _model_in(content: RecordDict) -> tuple[int, Vector] | None:
    """Return the model in a packet and its version, or raise BadMessage."""
    record = content.array_records.get(_MODEL)
    if record is None:
        return None
    named = [(name, array) for name, array in record.items() if name.isascii() and name.isdecimal()]
    if len(record) != 1 or not named or len(named[0][0]) > LONGEST_VERSION:
        raise BadMessage(f"packet: saw {len(record)} arrays as model, needed one, named by its version")
    ((name, array),) = named
    try:
        return int(name), _numbers("model", array, NUMBER)
    except BadVector as error:
        raise BadMessage(f"packet: {error}") from error


# ---- answers


def write_answer(
    packet: Packet, who: Identity, name: str, lines: list[AnswerLine], codewords: dict[StreamId, Packed]
) -> RecordDict:
    """Return the content of a client's answer."""
    frames = [wire.encode(line) for line in lines]
    about = ConfigRecord(
        {
            "name": name,
            "key": who.public,
            "signature": who.sign(_signed(packet.run, packet.nonce, frames)),
            "lines": frames,
        }
    )
    content = RecordDict({_RECORD: about})
    if codewords:
        content[_CODEWORDS] = ArrayRecord({_key(stream): Array(each) for stream, each in codewords.items()})
    return content


def read_answer(content: RecordDict, packet: Packet, now: float) -> Answer:
    """Return a client's answer to this packet, or raise a Refused."""
    about: Any = _config(content)
    try:
        frames = [_bytes(frame) for frame in about["lines"]]
        key, signature, name = _bytes(about["key"]), _bytes(about["signature"]), str(about["name"])
    except (KeyError, TypeError) as error:
        raise BadMessage(f"answer: needed lines, a key, a signature and a name ({error})") from error
    _check_amount(frames)
    client = identity.check(key, signature, _signed(packet.run, packet.nonce, frames))
    lines = tuple(_decoded(frame, _FROM_CLIENT, now, client) for frame in frames)
    arrays: Any = content.array_records.get(_CODEWORDS, {})
    codewords = {
        line.stream: arrays[_key(line.stream)]
        for line in lines
        if isinstance(line, Offer) and _key(line.stream) in arrays
    }
    up_bytes = sum(len(each.data) for record in content.array_records.values() for each in record.values())
    return Answer(client, key, name, lines, MappingProxyType(codewords), sum(map(len, frames)), up_bytes)


def _check_amount(frames: list[bytes]) -> None:
    """Raise BadMessage for more lines than a client may send at once: each takes time to read."""
    size = sum(map(len, frames))
    if len(frames) > MOST_LINES or size > LEAST_BURST_BYTES:
        raise BadMessage(
            f"answer: saw {len(frames)} lines of {size} bytes in all, needed at most {MOST_LINES} lines "
            f"of {LEAST_BURST_BYTES:.0f} bytes"
        )


def codeword(offer: Offer, array: Array, form: Form) -> Numbers:
    """Return the offered codeword, checked, or raise BadVector."""
    form.check_size(offer.stream, offer.size)
    if len(array.data) > offer.size + _NUMPY_HEADER:
        raise BadVector(f"{offer.stream}: saw {len(array.data)} bytes, needed {offer.size}")
    came = _numbers(offer.stream, array, form.kind, offer.size // form.kind.itemsize)
    vector = form.unpacked(came.view(np.uint8), offer.stream)
    if digest_of(came) != offer.digest:
        raise BadVector(f"{offer.stream}: the digest of what arrived is not the one announced")
    return vector


def _config(content: RecordDict) -> Any:  # noqa: ANN401  Flower's record of plain values
    about = content.config_records.get(_RECORD)
    if about is None or not isinstance(about.get("lines"), list):
        raise BadMessage(f"a message of type {TYPE}: needed a record of lines")
    return about


def _bytes(value: object) -> bytes:
    """Return `value` if it is bytes: `bytes(n)` of a number would make n zeros."""
    if not isinstance(value, bytes):
        raise TypeError(f"saw {type(value).__name__} for bytes")
    return value


def _decoded(frame: object, kinds: "MappingProxyType[str, type]", now: float, client: str) -> Any:  # noqa: ANN401  a line of any kind
    if not isinstance(frame, bytes):
        raise BadMessage(f"a line of {type(frame).__name__}: needed bytes")
    line = wire.decode(frame, dict(kinds), now=now, client=client)
    if not isinstance(line, Numbered):
        raise BadMessage("saw a piece of a vector among a packet's lines, needed lines")
    return line.value


def _numbers(
    what: object, array: Array, kind: "np.dtype[Any]", count: int | None = None
) -> "np.ndarray[Any, np.dtype[Any]]":
    """Return a view of `count` numbers of this kind in the record, without allocating.

    Flower's own reader accepts all that numpy can load, including archives and headers of any shape.
    """
    file = io.BytesIO(array.data)
    try:
        form = array.stype, np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=_NUMPY_HEADER)
    except Exception as error:  # a numpy header is Python text, and its reader raises any exception
        raise BadVector(f"{what}: needed an array of numpy ({type(error).__name__})") from error
    size = len(array.data) - file.tell()
    needed = (size // kind.itemsize if count is None else count,)
    if form != _NUMPY or dtype != kind or shape != needed:
        raise BadVector(f"{what}: saw {dtype} {shape} as {form}, needed {kind} {needed} as {_NUMPY}")
    if size != needed[0] * kind.itemsize:
        raise BadVector(f"{what}: saw {size} bytes behind the header of {shape}")
    return np.frombuffer(array.data, kind, needed[0], file.tell())


def _signed(run: str, nonce: bytes, frames: list[bytes]) -> bytes:
    digest = hashlib.sha256(b"".join(len(frame).to_bytes(8, "big") + frame for frame in frames)).digest()
    return identity.statement(WIRE_VERSION, run, nonce, digest, _PURPOSE)


def _key(stream: StreamId) -> str:
    return f"{stream.number}-{stream.attempt}"
