"""Shamir's secret sharing over GF(2^8), byte by byte: T shares give the secret, T - 1 reveal nothing.

Each byte s of the secret is the constant of its own polynomial f(x) = s + a_1 x + ... + a_(T-1) x^(T-1) with
uniform coefficients; the share of point x is f(x). For any T - 1 points and any s, each tuple of T - 1 shares
corresponds to exactly one choice of coefficients, so the shares are uniform for every s (Shamir 1979). The
field is that of AES: polynomials over GF(2) modulo x^8 + x^4 + x^3 + x + 1, with generator 3.

Shares are not authenticated; the caller compares the combined secret with its commitment.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.errors import BadSetting, NotRecoverable
from fedgc.secagg.keystream import keystream

Bytes = NDArray[np.uint8]
POINTS: Final = 255  # 0 is the point of the secret
_MODULUS: Final = 0x11B
_GENERATOR_ORDER: Final = 255


def split(secret: bytes, threshold: int, points: Sequence[int], entropy: bytes) -> dict[int, bytes]:
    """Return a share of `secret` for each point; any `threshold` of them reconstruct it.

    >>> shares = split(b"secret", 2, (1, 2, 3), bytes(32))
    >>> combine({1: shares[1], 3: shares[3]}, 2)
    b'secret'
    """
    _check(threshold, points)
    if threshold > len(points):
        raise BadSetting(f"shares: saw threshold {threshold} of {len(points)} points, needed at most as many")
    chance = np.frombuffer(keystream(entropy, len(secret) * (threshold - 1)), np.uint8)
    rows = chance.reshape(threshold - 1, len(secret))
    constant = np.frombuffer(secret, np.uint8)
    table = _products()
    shares = {}
    for point in points:
        value = np.zeros(len(secret), np.uint8)
        for row in rows:
            value = table[point][value ^ row]
        shares[point] = (value ^ constant).tobytes()
    return shares


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret from at least `threshold` shares of one length; raise NotRecoverable for fewer."""
    points = sorted(shares)[:threshold]
    _check(threshold, points)
    if len(shares) < threshold:
        raise NotRecoverable(f"secret: saw {len(shares)} shares, needed {threshold}")
    if len({len(shares[point]) for point in points}) != 1:
        raise NotRecoverable("secret: saw shares of several lengths, needed one")
    table = _products()
    rows = [table[_at_zero(points, p)][np.frombuffer(shares[p], np.uint8)] for p in points]
    secret: Bytes = np.bitwise_xor.reduce(rows)
    return secret.tobytes()


def multiply(one: int, other: int) -> int:
    """Multiply in GF(2^8).

    >>> hex(multiply(0x57, 0x83))
    '0xc1'
    """
    product = 0
    while other:
        product ^= one * (other & 1)
        one, other = (one << 1) ^ (_MODULUS * (one >> 7)), other >> 1
    return product


def _at_zero(points: Sequence[int], at: int) -> int:
    """Return the Lagrange coefficient of one point at 0: the product of p / (p - at); minus is xor."""
    exponents, logarithms = _logarithms()
    others = [point for point in points if point != at]
    power = sum(logarithms[point] - logarithms[point ^ at] for point in others)
    return exponents[power % _GENERATOR_ORDER]


def _check(threshold: int, points: Sequence[int]) -> None:
    if threshold < 2:
        raise BadSetting(f"shares: saw threshold {threshold}, needed at least 2")
    if len(set(points)) != len(points) or not all(1 <= point <= POINTS for point in points):
        raise BadSetting(f"shares: saw points {list(points)}, needed different ones of 1 to {POINTS}")


@cache
def _logarithms() -> tuple[tuple[int, ...], dict[int, int]]:
    exponents = [1]
    while len(exponents) < _GENERATOR_ORDER:
        exponents.append(multiply(exponents[-1], 3))
    return tuple(exponents), {value: power for power, value in enumerate(exponents)}


@cache
def _products() -> Bytes:
    """Return the whole multiplication table, 64 kB."""
    exponents, logarithms = _logarithms()
    powers = np.array([logarithms[value] for value in range(1, 256)])
    table = np.zeros((256, 256), np.uint8)
    table[1:, 1:] = np.array(exponents, np.uint8)[(powers[:, None] + powers) % _GENERATOR_ORDER]
    return table
