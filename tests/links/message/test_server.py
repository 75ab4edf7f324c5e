"""Test the message link without Flower: packets and answers as values, a clock controlled by the test."""

import dataclasses
import io
import logging
import os
from collections.abc import Callable
from types import MappingProxyType

import numpy as np
import pytest
from flwr.app import Array, RecordDict

from fedgc.codecs import Wire
from fedgc.errors import BadMessage, BadVector, EdgeFailed, NotAdmitted
from fedgc.links import frames as wire
from fedgc.links.frames import StreamId
from fedgc.links.message import packets as packets
from fedgc.links.message.outbox import FIRST_LEASE_S, LEASE_RATIO
from fedgc.links.message.packets import Packet, Shelved
from fedgc.links.message.server import AGAIN_S, LONGEST_PAUSE_S, MessageServer
from fedgc.links.pieces import Form, digest_of, shortened, signed_offer_of
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import (
    Advert,
    Announced,
    Begin,
    Close,
    Codeword,
    Continue,
    Failed,
    Held,
    Joined,
    Kept,
    Layout,
    Leaving,
    Lost,
    Mix,
    Open,
    Progress,
    Repair,
    Report,
    Reveal,
    Ring,
    Survivors,
    TensorSpec,
    Work,
)

NUMBERS = 10
MODEL = np.arange(NUMBERS, dtype=np.float32)
HOLDS = (Held("a", 4), Held("b", 4))
HEADER = 128  # bytes of numpy's own before the numbers


class SessionTable:
    """A message server, its events, and nodes with scripted answers."""

    def __init__(self, make_identity: Callable) -> None:
        self.now = 100.0
        self.events: list[object] = []
        around = Surroundings(lambda: self.now, os.urandom, lambda: 0.0, logging.getLogger("test"))
        self.message_server = MessageServer("run@1", NUMBERS, self.events.append, around)
        self.message_server.publish(3, MODEL)
        self.make_identity = make_identity

    def node(self, node: int = 1, kept: tuple[Kept, ...] = ()) -> "Node":
        """A node that has identified itself."""
        made = Node(self, node)
        self.message_server.open(node)
        made.next()
        made.says(Joined(0.0, "x", True, HOLDS, kept))
        return made


class Node:
    def __init__(self, sessions: SessionTable, node: int, who=None) -> None:
        self.sessions, self.node = sessions, node
        self.who = who or sessions.make_identity()
        self.client = self.who.client
        self.packet: Packet | None = None
        self.ttl_s = 0.0
        self.cache: dict[int, np.ndarray] = {}

    def next(self) -> Packet | None:
        """The packet that leaves now, as this node reads it."""
        sent = [each for each in self.sessions.message_server.packets() if each[0] == self.node]
        self.packet = None
        for _, packet, self.ttl_s in sent:
            self.packet = packets.read_packet(packets.write_packet(packet), self.client)
            if self.packet.model is not None:
                self.cache[self.packet.model[0]] = self.packet.model[1]
        return self.packet

    def says(self, *lines, codewords=MappingProxyType({}), spoil=lambda content: None) -> None:
        lines = [*lines, *(Shelved(version, digest_of(each).hex()) for version, each in self.cache.items())]
        content = packets.write_answer(self.packet, self.who, "north", lines, dict(codewords))
        spoil(content)
        self.sessions.message_server.answered(
            self.node, lambda asked: packets.read_answer(content, asked, self.sessions.now)
        )

    def events(self, kind: type | None = None) -> list[object]:
        return [each for each in self.sessions.events if kind is None or isinstance(each, kind)]

    def gives(self, stream: StreamId, vector: np.ndarray, **how) -> None:
        self.says(signed_offer_of(stream, vector), codewords={stream: vector}, **how)


@pytest.fixture
def sessions(link) -> SessionTable:
    return SessionTable(link.identity)


def work(client: str, **changes) -> Work:
    return dataclasses.replace(
        Work(client, 5, 3, 4, (0, 1), ((0, "a"), (1, "b")), 7, lease_s=600.0), **changes
    )


