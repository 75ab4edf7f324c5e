"""Test the wire format: messages are decoded equal, and bad bytes raise only BadMessage."""

import bisect
import contextlib
import json
import math
import types
import typing
from dataclasses import fields, is_dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadMessage
from fedgc.links import frames as wire
from fedgc.links.frames import Hello, Invitation, Numbered, Piece, StreamId, Welcome
from fedgc.messages import (
    LARGEST_COUNT,
    LARGEST_PACKET,
    SKETCH_NUMBERS,
    WIRE_VERSION,
    Announced,
    Close,
    Continue,
    Held,
    Joined,
    Layout,
    Mix,
    Progress,
    Report,
    Reveal,
    Skip,
    TensorSpec,
    Work,
)
from fedgc.run.machine import CHECK_BYTES

NOW = 12.5
CLIENT = "0123456789abcdef"
KINDS = sorted({**wire.FROM_CLIENT, **wire.FROM_SERVER}.values(), key=lambda kind: kind.__name__)
floats = st.floats(allow_nan=False, allow_infinity=False)


def a_value(hint: object) -> st.SearchStrategy:
    """Return values of a type hint; what a class refuses is filtered out by `of_kind`."""
    plain = {
        int: st.integers(0, 2**40),
        float: st.floats(0, 1e300),
        str: st.text(min_size=1, max_size=8),
        bytes: st.binary(max_size=40),
        bool: st.booleans(),
        type(None): st.none(),
    }
    if hint in plain:
        return plain[hint]
    if is_dataclass(hint):
        return of_kind(hint)
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return st.sampled_from(inner)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return st.one_of(*map(a_value, inner))
    if inner[1:] == (...,):
        return st.lists(a_value(inner[0]), max_size=4).map(tuple)
    return st.tuples(*map(a_value, inner))


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    chunks = draw(st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True))
    blocks = draw(st.integers(1, 3))
    row = st.lists(floats, min_size=blocks, max_size=blocks).map(tuple)
    return Mix(tuple(chunks), tuple(draw(row) for _ in chunks))


def of_kind(kind: type) -> st.SearchStrategy:
    """Return values of a dataclass; its own checks say which of the drawn ones exist."""
    if kind is Mix:
        return mixes()
    hints = typing.get_type_hints(kind)
    special = {
        ("sketch",): st.sampled_from([(), tuple(x / 3 for x in range(SKETCH_NUMBERS))]),
        ("digest",): st.binary(min_size=32, max_size=32),
        ("descriptor",): st.binary(min_size=32, max_size=32),
        ("signature",): st.binary(min_size=64, max_size=64),
        ("client",): st.just(CLIENT),
        ("now",): st.just(NOW),
        ("attempt",): st.integers(1, 5),
        ("matrix",): st.none(),
    }
    exchange = {each.name: special.get((each.name,), a_value(hints[each.name])) for each in fields(kind)}

    def make(values: dict[str, object]) -> object:
        try:
            return kind(**values)
        except BadMessage:
            return None

    return st.fixed_dictionaries(exchange).map(make).filter(lambda value: value is not None)


commands_that_must_fit = {
    Announced: Announced(NOW, CLIENT, Layout((TensorSpec("ü", "bfloat16", (2, 0)),), 1)),
    Work: Work(CLIENT, 3, 2, 4, (1, 0), ((0, "a"), (1, "ü")), 7, 0.1, True),
    Reveal: Reveal(CLIENT, 3, 1, "coded", Mix((5, 1), ((1e-300, 3.0), (0.0, 1 / 3)))),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data(), sequence=st.integers(0, 2**62))
def test_every_line_event_and_command_is_decoded_equal(
    kind: type, data: st.DataObject, sequence: int
) -> None:
    fixed = commands_that_must_fit.get(kind)
    value = data.draw(st.just(fixed) if fixed else of_kind(kind))
    back = wire.decode(wire.encode(value, sequence), {kind.__name__: kind}, now=NOW, client=CLIENT)
    assert back == Numbered(sequence, value)


