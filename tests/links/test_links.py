"""Test several links as one: a client is on the link over which it joined last."""

import logging

import numpy as np
import pytest

from fedgc.errors import EdgeFailed
from fedgc.links.byte_counts import Amounts
from fedgc.links.links import Links
from fedgc.messages import Codeword, Failed, Held, Joined, Lost, Scored, Skip


class PlainLink:
    def __init__(self, name: str) -> None:
        self.called = name
        self.sent: list[object] = []
        self.models: list[int] = []
        self.taken: list[tuple[str, int, int]] = []
        self.forgotten: list[tuple[str, int, int]] = []

    def publish(self, version: int, vector, change=None) -> None:
        self.models.append(version)

    def send(self, command) -> None:
        self.sent.append(command)

    def take(self, client: str, round_: int, attempt: int):
        if (client, round_, attempt) in self.taken:
            raise EdgeFailed("it is not here")
        self.taken.append((client, round_, attempt))
        return np.full(1, round_, np.float32)

    def forget(self, client: str, round_: int, attempt: int) -> None:
        self.forgotten.append((client, round_, attempt))

    def settle(self, client: str) -> Amounts:
        return Amounts(up_bytes=2, control_bytes=3)

    def name(self, client: str) -> str:
        return self.called

    def link(self, client: str) -> str:
        return self.called

    def clients(self) -> tuple[str, ...]:
        return ()

    def exclude(self, client: str, reason: str) -> None:
        self.sent.append((client, reason))


def joined(live: bool) -> Joined:
    return Joined(0.0, "a", live, (Held("c", 1),))


@pytest.fixture
def both():
    events = []
    links = Links(events.append, logging.getLogger("test"))
    made = {"session": PlainLink("session"), "messages": PlainLink("messages")}
    links.add(made)
    return links, made, events


def test_client_that_changes_link_is_lost_and_joins_on_new_link(both) -> None:
    links, made, events = both
    links.heard("messages")(joined(False))
    links.heard("session")(joined(True))
    links.heard("messages")(Lost(5.0, "a"))  # of the link that it has left
    assert events == [joined(False), Lost(0.0, "a"), joined(True)]
    links.send(Skip("a", 1, 0))
    assert made["session"].sent == [Skip("a", 1, 0)]
    assert made["messages"].sent == []
    assert (links.link("a"), links.name("a"), links.clients()) == ("session", "session", ("a",))


def test_lost_client_may_join_over_any_link(both) -> None:
    links, _, events = both
    links.heard("session")(joined(True))
    links.heard("session")(Lost(1.0, "a"))
    assert links.clients() == ()
    links.heard("messages")(joined(False))
    assert events == [joined(True), Lost(1.0, "a"), joined(False)]
    assert links.link("a") == "messages"


def test_codeword_is_taken_once_from_its_link(both) -> None:
    links, _, _ = both
    links.heard("messages")(joined(False))
    links.heard("messages")(Codeword(1.0, "a", 4, 0))
    links.heard("session")(joined(True))
    assert links.take("a", 4, 0) == 4.0
    with pytest.raises(EdgeFailed, match="not here"):
        links.take("a", 4, 0)


def test_codeword_is_forgotten_by_its_link(both) -> None:
    links, made, events = both
    links.heard("messages")(joined(False))
    links.heard("messages")(Codeword(1.0, "a", 4, 0))
    links.forget("a", 4, 0)
    links.forget("a", 4, 0)
    assert made["messages"].forgotten == [("a", 4, 0)]
    with pytest.raises(EdgeFailed, match="not here"):
        links.take("a", 4, 0)
    links.heard("session")(joined(True))
    heard = len(events)
    links.heard("messages")(Codeword(2.0, "a", 5, 0))  # of the link that it has left: the event is dropped
    assert len(events) == heard
    assert made["messages"].forgotten == [("a", 4, 0), ("a", 5, 0)]


def test_models_go_to_every_link_and_bytes_are_summed(both) -> None:
    links, made, _ = both
    links.publish(7, np.zeros(1, np.float32))
    assert [link.models for link in made.values()] == [[7], [7]]
    assert links.settle("a") == Amounts(up_bytes=4, control_bytes=6)
    assert links.name("nobody") == links.link("nobody") == ""
    links.send(Skip("nobody", 1, 0))


def test_client_failure_reason_is_one_readable_line(both) -> None:
    links, _, events = both
    links.heard("session")(joined(True))
    links.heard("session")(Failed(1.0, "a", 1, "no disk\nround 9 synced \x1b[2J"))
    assert events[-1].reason == "no disk round 9 synced [2J"


def test_validation_problem_is_one_readable_line(both) -> None:
    links, _, events = both
    links.heard("session")(joined(True))
    links.heard("session")(Scored(1.0, "a", 1, 1, (), "no disk\nround 9 synced \x1b[2J"))
    assert events[-1].problem == "no disk round 9 synced [2J"


def test_client_is_excluded_on_link_that_it_uses(both) -> None:
    links, made, _ = both
    links.heard("messages")(joined(False))
    links.exclude("a", "too slow")
    links.exclude("b", "it never joined")
    assert (made["messages"].sent, made["session"].sent) == ([("a", "too slow")], [])