def progress(chunk: int, **changes) -> Progress:
    return dataclasses.replace(Progress(0.0, "x", 5, chunk, 4, 2.0, 4, 1.0, 0.5), **changes)


def test_node_is_asked_for_identity_and_joins_deaf(sessions) -> None:
    node = sessions.node(kept=(Kept(3, 0, 4),))
    assert sessions.events == [Joined(100.0, node.client, False, HOLDS, (Kept(3, 0, 4),))]
    assert sessions.message_server.clients() == (node.client,)
    assert sessions.message_server.name(node.client) == "north"
    assert node.next() is None


def test_model_is_announced_before_node_joins(sessions) -> None:
    layout = Layout((TensorSpec("weight", "float32", (NUMBERS,)),), 1, "ab" * 32)
    node = Node(sessions, 1)
    sessions.message_server.open(1)
    node.next()
    node.says(Announced(0.0, "x", layout), Joined(0.0, "x", True, HOLDS))
    assert [type(each) for each in sessions.events] == [Announced, Joined]
    assert sessions.events[0] == Announced(sessions.now, node.client, layout)


def test_model_is_sent_once_and_cached(sessions) -> None:
    node = sessions.node()
    sessions.message_server.send(work(node.client))
    np.testing.assert_array_equal(node.next().model[1], MODEL)
    node.says(progress(0))
    sessions.now += 1.0
    assert node.next().model is None
    sessions.message_server.publish(3, MODEL + 1)  # computed again after a checkpoint
    node.says()
    sessions.now += 1.0
    np.testing.assert_array_equal(node.next().model[1], MODEL + 1)
    assert sessions.message_server.settle(node.client).down_bytes == 2 * MODEL.nbytes


def test_work_left_by_lease_is_requested_until_round_closes(sessions) -> None:
    node = sessions.node()
    sessions.message_server.send(work(node.client))
    assert node.next().commands[0].order == (0, 1)
    node.says(progress(1))
    assert node.next() is None, "the round may ask for something else first"
    sessions.now += AGAIN_S
    assert node.next().commands[0].order == (0,)
    sessions.message_server.send(Close(node.client, 5, "synced", True))
    node.says(progress(0))
    assert [each.chunk for each in node.events(Progress)] == [1, 0]
    sessions.now += 10.0
    assert node.next() is None


def test_lease_is_expected_work_time_and_half(sessions) -> None:
    node = sessions.node()
    sessions.message_server.send(work(node.client))
    assert node.next().lease_s == FIRST_LEASE_S
    node.says(progress(0, seconds=40.0), progress(1, seconds=40.0))
    sessions.message_server.send(work(node.client, round=6))
    assert node.next().lease_s == LEASE_RATIO * 10.0 * 4 * 2
    node.says()
    sessions.message_server.send(work(node.client, round=7, lease_s=9.0))
    assert node.next().lease_s == 9.0


@pytest.mark.parametrize("short", ["bf16", "int8"])
def test_codeword_in_low_precision_is_accepted(sessions, short: str) -> None:
    node = sessions.node()
    sessions.message_server.send(work(node.client))
    node.next()
    node.says(progress(0))
    sessions.message_server.send(Reveal(node.client, 5, 0, "local", None, short))
    node.next()
    stream = StreamId("codeword", 5, 0)
    node.gives(stream, shortened(np.ones(NUMBERS, np.float32), Wire(short), stream, node.client))
    np.testing.assert_allclose(sessions.message_server.take(node.client, 5, 0), np.ones(NUMBERS), rtol=1e-6)
    assert sessions.message_server.settle(node.client).up_bytes == HEADER + Form(NUMBERS, short).largest