@pytest.mark.parametrize("kind", [each for each in KINDS if "packet" in typing.get_type_hints(each)])
def test_largest_masked_packet_fits_line(kind: type) -> None:
    given = {"now": NOW, "client": "f" * 64, "round": LARGEST_COUNT, "packet": bytes(LARGEST_PACKET)}
    value = kind(**{each.name: given[each.name] for each in fields(kind)})
    assert len(wire.encode(value, 2**62)) <= wire.LINE_LIMIT


def test_receiver_sets_time_and_client() -> None:
    said = Progress(99.0, "somebody else", 1, 2, 3, 0.5, 8, 1.0, 0.25)
    heard = wire.decode(wire.encode(said), wire.FROM_CLIENT, now=NOW, client=CLIENT)
    assert heard == Numbered(0, replace(said, now=NOW, client=CLIENT))


@given(
    payload=st.binary(min_size=1, max_size=300),
    offset=st.integers(0, 2**40),
    after=st.integers(0, 2**40),
    source=st.sampled_from(["model", "codeword"]),
    number=st.integers(0, 2**62),
    attempt=st.integers(0, 2**31 - 1),
)
def test_piece_is_decoded_equal(
    payload: bytes, offset: int, after: int, source: str, number: int, attempt: int
) -> None:
    total = offset + len(payload) + after
    piece = Piece(StreamId(source, number, attempt), offset, total, memoryview(payload))
    assert wire.decode(b"".join(wire.encode_piece(piece)), {}, now=NOW, client=CLIENT) == piece


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda b: b"P" + b)))
def test_random_bytes_are_piece_or_bad_message(frame: bytes) -> None:
    with contextlib.suppress(BadMessage):
        assert isinstance(wire.decode(frame, wire.FROM_CLIENT, now=NOW, client=CLIENT), Piece)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(
    kind=st.sampled_from([kind.__name__ for kind in KINDS]) | json_values,
    sequence=st.integers(-2, 2**70) | json_values,
    values=json_values,
)
def test_random_json_is_line_or_bad_message(kind: object, sequence: object, values: object) -> None:
    frame = b"L" + json.dumps([sequence, kind, values]).encode()
    everything = {**wire.FROM_CLIENT, **wire.FROM_SERVER}
    with contextlib.suppress(BadMessage):
        assert isinstance(wire.decode(frame, everything, now=NOW, client=CLIENT), Numbered)


@given(data=st.data())
def test_corrupt_line_is_valid_or_rejected(
    data: st.DataObject,
) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    fixed = commands_that_must_fit.get(kind)
    value = data.draw(st.just(fixed) if fixed else of_kind(kind))
    line = json.loads(wire.encode(value)[1:])
    if line[2]:
        line[2][data.draw(st.integers(0, len(line[2]) - 1))] = data.draw(json_values)
    with contextlib.suppress(BadMessage):
        wire.decode(b"L" + json.dumps(line).encode(), {kind.__name__: kind}, now=NOW, client=CLIENT)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"", "0 bytes"),
        (b"X", "needed a line or a piece"),
        (b"P123", "needed more than its header"),
        (b"L{", "needed JSON"),
        (b"L" + b"[" * 100_000, "needed JSON"),
        (b"L[0,5,[]]", "known kind"),
        (b'L[0,"Tick",[]]', "known kind"),
        (b'L[0,"Work",[]]', "known kind"),
        (b'L[true,"Ping",[]]', "sequence"),
        (b'L[-1,"Ping",[]]', "sequence"),
        (b'L[0,"Ping",[1]]', "list of 0 fields"),
        (b'L[0,"Bye",[]]', "list of 2 fields"),
        (b'L[0,"Bye",[7,false]]', "needed text"),
        (b'L[0,"Bye",["\\ud800",false]]', "needed JSON"),
        (b'L[0,"Heard",[1.0]]', "needed int"),
        (b'L[0,"Heard",[true]]', "needed int"),
        (b'L[0,"Failed",[1,"why",[NaN]]]', "needed JSON"),
        (b'L[0,"Report",[1,1,1,1.0,1e999,0.0]]', "needed JSON"),
    ],
    ids=str,
)
def test_invalid_field_is_named(frame: bytes, says: str) -> None:
    with pytest.raises(BadMessage, match=says):
        wire.decode(frame, wire.FROM_CLIENT, now=NOW, client=CLIENT)


