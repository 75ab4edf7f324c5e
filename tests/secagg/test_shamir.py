import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgc.errors import BadSetting, NotRecoverable
from fedgc.secagg.keystream import keystream
from fedgc.secagg.shamir import combine, multiply, split


def slow_share(secret, coefficients, point):
    """One byte, Horner's rule with the schoolbook product."""
    value = 0
    for coefficient in coefficients:
        value = multiply(value, point) ^ coefficient
    return multiply(value, point) ^ secret


def slow_product(one, other):
    """Multiply polynomials over GF(2), then divide by the modulus."""
    product = 0
    for bit in range(8):
        product ^= (one << bit) * ((other >> bit) & 1)
    for bit in range(15, 7, -1):
        product ^= (0x11B << (bit - 8)) * ((product >> bit) & 1)
    return product


def test_product_is_polynomial_product_modulo_aes_polynomial():
    for one, other in itertools.product(range(0, 256, 5), range(256)):
        assert multiply(one, other) == slow_product(one, other)


@given(
    secret=st.binary(min_size=1, max_size=70),
    points=st.sets(st.integers(1, 255), min_size=2, max_size=12),
    data=st.data(),
)
def test_threshold_of_shares_gives_secret_and_fewer_are_refused(secret, points, data):
    threshold = data.draw(st.integers(2, len(points)))
    entropy = data.draw(st.binary(min_size=32, max_size=32))
    shares = split(secret, threshold, sorted(points), entropy)
    chosen = data.draw(st.lists(st.sampled_from(sorted(points)), min_size=threshold, unique=True))
    assert combine({point: shares[point] for point in chosen}, threshold) == secret
    few = chosen[: threshold - 1]
    with pytest.raises(NotRecoverable, match=f"saw {len(few)} shares, needed {threshold}"):
        combine({point: shares[point] for point in few}, threshold)


@given(secret=st.binary(min_size=1, max_size=9), entropy=st.binary(min_size=32, max_size=32))
@settings(max_examples=20)
def test_shares_equal_slow_reference(secret, entropy):
    chance = keystream(entropy, 3 * len(secret))
    rows = np.frombuffer(chance, np.uint8).reshape(3, len(secret))
    for point, share in split(secret, 4, (1, 2, 77, 255), entropy).items():
        column = [slow_share(s, rows[:, at].tolist(), point) for at, s in enumerate(secret)]
        assert list(share) == column


@pytest.mark.parametrize("secret", [0, 1, 0xA7])
def test_two_of_three_shares_are_uniform_for_any_secret(secret):
    """Threshold 3: over all coefficients, any two shares are uniform on all 65,536 pairs."""
    table = np.array([[multiply(a, b) for b in range(256)] for a in range(256)], np.uint8)
    first, second = (c.ravel() for c in np.meshgrid(np.arange(256), np.arange(256)))
    for one, other in ((1, 2), (3, 255)):
        shares = [table[p][table[p][first] ^ second] ^ secret for p in (one, other)]
        pairs = shares[0].astype(np.int64) * 256 + shares[1]
        assert len(np.unique(pairs)) == 65_536


def test_shares_below_threshold_fit_every_secret():
    """Each secret is reached by exactly one value of the missing share."""
    shares = split(b"\x5c", 3, (1, 2, 3), bytes(32))
    found = {combine({1: shares[1], 2: shares[2], 3: bytes([guess])}, 3) for guess in range(256)}
    assert len(found) == 256


def test_invalid_shares_are_refused():
    for threshold, points in ((1, (1, 2)), (2, (0, 1)), (2, (1, 1)), (2, (1, 256)), (3, (1, 2))):
        with pytest.raises(BadSetting):
            split(b"secret", threshold, points, bytes(32))
    with pytest.raises(NotRecoverable, match="several lengths"):
        combine({1: b"a", 2: b"bc"}, 2)