def test_codeword_is_requested_at_once_and_arrives_verified(sessions) -> None:
    node = sessions.node()
    sessions.message_server.send(work(node.client))
    node.next()
    node.says(progress(0))
    mix = Mix((0,), ((1.0, 0.5),))
    sessions.message_server.send(Reveal(node.client, 5, 0, "coded", mix))
    sessions.message_server.send(Repair(node.client, 5, 2, "other", mix))
    asked = node.next()
    assert asked.commands[0] == work(node.client, order=(), lease_s=0.0)
    assert asked.commands[1:] == (
        Reveal(node.client, 5, 0, "coded", mix),
        Repair(node.client, 5, 2, "other", mix),
    )
    first, second = (StreamId("codeword", 5, attempt) for attempt in (0, 2))
    vector = np.ones(5, np.float32)
    node.says(
        signed_offer_of(first, vector),
        signed_offer_of(second, 2 * vector),
        codewords={first: vector, second: 2 * vector},
    )
    assert [(each.attempt, each.size_bytes) for each in node.events(Codeword)] == [(0, 20), (2, 20)]
    np.testing.assert_array_equal(sessions.message_server.take(node.client, 5, 2), 2 * vector)
    assert sessions.message_server.settle(node.client).up_bytes == 2 * (HEADER + 20)


def lines_of_another(content: RecordDict) -> None:
    content["packet"]["lines"] = [*content["packet"]["lines"], content["packet"]["lines"][0]]


def no_codeword(content: RecordDict) -> None:
    del content["codewords"]


def put(vector: np.ndarray) -> Callable[[RecordDict], None]:
    def spoil(content: RecordDict) -> None:
        content["codewords"]["5-0"] = Array(vector)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (no_codeword, "did not come"),
        (put(np.ones(9, np.float32)), "saw float32"),
        (put(np.ones(10, np.float64)), "saw float64"),
        (put(np.full(10, np.nan, np.float32)), "NaN"),
        (put(np.ones(10, np.float32)), "digest"),
        (put(np.ones(1000, np.float32)), "bytes, needed 40"),
    ],
)
def test_invalid_codeword_is_refused_and_reported_as_failure(sessions, spoil, reason: str) -> None:
    node = sessions.node()
    sessions.message_server.send(work(node.client))
    sessions.message_server.send(Reveal(node.client, 5, 0, "local", None))
    node.next()
    node.gives(StreamId("codeword", 5, 0), np.zeros(NUMBERS, np.float32), spoil=spoil)
    (failed,) = node.events(Failed)
    assert reason in failed.reason
    assert sessions.message_server.refusals.counts["BadVector"] == 1
    assert not node.events(Lost)


def npy(header: bytes, size: int = 40, version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header + bytes(size)


def archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, np.zeros(2, np.float32))
    return file.getvalue()


SHAPED = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%s,), }\n"


@pytest.mark.parametrize(
    "data",
    [
        archive(),
        b"PK\x03\x04" + bytes(50),
        b"PK\x05\x06" + bytes(18),
        b"",
        npy(b"((((((("),
        npy(b"-" * 900),
        npy(b"[" * 900),
        npy(b"\xff\xff"),
        npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (10,), }\n"),
        npy(b"{'descr': [('%s', '<f4')], 'fortran_order': False, 'shape': (10,), }\n" % (b"x" * 900)),
        npy(SHAPED % b"1000000000000"),
        npy(SHAPED % b"-1"),
        npy(SHAPED % b"10", 36),
        npy(SHAPED % b"10", 44),
        npy(SHAPED % b"10", version=b"\x03\x00"),
    ],
    ids=len,
)
def test_invalid_array_bytes_fail_only_their_client(sessions, data) -> None:
    node, stream = sessions.node(), StreamId("codeword", 5, 0)
    sessions.message_server.send(work(node.client))
    sessions.message_server.send(Reveal(node.client, 5, 0, "local", None))
    node.next()
    bad = Array("float32", (NUMBERS,), "numpy.ndarray", data)
    node.gives(
        stream, np.zeros(NUMBERS, np.float32), spoil=lambda content: content["codewords"].update({"5-0": bad})
    )
    assert [each.round for each in node.events(Failed)] == [5]
    assert not node.events(Codeword)
    assert sessions.message_server.refusals.counts == {"BadVector": 1}


