"""Test that a client decodes any server message or refuses it with a named error."""

import contextlib
import io

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadMessage
from fedgc.links.frames import Invitation
from fedgc.links.message import packets as packets
from fedgc.links.message.invitation import FIELDS, RECORD, invited
from fedgc.messages import Work

WORK = Work("me", 3, 2, 4, (0,), ((0, "chunk-0"),), 5, 60.0)
VALUES = st.one_of(
    st.integers(-(2**62), 2**62), st.floats(), st.text(max_size=8), st.binary(max_size=8), st.booleans(),
    st.lists(st.integers(0, 9), max_size=3), st.lists(st.binary(max_size=8), max_size=3),
)  # fmt: skip


def written() -> RecordDict:
    model = 2, np.arange(4, dtype=np.float32)
    return packets.write_packet(packets.Packet("run", b"nonce", 60.0, (WORK,), model))


def test_packet_is_decoded_equal() -> None:
    packet = packets.read_packet(written(), "me")
    assert (packet.run, packet.nonce, packet.lease_s, packet.commands) == ("run", b"nonce", 60.0, (WORK,))
    assert packet.model[0] == 2
    assert packet.model[1].tolist() == [0, 1, 2, 3]


@given(st.sampled_from(["version", "run", "nonce", "lease_s", "lines"]), st.none() | VALUES)
def test_packet_with_changed_field_is_decoded_or_refused(name, value) -> None:
    content = written()
    about = dict(content.config_records["packet"])
    del about[name]
    if value is not None:
        about[name] = value
    content["packet"] = ConfigRecord(about)
    with contextlib.suppress(BadMessage):
        packets.read_packet(content, "me")


def test_integer_nonce_is_refused() -> None:
    content = written()
    content.config_records["packet"]["nonce"] = 10**9
    with pytest.raises(BadMessage, match="saw int as nonce, needed bytes"):
        packets.read_packet(content, "me")


@given(st.text(max_size=20), st.binary(max_size=300), st.sampled_from(["numpy.ndarray", "other"]))
def test_any_model_array_is_decoded_or_refused(name, data, kind) -> None:
    content = written()
    content["model"] = ArrayRecord({name: Array(dtype="float32", shape=(4,), stype=kind, data=data)})
    with contextlib.suppress(BadMessage):
        packets.read_packet(content, "me")


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_model_array_with_changed_byte_is_decoded_or_refused(at, value) -> None:
    content = written()
    file = io.BytesIO()
    np.save(file, np.arange(4, dtype=np.float32))
    data = bytearray(file.getvalue())
    data[at % len(data)] = value
    content["model"] = ArrayRecord(
        {"2": Array(dtype="float32", shape=(4,), stype="numpy.ndarray", data=bytes(data))}
    )
    with contextlib.suppress(BadMessage):
        _, vector = packets.read_packet(content, "me").model
        assert vector.shape == (4,)


@pytest.mark.parametrize("names", [[], ["1", "2"], ["-1"], ["one"], ["9" * 5000], [""]])
def test_model_packet_has_one_array_named_by_version(names) -> None:
    content = written()
    content["model"] = ArrayRecord({name: Array(np.zeros(4, np.float32)) for name in names})
    with pytest.raises(BadMessage, match="needed one, named by its version"):
        packets.read_packet(content, "me")


@given(st.sampled_from(sorted(FIELDS)), st.none() | VALUES)
def test_invitation_with_changed_field_is_decoded_or_refused(name, value) -> None:
    about = {
        "address": "127.0.0.1:1", "certificate": b"certificate", "token": b"token", "run": "run",
        "authority": b"",
    }  # fmt: skip
    content = RecordDict({RECORD: ConfigRecord(about)})
    assert invited(content) == Invitation("127.0.0.1:1", b"certificate", b"token", "run")
    del about[name]
    if value is not None:
        about[name] = value
    with contextlib.suppress(BadMessage):
        invited(RecordDict({RECORD: ConfigRecord(about)}))
