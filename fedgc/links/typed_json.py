"""Frozen dataclasses as JSON lists and back, strictly checked by their type hints.

A dataclass becomes the list of its fields in order: names do not travel, so a field cannot be given twice,
and a missing or extra field gives a list of the wrong length. Floats come back equal;
NaN and infinities are refused both ways. Bytes travel as base64.

Fields named in `stamped` do not travel: the receiver fills them in (its own clock, the sender).
"""

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Final, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import orjson

from fedgc.errors import BadMessage

Read = Callable[[Any], Any]
_PLAIN: Final = frozenset({str, int, bool, type(None)})  # what JSON has itself; it has not all floats
SHOWN: Final = 16  # characters of a text that an error message may repeat


def dumps(value: object) -> bytes:
    """Return `value`, made of what `write` returns, as compact JSON."""
    return orjson.dumps(value)


def loads(data: bytes) -> Any:  # noqa: ANN401  any JSON value
    """Return what JSON `data` holds, or raise BadMessage."""
    try:
        return orjson.loads(data)
    except ValueError as error:
        raise BadMessage(f"{len(data)} bytes: needed JSON ({error})") from error


def write(value: Any, stamped: frozenset[str] = frozenset()) -> list[Any]:  # noqa: ANN401  any dataclass
    """Return the fields of a dataclass as plain lists, numbers and strings."""
    kind: Any = type(value)
    values = [getattr(value, name) for name in _written(kind, stamped)]
    return [each if _is_plain(each) else _plain(each) for each in values]


def _is_plain(value: Any) -> bool:  # noqa: ANN401  any field
    return type(value) in _PLAIN or (type(value) is float and math.isfinite(value))


def read(kind: Any, values: object, stamps: dict[str, Any]) -> Any:  # noqa: ANN401  a value of `kind`
    """Return the `kind` that `write` turned into `values`; `stamps` holds the fields that did not travel."""
    wanted, count = _fields(kind, tuple(stamps))
    if not isinstance(values, list) or len(values) != count:
        seen = len(values) if isinstance(values, list) else type(values).__name__  # it may hold a secret
        raise BadMessage(f"{kind.__name__}: needed a list of {count} fields, saw {seen}")
    given = iter(values)
    return kind(*[reader(next(given)) if reader else stamps[name] for name, reader in wanted])


@cache
def _written(kind: Any, stamped: frozenset[str]) -> tuple[str, ...]:  # noqa: ANN401  a dataclass
    return tuple(each.name for each in fields(kind) if each.name not in stamped)


@cache
def _fields(kind: type, stamped: tuple[str, ...]) -> tuple[tuple[tuple[str, Read | None], ...], int]:
    """Return the fields in order, each with its reader or, if it is stamped, None; and how many travel."""
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind)]
    readers = [None if name in stamped else _reader(hints[name]) for name in names]
    return tuple(zip(names, readers, strict=True)), len(readers) - readers.count(None)


def _plain(value: Any) -> Any:  # noqa: ANN401  JSON's own types out
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if is_dataclass(value):
        return write(value)
    return _float(value) if isinstance(value, float) else value


@cache
def _reader(hint: Any) -> Read:  # noqa: ANN401  a type hint
    if hint in _SCALARS:
        return _SCALARS[hint]
    if is_dataclass(hint):
        return lambda value: read(hint, value, {})
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _one_of(inner)
    if origin in (Union, UnionType):
        return _optional(_reader(next(member for member in inner if member is not type(None))))
    if inner[1:] == (...,):
        return _many(_reader(inner[0]))
    return _each([_reader(member) for member in inner])


def _scalar(kind: type, called: str = "") -> Read:
    def reader(value: Any) -> Any:  # noqa: ANN401  any value from the wire
        if type(value) is not kind:
            _refuse(value, called or kind.__name__)
        return value

    return reader


def _float(value: Any) -> float:  # noqa: ANN401  any value from the wire
    if type(value) is int and abs(value) < 2**1023:
        return float(value)
    if type(value) is not float or not math.isfinite(value):
        _refuse(value, "a finite number")
    return float(value)


def _bytes(value: Any) -> bytes:  # noqa: ANN401  it may be a secret: errors repeat none of it
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError) as error:
        raise BadMessage(f"saw {type(value).__name__}, needed base64 ({type(error).__name__})") from None


def _one_of(choices: Sequence[object]) -> Read:
    def reader(value: Any) -> Any:  # noqa: ANN401  any value from the wire
        if type(value) is not str or value not in choices:
            _refuse(value, f"one of {', '.join(map(repr, choices))}")
        return value

    return reader


def _optional(inner: Read) -> Read:
    return lambda value: None if value is None else inner(value)


def _many(inner: Read) -> Read:
    def reader(value: Any) -> tuple[Any, ...]:  # noqa: ANN401  any value from the wire
        if type(value) is not list:
            _refuse(value, "a list")
        return tuple(map(inner, value))

    return reader


def _each(inner: Sequence[Read]) -> Read:
    def reader(value: Any) -> tuple[Any, ...]:  # noqa: ANN401  any value from the wire
        if type(value) is not list or len(value) != len(inner):
            _refuse(value, f"a list of {len(inner)}")
        return tuple(one(each) for one, each in zip(inner, value, strict=True))

    return reader


def _refuse(value: object, needed: str) -> NoReturn:
    raise BadMessage(f"saw {short(value)}, needed {needed}")


def short(value: object) -> str:
    """Return how an error message shows a value: without long texts and containers, which may hold secrets.

    >>> short(7), short("blue"), short("x" * 44), short([1, 2])
    ('7', "'blue'", 'text of 44 characters', 'list of 2')
    """
    if isinstance(value, str) and len(value) > SHOWN:
        return f"text of {len(value)} characters"
    if isinstance(value, list | dict):
        return f"{type(value).__name__} of {len(value)}"
    return repr(value)


_SCALARS: dict[Any, Read] = {
    int: _scalar(int),
    bool: _scalar(bool),
    float: _float,
    str: _scalar(str, "text"),
    bytes: _bytes,
}