def test_other_flower_array_encoding_is_refused() -> None:
    stream, zeros = StreamId("codeword", 5, 0), np.zeros(NUMBERS, np.float32)
    offer, array = signed_offer_of(stream, zeros), Array(zeros)
    np.testing.assert_array_equal(packets.codeword(offer, array, Form(NUMBERS)), zeros)
    with pytest.raises(BadVector, match="torch"):
        packets.codeword(offer, Array("float32", (NUMBERS,), "torch", array.data), Form(NUMBERS))


def test_oversized_work_loses_only_its_client(sessions) -> None:
    node, other = sessions.node(1), sessions.node(2)
    long = tuple((chunk, f"{chunk:05d}" + "x" * 40) for chunk in range(30_000))
    sessions.message_server.send(work(node.client, names=long))
    sessions.message_server.send(work(other.client))
    assert [each[0] for each in sessions.message_server.packets()] == [2]
    assert sessions.events[2:] == [Lost(sessions.now, node.client)]
    assert sessions.message_server.refusals.counts == {"BadMessage": 1}


def test_bytes_are_counted_as_in_session(sessions) -> None:
    node, stream = sessions.node(), StreamId("codeword", 5, 0)
    sessions.message_server.settle(node.client)
    sessions.message_server.send(work(node.client))
    sessions.message_server.send(Reveal(node.client, 5, 0, "local", None))
    told = sum(len(wire.encode(command)) for command in node.next().commands)
    node.cache.clear()
    bad = np.full(NUMBERS, np.nan, np.float32)
    offer = signed_offer_of(stream, bad)
    node.says(offer, codewords={stream: bad})
    counted = sessions.message_server.settle(node.client)
    assert counted.control_bytes == told + len(wire.encode(offer))
    assert (counted.up_bytes, counted.down_bytes) == (HEADER + bad.nbytes, MODEL.nbytes)
    assert counted.refused == 1


def test_unwanted_codeword_is_released(sessions) -> None:
    node, stream = sessions.node(), StreamId("codeword", 5, 0)
    sessions.message_server.send(work(node.client))
    sessions.message_server.send(Reveal(node.client, 5, 0, "local", None))
    node.next()
    node.gives(stream, np.zeros(NUMBERS, np.float32))
    sessions.message_server.forget(node.client, 5, 0)
    with pytest.raises(EdgeFailed, match="not here"):
        sessions.message_server.take(node.client, 5, 0)


def test_names_are_shortened_for_display(sessions) -> None:
    node = Node(sessions, 1)
    sessions.message_server.open(1)
    node.next()
    content = packets.write_answer(
        node.packet, node.who, "\x1b[2Jdevice\n" + "x" * 999, [Joined(0.0, "x", True, HOLDS)], {}
    )
    sessions.message_server.answered(1, lambda asked: packets.read_answer(content, asked, sessions.now))
    assert sessions.message_server.name(node.client) == ("[2Jdevice " + "x" * 999)[:64]


def test_codeword_after_round_end_is_dropped(sessions) -> None:
    node = sessions.node()
    sessions.message_server.send(work(node.client))
    sessions.message_server.send(Reveal(node.client, 5, 0, "local", None))
    node.next()
    sessions.message_server.send(Close(node.client, 5, "approximate", True))
    node.gives(StreamId("codeword", 5, 0), np.zeros(NUMBERS, np.float32))
    assert not node.events(Codeword)
    assert not node.events(Failed)


def test_skipped_round_continues_same_work(sessions) -> None:
    node = sessions.node()
    sessions.message_server.send(work(node.client))
    node.next()
    node.says(progress(0), progress(1))
    sessions.message_server.send(Close(node.client, 5, "skipped", False))
    sessions.message_server.send(Continue(node.client, 6, 8, (1, 0), 600.0))
    (sent,) = node.next().commands
    assert (sent.round, sent.target, sent.order, sent.version) == (6, 8, (1, 0), 3)