def test_client_cannot_send_commands_or_server_events() -> None:
    with pytest.raises(BadMessage, match="known kind"):
        wire.decode(wire.encode(Skip("a", 1, 2)), wire.FROM_CLIENT, now=NOW, client=CLIENT)
    with pytest.raises(BadMessage, match="known kind"):
        wire.decode(
            wire.encode(Progress(0.0, "a", 1, 2, 3, 0.5, 8, 1.0, 0.25)),
            wire.FROM_SERVER,
            now=NOW,
            client=CLIENT,
        )


def test_oversized_frame_is_neither_made_nor_read() -> None:
    with pytest.raises(BadMessage, match="needed at most"):
        wire.encode(wire.Bye("x" * wire.FRAME_LIMIT))
    with pytest.raises(BadMessage, match=r"needed 1 to"):
        wire.decode(b"L" * (wire.FRAME_LIMIT + 1), wire.FROM_CLIENT, now=NOW, client=CLIENT)


def test_non_finite_number_is_never_sent() -> None:
    close = Close("a", 1, "synced", True)
    assert wire.encode(close)
    with pytest.raises(BadMessage, match="saw nan, needed a finite number"):
        wire.encode(wire.Welcome(b"t", math.nan, 0))


SECRET = b"0123456789abcdef0123456789abcdef"
HELLO = Hello(WIRE_VERSION, "run", SECRET, b"k" * 32, b"s" * 64, "me", 0)


def test_hello_is_decoded_equal() -> None:
    assert wire.decode_hello(wire.encode(HELLO)) == HELLO


@pytest.mark.parametrize(
    "rest", [[], ["a", 1, None, {}], [{"deep": [[[1]]]}] * 20, json.loads(wire.encode(HELLO)[1:])[2][1:]]
)
def test_hello_of_other_version_is_reported_despite_other_errors(rest: list[object]) -> None:
    frame = b"L" + json.dumps([0, "Hello", [WIRE_VERSION + 1, *rest]]).encode()
    with pytest.raises(BadMessage, match=f"saw wire version {WIRE_VERSION + 1}, needed {WIRE_VERSION}"):
        wire.decode_hello(frame)


SPOILT = json.loads(wire.encode(HELLO)[1:])[2]


@pytest.mark.parametrize(
    "line",
    [
        [0, "Hello", SPOILT[:-1]],
        [0, "Hello", [SPOILT[2], *SPOILT]],
        [0, "Hello", [*SPOILT[:2], SPOILT[2] + "!", *SPOILT[3:]]],
        [0, "Hello", [*SPOILT[:2], [SPOILT[2]], *SPOILT[3:]]],
        [0, "Hello", [*SPOILT[:6], SPOILT[2], *SPOILT[7:]]],
        [0, "Hullo", SPOILT],
        [0, SPOILT[2], SPOILT],
        [SPOILT[2], "Hello", SPOILT],
        SPOILT,
    ],
)
def test_invalid_hello_is_refused_without_its_token(line: list[object]) -> None:
    with pytest.raises(BadMessage) as refused:
        wire.decode_hello(b"L" + json.dumps(line).encode())
    assert SPOILT[2][:8] not in str(refused.value)
    assert repr(SECRET)[2:10] not in str(refused.value)


