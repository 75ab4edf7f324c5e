import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadMessage
from fedgc.secagg.canonical import LARGEST, pack, read, rows, unpack

LEAVES = (
    st.integers(0, LARGEST)
    | st.binary(max_size=20)
    | st.text(max_size=10)
    | st.floats(allow_nan=False, allow_infinity=False)
)
ROWS = st.lists(LEAVES, max_size=3).map(tuple)
VALUES = LEAVES | ROWS | st.lists(LEAVES | ROWS, max_size=3).map(tuple)


@given(st.lists(VALUES, max_size=4).map(tuple))
def test_encoded_value_is_decoded_equal(values):
    assert unpack(pack(*values)) == values


@given(st.lists(VALUES, max_size=3).map(tuple), st.lists(VALUES, max_size=3).map(tuple))
def test_encoding_is_injective(one, other):
    assert (pack(*one) == pack(*other)) == (repr(one) == repr(other))


@given(st.binary(max_size=60))
def test_decoded_bytes_are_canonical(data):
    try:
        values = unpack(data)
    except BadMessage:
        return
    assert pack(*values) == data


@given(st.lists(LEAVES, min_size=1, max_size=4).map(tuple), st.data())
def test_cut_or_longer_encoding_is_refused(values, data):
    spelled = pack(*values)
    cut = data.draw(st.integers(0, len(spelled) - 1))
    for wrong in (spelled[:cut], spelled + b"\0"):
        with pytest.raises(BadMessage):
            unpack(wrong)


@pytest.mark.parametrize("value", [-1, LARGEST + 1, True, None, float("nan"), float("inf"), [1]])
def test_unencodable_value_is_refused(value):
    with pytest.raises(BadMessage, match="needed a number"):
        pack(value)


@pytest.mark.parametrize("name", ["nan", "inf"])
def test_non_finite_number_is_not_read(name):
    import struct

    with pytest.raises(BadMessage, match="needed a finite"):
        unpack(b"t\0\0\0\1f" + struct.pack(">d", float(name)))


def test_deep_tuples_are_refused_before_stack_overflow():
    with pytest.raises(BadMessage, match="depth"):
        unpack(b"t\0\0\0\1" * 5000)


def test_packet_of_other_kind_or_shape_is_refused():
    assert read(pack("a", 1, b"x"), "a", int, bytes) == (1, b"x")
    with pytest.raises(BadMessage, match="saw a packet 'b', needed 'a'"):
        read(pack("b", 1), "a", int)
    with pytest.raises(BadMessage, match="needed"):
        read(pack("a", "1"), "a", int)
    with pytest.raises(BadMessage, match="needed a tuple of tuples"):
        rows(3, "a", int)
    with pytest.raises(BadMessage, match="needed"):
        rows(((1, 2),), "a", int)