def test_failed_packet_loses_client_which_returns_with_kept_work(sessions) -> None:
    node = sessions.node()
    sessions.message_server.send(work(node.client))
    node.next()
    sessions.message_server.failed(1, "code 8")
    assert node.events(Lost) == [Lost(100.0, node.client)]
    assert node.next() is None, "not before a pause"
    sessions.now += 1.0
    assert node.next().commands == ()
    node.says(Joined(0.0, "x", False, HOLDS, (Kept(3, 1, 4),)))
    assert [each.kept for each in node.events(Joined)][1:] == [(Kept(3, 1, 4),)]


def test_pauses_grow_while_node_fails(sessions) -> None:
    sessions.message_server.open(1)
    waits = []
    for _ in range(9):
        began = sessions.now
        while not sessions.message_server.packets():
            sessions.now += 0.5
        waits.append(sessions.now - began)
        sessions.message_server.failed(1, "code 5")
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert sessions.events == []


def test_vanished_node_is_lost_and_gets_no_more_messages(sessions) -> None:
    node = sessions.node()
    sessions.message_server.gone(1)
    assert node.events(Lost) == [Lost(100.0, node.client)]
    sessions.message_server.send(work(node.client))
    assert sessions.message_server.packets() == ()
    assert not sessions.message_server.serves(1)


def test_client_that_changes_node_leaves_first(sessions) -> None:
    first = sessions.node(1)
    second = Node(sessions, 2, first.who)
    sessions.message_server.open(2)
    second.next()
    second.says(Joined(0.0, "x", False, HOLDS))
    assert [type(each) for each in sessions.events] == [Joined, Lost, Joined]
    assert sessions.message_server.clients() == (first.client,)


@pytest.mark.parametrize("off", ["signature", "lines", "another client", "no joined", "no record", "numbers"])
def test_answer_of_other_client_or_packet_is_refused(sessions, off: str) -> None:
    node = sessions.node()
    sessions.message_server.send(work(node.client))
    node.next()
    if off == "another client":
        node.who = sessions.make_identity()
        node.says(progress(0))
    elif off == "signature":
        node.packet = dataclasses.replace(node.packet, nonce=bytes(16))
        node.says(progress(0))
    elif off == "lines":
        node.says(progress(0), spoil=lines_of_another)
    elif off == "no record":
        node.says(spoil=lambda content: content.pop("packet"))
    elif off == "numbers":
        node.says(progress(0), spoil=lambda content: content["packet"].update({"lines": [10**15]}))
    else:
        sessions.message_server.failed(1, "code 2")
        sessions.now += 1.0
        node.next()
        node.says(progress(0))
    assert not node.events(Progress)
    assert len(node.events(Lost)) == 1
    assert sum(sessions.message_server.refusals.counts.values()) == 1


def test_packet_of_other_wire_version_is_refused(sessions) -> None:
    message = packets.write_packet(Packet("run@1", bytes(16), 0.0))
    message["packet"]["version"] = 99
    with pytest.raises(BadMessage, match="wire version 99"):
        packets.read_packet(message, "x")


def test_packet_with_unknown_line_is_refused(sessions) -> None:
    message = packets.write_packet(Packet("run@1", bytes(16), 0.0))
    message["packet"]["lines"] = [b'L[0,"Joined",[]]']
    with pytest.raises(BadMessage, match="known kind"):
        packets.read_packet(message, "x")


def test_answer_signed_with_other_key_is_refused(sessions) -> None:
    node, thief = sessions.node(), sessions.make_identity()
    sessions.message_server.send(work(node.client))
    node.next()

    content = packets.write_answer(node.packet, thief, "", [], {})
    content["packet"]["key"] = node.who.public
    with pytest.raises(NotAdmitted, match="signature"):
        packets.read_answer(content, node.packet, 0.0)


# ---- masked exchanges


