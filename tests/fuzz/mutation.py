"""Mutated inputs: from valid encodings by flips, cuts, repeats, splices and insertions of extreme values."""

import random
from collections.abc import Callable, Sequence
from typing import Final

LONGEST: Final = 16_384  # bytes of an input
EXTREMES: Final = (
    b"", b"0", b"-1", b"-0.0", b"1e400", b"1e-400", b"9223372036854775808", b"1" * 400, b"1" * 5000, b"NaN",
    b"-Infinity", b"null", b"true", b"[]", b"{}", b'""', b'"\\ud800"', b'"\\u0000"', b'"' + b"A" * 300 + b'"',
    b"[" * 60, b"[" * 3000, b'{"":' * 500, b"\x00", b"\x00" * 40, b"\xff" * 9, b"\xc3\x28", b"\n", b"\r\n",
    b",", b":", b"\xef\xbb\xbf", b"%00", b"../..", b"&run=", b"1_000", "\u0663".encode(),
)  # fmt: skip

Operation = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def mutated(chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return an input made of one of these encodings by a few operations."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        chance.choice(_OPERATIONS)(chance, data, seeds)
    return bytes(data[:LONGEST])


def _place(chance: random.Random, data: bytearray) -> int:
    return chance.randrange(len(data) + 1)


def _slice(chance: random.Random, data: bytearray) -> slice:
    first = _place(chance, data)
    return slice(first, first + chance.choice((1, 1, 2, 4, 8, 50)))


def _flip(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _set(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, ord("9"), ord('"')))


def _truncate(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[_place(chance, data) :]


def _remove(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[_slice(chance, data)]


def _repeat(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    part = bytes(data[_slice(chance, data)])
    data[_place(chance, data) : 0] = part * chance.choice((1, 2, 10, 500))
    del data[LONGEST:]


def _splice(chance: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    other = chance.choice(seeds)
    data[_place(chance, data) :] = other[chance.randrange(len(other) + 1) :]


def _insert(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = _place(chance, data)
    data[at:at] = chance.choice(EXTREMES)


def _replace_number(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Replace a run of digits by an extreme value."""
    digits = [at for at, each in enumerate(data) if 48 <= each <= 57]
    if digits:
        first = last = chance.choice(digits)
        while last < len(data) and 48 <= data[last] <= 57:
            last += 1
        data[first:last] = chance.choice(EXTREMES)


_OPERATIONS: Final[Sequence[Operation]] = (
    _flip, _flip, _set, _truncate, _remove, _repeat, _splice, _insert, _insert, _replace_number,
    _replace_number,
)  # fmt: skip
