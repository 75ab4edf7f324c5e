"""Canonical encoding: each value has exactly one encoding, for signatures, hashes, storage and messages.

A value is an int of 0 or more, bytes, text, a finite float, or a tuple of values. Each is preceded by one
byte for its kind and, if its length varies, by its length. Different values therefore never share an
encoding, and fields cannot run into each other, as a signature over joined bytes requires. Reading accepts
only what writing produces.
"""

import math
import struct
from typing import Any, Final

from fedgc.errors import BadMessage

Value = int | bytes | str | float | tuple["Value", ...]

LARGEST: Final = 2**64 - 1
_DEEPEST: Final = 6  # depth of nested tuples; deeper input is an attack on the stack
_INT, _REAL, _BYTES, _TEXT, _TUPLE = b"ifbst"
_COUNT: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">Q")
_NUMBER_BYTES: Final = 1 + _NUMBER.size
_FLOAT: Final = struct.Struct(">d")


def pack(*values: Value) -> bytes:
    """Return the encoding of a tuple of values.

    >>> pack(1, "a").hex()
    '7400000002690000000000000001730000000161'
    """
    return _pack(values)


def unpack(data: bytes) -> tuple[Value, ...]:
    """Return the tuple that `data` encodes, or raise BadMessage.

    >>> unpack(pack(7, b"x", ("y", 0.5)))
    (7, b'x', ('y', 0.5))
    """
    try:
        value, end = _unpack(memoryview(data), 0, 0)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise BadMessage(f"{len(data)} bytes: saw a broken value ({error}), needed a whole one") from error
    if end != len(data) or not isinstance(value, tuple):
        raise BadMessage(f"{len(data)} bytes: saw one value of {end} bytes, needed one tuple and no more")
    return value


def read(data: bytes, label: str, *kinds: type, has_rest: bool = False) -> tuple[Any, ...]:
    """Return the fields of a labelled tuple, of these kinds in this order; the last may be `with_rest`.

    >>> read(pack("greeting", 3), "greeting", int)
    (3,)
    """
    name, *values = unpack(data) or ("nothing",)
    if name != label:
        raise BadMessage(f"saw a packet {str(name)[:40]!r}, needed {label!r}")
    fields = tuple(values)
    return typed(with_rest(fields, len(kinds)) if has_rest else fields, label, *kinds)


def with_rest(values: tuple[Value, ...], count: int) -> tuple[Value, ...]:
    """Return `count` values, of which the last, a tuple, is left out of the encoding when it is empty.

    >>> with_rest((1, 2), 3), with_rest((1, 2, (3,)), 3)
    ((1, 2, ()), (1, 2, (3,)))
    """
    if values[count - 1 :] == ((),):
        raise BadMessage("saw an empty tuple at the end, needed it left out")
    return (*values, ()) if len(values) == count - 1 else values


def typed(values: Value, what: str, *kinds: type) -> tuple[Any, ...]:
    """Return a tuple whose items are of these kinds in this order, or raise BadMessage."""
    seen = [type(value) for value in values] if isinstance(values, tuple) else [type(values)]
    if not isinstance(values, tuple) or seen != list(kinds):
        raise BadMessage(
            f"{what}: saw {[kind.__name__ for kind in seen]}, needed {[kind.__name__ for kind in kinds]}"
        )
    return values


def rows(values: Value, what: str, *kinds: type) -> tuple[tuple[Any, ...], ...]:
    """Return a tuple of tuples that are all of these kinds."""
    if not isinstance(values, tuple):
        raise BadMessage(f"{what}: saw {type(values).__name__}, needed a tuple of tuples")
    return tuple(typed(row, what, *kinds) for row in values)


def _pack(value: Value) -> bytes:
    match value:
        case int() if not isinstance(value, bool) and 0 <= value <= LARGEST:
            return b"i" + _NUMBER.pack(value)
        case float() if math.isfinite(value):
            return b"f" + _FLOAT.pack(value)
        case bytes():
            return b"b" + _COUNT.pack(len(value)) + value
        case str():
            text = value.encode()
            return b"s" + _COUNT.pack(len(text)) + text
        case tuple():
            return b"t" + _COUNT.pack(len(value)) + (_pack_numbers(value) or b"".join(map(_pack, value)))
    raise BadMessage(f"saw {value!r}, needed a number of 0 to 2^64 - 1, finite float, bytes, text or tuple")


def _pack_numbers(values: tuple[Value, ...]) -> bytes:
    """Return the encoding of whole numbers at once, since a large federation has long lists of members."""
    if set(map(type, values)) != {int}:
        return b""
    try:
        return b"".join([b"i" + _NUMBER.pack(value) for value in values])
    except struct.error:
        return b""  # out of range, which the caller refuses


def _unpack(data: memoryview, at: int, depth: int) -> tuple[Value, int]:
    kind, at = data[at], at + 1
    if kind == _INT:
        return int(_NUMBER.unpack_from(data, at)[0]), at + _NUMBER.size
    if kind == _REAL:
        return _finite(float(_FLOAT.unpack_from(data, at)[0])), at + _FLOAT.size
    count, at = int(_COUNT.unpack_from(data, at)[0]), at + _COUNT.size
    if kind == _TUPLE:
        return _unpack_tuple(data, at, count, depth + 1)
    if kind not in (_BYTES, _TEXT) or at + count > len(data):
        raise BadMessage(f"byte {at}: saw kind {kind} of {count} bytes, needed a known one that is all there")
    part = bytes(data[at : at + count])
    return (part if kind == _BYTES else part.decode()), at + count


def _unpack_tuple(data: memoryview, at: int, count: int, depth: int) -> tuple[Value, int]:
    if depth > _DEEPEST or count > len(data):
        raise BadMessage(f"byte {at}: saw {count} values at depth {depth}, needed fewer")
    numbers, size = bytes(data[at : at + count * _NUMBER_BYTES]), count * _NUMBER_BYTES
    if count and numbers[::_NUMBER_BYTES] == b"i" * count:
        return struct.unpack(f">{'xQ' * count}", numbers), at + size
    values = []
    for _ in range(count):
        value, at = _unpack(data, at, depth)
        values.append(value)
    return tuple(values), at


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise BadMessage(f"saw the number {value}, needed a finite one")
    return value
