"""Test the channel: lines arrive once and in order despite broken streams."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadMessage
from fedgc.links import frames as wire
from fedgc.links.frames import Bye, Heard
from fedgc.links.session import channel
from fedgc.links.session.channel import Channel


def read(frame: bytes) -> wire.Numbered:
    line = wire.decode(frame, {"Bye": Bye, "Heard": Heard}, now=0.0, client="d")
    assert isinstance(line, wire.Numbered)
    return line


class Peer:
    """A channel's other end, which reads frames and remembers what was new."""

    def __init__(self) -> None:
        self.channel = Channel()
        self.got: list[str] = []

    def hear(self, frame: bytes) -> None:
        line = read(frame)
        if line.sequence == 0:
            self.channel.confirm(line.value.sequence)
        elif self.channel.accept(line.sequence):
            self.got.append(line.value.reason)


def move(source: Peer, sink: Peer) -> bool:
    frame = source.channel.next_frame()
    if frame is not None:
        sink.hear(frame)
    return frame is not None


def reopen(left: Peer, right: Peer) -> None:
    heard_left, heard_right = left.channel.heard, right.channel.heard
    left.channel.reopen(heard_right)
    right.channel.reopen(heard_left)


@given(st.lists(st.sampled_from(["say", "say", "left to right", "right to left", "break"]), max_size=80))
def test_messages_arrive_once_and_in_order_across_breaks(steps: list[str]) -> None:
    left, right = Peer(), Peer()
    said: list[str] = []

    for number, step in enumerate(steps):
        if step == "say":
            said.append(str(number))
            left.channel.send(Bye(str(number)))
        elif step == "break":
            left.channel.next_frame()  # on its way when the stream broke: lost
            reopen(left, right)
        elif step == "left to right":
            move(left, right)
        else:
            move(right, left)
    reopen(left, right)
    while move(left, right) or move(right, left):
        pass
    assert right.got == said
    assert not left.channel.waits


def test_acknowledged_messages_are_released() -> None:
    channel = Channel()
    for _ in range(3):
        channel.send(Bye("x"))
    channel.confirm(2)
    channel.reopen(2)
    frame = channel.next_frame()
    assert frame is not None
    assert read(frame).sequence == 3
    assert channel.next_frame() is None


def test_gap_and_unsent_confirmation_are_refused() -> None:
    channel = Channel()
    with pytest.raises(BadMessage, match="saw line 2, needed 1"):
        channel.accept(2)
    with pytest.raises(BadMessage, match="only 0 were sent"):
        channel.confirm(1)


def test_receipt_is_confirmed_once() -> None:
    channel = Channel()
    channel.accept(1)
    frame = channel.next_frame()
    assert frame is not None
    assert read(frame).value == Heard(1)
    assert channel.next_frame() is None


def test_unacknowledged_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "KEPT_BYTES", 1000)
    one = Channel()
    for _ in range(3):
        one.send(Bye("x" * 250))
    with pytest.raises(BadMessage, match=r"not acknowledged .* bytes of lines"):
        one.send(Bye("x" * 250))
    one.confirm(2)  # room again, and no number was left out
    one.send(Bye("x" * 250))
    one.send(Bye("x" * 250))
    frames = iter(one.next_frame, None)
    assert [read(frame).sequence for frame in frames] == [3, 4, 5]


def test_line_that_can_wait_goes_with_next_one_or_at_ping() -> None:
    sender = Channel()
    sender.send(Bye("first"), can_wait=True)
    assert not sender.waits
    assert sender.next_frame() is None
    sender.send(Bye("second"))
    assert [read(sender.next_frame()).value.reason for _ in range(2)] == ["first", "second"]
    sender.send(Bye("third"), can_wait=True)
    sender.hurry()
    assert sender.waits
    assert read(sender.next_frame()).value.reason == "third"


def test_line_that_can_wait_is_sent_again_on_new_stream() -> None:
    sender = Channel()
    sender.send(Bye("first"), can_wait=True)
    sender.reopen(0)
    assert read(sender.next_frame()).value.reason == "first"