def test_keys_are_requested_before_any_work(sessions) -> None:
    node = sessions.node()
    sessions.message_server.send(Open(node.client, 1, b"open"))
    packet = node.next()
    assert packet.commands == (Open(node.client, 1, b"open"),)
    assert packet.model is None
    node.says(Advert(0.0, "x", 1, b"advert"))
    assert node.events(Advert) == [Advert(sessions.now, node.client, 1, b"advert")]
    assert node.next() is None


def test_exchange_is_sent_with_work_and_ring_vector_returns(sessions) -> None:
    node = sessions.node()
    sessions.message_server.send(work(node.client))
    sessions.message_server.send(Begin(node.client, 5, b"begin"))
    packet = node.next()
    assert [type(each) for each in packet.commands] == [Work, Begin]
    node.says(progress(0), progress(1))
    sessions.message_server.send(Reveal(node.client, 5, 0, "masked", None, ring=Ring(NUMBERS + 1, 16)))
    node.next()
    words = np.arange(NUMBERS + 1, dtype="<u2") + np.uint16(65_000)
    node.gives(StreamId("codeword", 5, 0), words)
    assert [each.size_bytes for each in node.events(Codeword)] == [2 * (NUMBERS + 1)]
    assert np.array_equal(sessions.message_server.take(node.client, 5, 0), words)
    sessions.message_server.send(Survivors(node.client, 5, b"agree"))
    assert Survivors(node.client, 5, b"agree") in node.next().commands


@pytest.mark.parametrize("words", [np.zeros(NUMBERS + 1, "<u4"), np.zeros(NUMBERS, "<u2")])
def test_vector_of_other_ring_or_length_is_refused(sessions, words) -> None:
    node = sessions.node()
    sessions.message_server.send(work(node.client))
    sessions.message_server.send(Reveal(node.client, 5, 0, "masked", None, ring=Ring(NUMBERS + 1, 16)))
    node.next()
    node.gives(StreamId("codeword", 5, 0), words)
    (failed,) = node.events(Failed)
    assert "saw" in failed.reason


def test_packet_refused_by_site_is_reported(sessions) -> None:
    node = sessions.node()
    sessions.message_server.send(Open(node.client, 4, b"open"))
    node.next()
    node.says(Failed(0.0, "x", 4, "compare the files"))
    (failed,) = node.events(Failed)
    assert failed.reason == "compare the files"


def test_packets_of_closed_round_are_not_sent(sessions) -> None:
    node = sessions.node()
    sessions.message_server.send(work(node.client, order=()))
    sessions.message_server.send(Survivors(node.client, 5, b"agree"))
    sessions.message_server.send(Close(node.client, 5, "aborted", False))
    assert node.next() is None


def test_leaving_client_is_asked_for_vector_and_let_go(sessions) -> None:
    """It gets no more work, and no packet for a while: its node may be about to end."""
    node = sessions.node()
    server = sessions.message_server
    server.send(work(node.client, kind="local"))
    node.next()
    node.says(Report(0.0, "x", 5, 2, 8, 1.0, 1.0, 0.5), Leaving(0.0, "x", 15.0))
    assert [type(each) for each in sessions.events[-2:]] == [Report, Leaving]
    assert sessions.events[-1].grace_s == 15.0
    sessions.now += AGAIN_S
    assert node.next() is None, "it is not asked for the rest of its work"
    server.send(Reveal(node.client, 5, 0, "local", None))
    assert [type(each) for each in node.next().commands] == [Work, Reveal]
    node.gives(StreamId("codeword", 5), np.ones(NUMBERS, np.float32))
    assert isinstance(sessions.events[-1], Codeword)
    server.send(Close(node.client, 5, "synced", True))
    assert isinstance(sessions.events[-1], Lost)
    sessions.now += LONGEST_PAUSE_S - 1.0
    assert node.next() is None
    sessions.now += 1.0
    assert node.next().commands == (), "it may come again"
    node.says(Joined(0.0, "x", True, HOLDS))
    server.send(Close(node.client, 6, "synced", True))
    assert isinstance(sessions.events[-1], Joined)
