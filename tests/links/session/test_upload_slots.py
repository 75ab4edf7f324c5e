"""Test upload slots: a fixed number at once, in order of request, without starvation."""

from hypothesis import given
from hypothesis import strategies as st

from fedgc.links.session.upload_slots import Slots


@given(
    count=st.integers(1, 3),
    steps=st.lists(st.tuples(st.sampled_from(["ask", "free"]), st.integers(0, 6)), max_size=60),
)
def test_slots_are_never_overdrawn_and_every_client_starts_once(
    count: int, steps: list[tuple[str, int]]
) -> None:
    slots: Slots[int] = Slots(count)
    sending: set[int] = set()
    waiting: list[int] = []
    for step, name in steps:
        if step == "ask":
            if name not in sending and name not in waiting:
                waiting.append(name)
            begins = slots.ask(name)
        else:
            sending.discard(name)
            waiting = [each for each in waiting if each != name]
            begins = slots.free(name)
        expected = waiting[: max(0, count - len(sending))]
        assert begins == expected
        waiting = waiting[len(expected) :]
        sending |= set(expected)
        assert len(sending) <= count
        assert slots.sending == sending


def test_client_that_lost_stream_comes_first() -> None:
    slots: Slots[str] = Slots(1)
    slots.ask("a")
    slots.ask("b")
    slots.ask("c", first=True)
    assert slots.free("a") == ["c"]


def test_slow_client_requeues_or_keeps_slot_if_none_wait() -> None:
    slots: Slots[str] = Slots(1)
    slots.ask("a")
    assert slots.turn("a") == []
    assert slots.sending == {"a"}
    slots.ask("b")
    slots.ask("c")
    assert slots.turn("a") == ["b"]
    assert slots.turn("a") == []
    assert [slots.free("b"), slots.free("c"), slots.free("a")] == [["c"], ["a"], []]


def test_late_uploads_have_slots_of_their_own() -> None:
    slots: Slots[str] = Slots(1)
    for name in ("slow", "slower", "slowest", "quick"):
        slots.ask(name)
    assert slots.set_late(["slow", "slower", "slowest"]) == ["quick"]
    assert slots.ask("next") == []
    assert slots.turn("slow") == ["slower"]
    assert [slots.free(each) for each in ("quick", "slower", "slowest")] == [["next"], ["slowest"], ["slow"]]
