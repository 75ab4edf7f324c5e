import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadMessage, BadSetting, NotAdmitted
from fedgc.secagg import Identity, keys, rules
from fedgc.secagg.keys import agree, check_public, derive, loaded, public_of, seal, unseal, verify
from fedgc.secagg.packets import Begin, Deal

KEYS = [bytes([at] * 32) for at in range(1, 4)]


def test_signature_is_bound_to_key_and_statement():
    identity = Identity(KEYS[0])
    signature = identity.sign(b"statement")
    verify(identity.public, signature, b"statement", "it")
    broken = bytes([signature[0] ^ 1]) + signature[1:]
    for public, signed, statement in [
        (Identity(KEYS[1]).public, signature, b"statement"),
        (identity.public, signature, b"another"),
        (identity.public, broken, b"statement"),
        (identity.public, b"", b"statement"),
    ]:
        with pytest.raises(NotAdmitted, match="ward: saw a signature"):
            verify(public, signed, statement, "ward")


def test_identity_of_wrong_length_is_refused():
    with pytest.raises(BadSetting, match="saw a key of 31 bytes, needed 32"):
        Identity(bytes(31))


def test_two_owners_derive_same_secret_and_others_do_not():
    def shared(one, other):
        return agree(loaded(KEYS[one]), public_of(KEYS[other]), "it")

    assert shared(0, 1) == shared(1, 0) != shared(0, 2)
    for public in (bytes(32), b"\1" + bytes(31), bytes(31)):
        with pytest.raises(BadMessage, match="small order"):
            agree(loaded(KEYS[0]), public, "it")


FIELD = 2**255 - 19
SPELLINGS = [
    value + again * FIELD + top * 2**255
    for value in sorted(keys._SMALL)
    for again in (0, 1)
    for top in (0, 1)
    if value + again * FIELD < 2**255
]


@pytest.mark.parametrize("value", SPELLINGS)
def test_key_unusable_for_agreement_is_refused_at_once(value):
    public = value.to_bytes(32, "little")
    with pytest.raises(BadMessage, match="it: saw a key of small order"):
        agree(loaded(KEYS[0]), public, "it")
    with pytest.raises(BadMessage, match="it: saw a key of small order or with a second spelling"):
        check_public(public, "it")


@given(secret=st.binary(min_size=32, max_size=32))
def test_generated_keys_are_valid_and_noncanonical_keys_are_not(secret):
    public = public_of(secret)
    check_public(public, "it")
    other = public[:31] + bytes([public[31] | 128])
    assert agree(loaded(KEYS[0]), other, "it") == agree(loaded(KEYS[0]), public, "it")
    with pytest.raises(BadMessage, match="second spelling"):
        check_public(other, "it")


def test_derived_key_depends_on_every_input():
    found = {
        derive(secret, salt, label, value)
        for secret in KEYS[:2]
        for salt in KEYS[:2]
        for label in ("a", "b")
        for value in (1, 2)
    }
    assert len(found) == 16


def test_sealed_value_opens_only_with_its_key_and_context():
    sealed = seal(KEYS[0], b"plain", b"context")
    assert unseal(KEYS[0], sealed, b"context", "it") == b"plain"
    for key, blob, context in [
        (KEYS[1], sealed, b"context"),
        (KEYS[0], sealed, b"other"),
        (KEYS[0], b"", b"context"),
    ]:
        with pytest.raises(BadMessage, match="blob"):
            unseal(key, blob, context, "it")


def test_model_name_is_its_whole_digest(kit):
    begin = Begin(1, 1, (0, 1, 2), 5, b"")
    with pytest.raises(BadMessage, match="a digest of 31 bytes"):
        rules.context(kit.federation(3), bytes(32), begin, bytes(31))


@pytest.mark.parametrize("size", [0, 2**41])
def test_impossible_size_is_refused(size):
    with pytest.raises(BadMessage, match="numbers"):
        Begin(1, 1, (0, 1, 2), size, b"")


def test_packet_of_other_kind_is_refused():
    with pytest.raises(BadMessage, match="saw a packet 'begin', needed 'deal'"):
        Deal.unpack(Begin(1, 1, (0, 1, 2), 5, b"").pack())
