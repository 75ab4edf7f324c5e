"""Test that a registered node is one client at a time, and that none stays whose key is revoked."""

import pytest

from fedgc.links.message.grid_loop import GONE_S, POLL_S
from fedgc.links.message.invitation import invited
from fedgc.links.session.client import Session
from fedgc.messages import Held, Joined, Lost
from tests.links.message.test_grid_loop import House, task  # noqa: F401  every grid loop needs the fixture

LONGEST_WAIT = 80  # turns: pauses grow to 60 s


@pytest.fixture
def house(link) -> House:
    return House(link, link.listener, message_server=False, run="run-1")


def opens(link, message, who=None, address: str = "") -> tuple[Session, str]:
    """Answer an invitation with a session of a client, by default of a new key; return both."""
    invitation = invited(message.content)
    if address:
        object.__setattr__(invitation, "address", address)
    session = link.open(Session(invitation, who or link.identity(), link.terms()))
    session.send(Joined(0.0, "me", True, (Held("a", 1),)))
    return session, link.event(Joined).client


def next_invitation(house: House):
    """Return what the node is sent next."""
    return next(filter(None, (house.turn() for _ in range(LONGEST_WAIT))))[0]


def test_answer_of_node_ends_its_open_session(link, house) -> None:
    (message,) = house.turn()
    for _ in range(3):
        session, client = opens(link, message)
        house.session_ends(message, reached=True)
        house.turn()
        assert link.event(Lost).client == client
        assert link.listener.clients() == ()
        link.eventually(lambda: session.ended)  # noqa: B023  called at once
        assert session.ended == "the session is ended: its Flower message is answered"
        message = next_invitation(house)


def test_session_whose_message_is_answered_cannot_come_back(link, house, make_relay) -> None:
    relay = make_relay(link)
    (message,) = house.turn()
    session, client = opens(link, message, address=relay.address)
    relay.refuse()
    link.eventually(lambda: link.listener._sessions.peers[client].stream is None)
    house.session_ends(message, reached=True)
    house.turn()
    relay.accept()
    link.eventually(lambda: session.ended)
    assert "its token or ticket is not one of this run" in session.ended


def test_client_that_has_ended_its_session_begins_another(link, house) -> None:
    who = link.identity()
    (message,) = house.turn()
    for _ in range(2):
        session, client = opens(link, message, who)
        session.end("the lease is over")
        assert link.event(Lost).client == client == who.client
        house.session_ends(message, reached=True)
        message = next_invitation(house)
    assert session.ended == "the lease is over"


def test_client_whose_node_is_gone_is_lost_after_minutes(link, house) -> None:
    (message,) = house.turn()
    session, client = opens(link, message)
    house.grid.nodes = []
    house.turn()
    house.turn(GONE_S - 1.0)
    assert link.listener.clients() == (client,), "its heartbeats may fail"
    house.turn()
    assert link.event(Lost).client == client
    link.eventually(lambda: session.ended)
    assert session.ended.endswith("its SuperNode has been away for 5 minutes, or its key is revoked")


def test_node_that_comes_back_in_time_keeps_its_session(link, house) -> None:
    (message,) = house.turn()
    session, client = opens(link, message)
    house.grid.nodes = []
    house.turn(GONE_S - 1.0)
    house.grid.nodes = [1]
    (again,) = house.turn(POLL_S)
    house.turn(GONE_S + 1.0)
    assert link.listener.clients() == (client,)
    assert house.grid_loop.explained() == ""
    _, other = opens(link, again)
    house.turn()
    assert link.event(Lost).client == client, "a node has one session"
    assert link.listener.clients() == (other,)
    link.eventually(lambda: session.ended)


@pytest.mark.parametrize("how", ["the node was away", "the message has expired"])
def test_session_outlives_message_that_flower_gives_up(link, house, how: str) -> None:
    (message,) = house.turn()
    _, client = opens(link, message)
    if how == "the node was away":
        house.fails(message, 5)
        house.turn()
    else:
        house.turn(house.ways.ttl_s + 100.0)
    again = next_invitation(house)
    assert link.listener.clients() == (client,)
    _, other = opens(link, again)
    house.turn()
    assert link.event(Lost).client == client, "a node has one session"
    assert link.listener.clients() == (other,)