def test_secrets_are_hidden_in_repr() -> None:
    for holder in (HELLO, Welcome(SECRET, 1.0, 0), Invitation("a:1", b"", SECRET, "run")):
        assert repr(SECRET)[2:10] not in repr(holder)


def test_oversized_hello_is_not_read() -> None:
    with pytest.raises(BadMessage, match="needed at most"):
        wire.decode_hello(b"L" + b"[" * wire.HELLO_LIMIT)


def test_gate_check_size_matches_estimate() -> None:
    report = Report(
        1.0, CLIENT, 1_000, 16_000, 100_000, 123.456789012345, 0.123456789012345, 2.123456789012345
    )
    said = [report, Close(CLIENT, 1_000, "skipped", frees=False)]
    said.append(Continue(CLIENT, 1_001, 16_016, tuple(range(16)), 600.123456789))
    looks = sum(len(wire.encode(each, sequence=10_000)) for each in said)
    assert CHECK_BYTES / 2 < looks < CHECK_BYTES


@pytest.mark.parametrize("packet", ["x", "\x7f", "ü", "\U0001f40c"])
def test_work_on_every_permitted_chunk_fits_line(packet: str) -> None:
    """Also if its names, received as plain UTF-8, grow when they are escaped."""

    def joined(count: int) -> Joined:
        return Joined(NOW, CLIENT, False, tuple(Held(f"{packet * 9}{each}", 1) for each in range(count)))

    most = _most(joined, 20_000)
    with pytest.raises(BadMessage, match="bytes of a line"):
        joined(40_000)
    order = tuple(range(10**8 - most, 10**8))  # numbers grow in a run, as none is given twice
    names = tuple(zip(order, (held.name for held in joined(most).holds), strict=True))
    work = Work(CLIENT, 10**9, 10**9, 10**9, order, names, 2**32, 1e9)
    assert len(wire.encode(work, 2**62)) <= wire.LINE_LIMIT


@pytest.mark.parametrize("name", ["{}", "chunk-{:05}-of-20000", "\U0001f40c{}"])
def test_shared_chunks_with_digests_fit_joined_line(name: str) -> None:
    def joined(count: int) -> Joined:
        held = (Held(name.format(each), 10**6, "0123456789abcdef") for each in range(count))
        return Joined(NOW, CLIENT, False, tuple(held))

    most = _most(joined, 30_000)
    assert most > 10_000
    assert len(wire.encode(joined(most), 2**62)) <= wire.LINE_LIMIT


def _most(make: typing.Callable[[int], object], limit: int) -> int:
    """Return the largest count below the limit that is accepted."""
    return bisect.bisect_left(range(limit), True, key=lambda count: not _is_made(make, count)) - 1


def _is_made(make: typing.Callable[[int], object], count: int) -> bool:
    try:
        make(count)
    except BadMessage:
        return False
    return True


@given(st.lists(st.binary(min_size=1, max_size=40).map(lambda data: b"L" + data), min_size=1, max_size=9))
def test_frames_of_message_are_split_equal(frames: list[bytes]) -> None:
    assert wire.split(b"".join(wire.join([(each,) for each in frames]))) == tuple(frames)


@pytest.mark.parametrize(
    "message",
    [b"B\x01", b"B\x00\x00\x00\x00", b"B\x09\x00\x00\x00L", b"B\x01\x00\x00\x00LL"],
    ids=["no length", "empty frame", "frame cut short", "length cut short"],
)
def test_corrupt_batch_is_rejected(message: bytes) -> None:
    with pytest.raises(BadMessage, match="a batch of"):
        wire.split(message)


def test_batch_of_too_many_frames_is_rejected() -> None:
    assert len(wire.split(*wire.join([(b"L",)] * wire.BATCH_FRAMES))) == wire.BATCH_FRAMES
    with pytest.raises(BadMessage, match="saw more than"):
        wire.split(*wire.join([(b"L",)] * (wire.BATCH_FRAMES + 1)))
