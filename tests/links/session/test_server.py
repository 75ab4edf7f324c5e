"""Test how the listener hands events to a driver that is slower than it."""

import time

import pytest

from fedgc.errors import BadVector
from fedgc.links.session import server
from fedgc.messages import Codeword, Failed, Joined, Reveal
from tests.links.conftest import WAIT_S

CLIENTS = 6


@pytest.fixture
def upload(link):
    """Return a function by which all clients upload at once."""
    clients = {}
    for _ in range(CLIENTS):
        session = link.session()
        clients[link.event(Joined).client] = session

    def upload_all() -> None:
        for client in clients:
            link.listener.send(Reveal(client, 1, 0, "local", None))
        for session in clients.values():
            assert isinstance(link.command(session), Reveal)
            session.offer(1, 0, link.vector())

    return upload_all


def test_listener_waits_once_where_driver_takes_nothing(link, upload, monkeypatch) -> None:
    waits = []
    wait = link.listener._keeps_up.wait
    monkeypatch.setattr(link.listener._keeps_up, "wait", lambda seconds: waits.append(wait(seconds)))
    for name in ("AHEAD", "TOGETHER"):
        monkeypatch.setattr(server, name, 1)
    upload()
    for _ in range(CLIENTS):
        link.event(Codeword)
    link.session()
    link.event(Joined)
    assert waits == [False]


def test_listener_receives_few_codewords_ahead_of_driver(link, upload, monkeypatch) -> None:
    for name, value in (("AHEAD", 2), ("TOGETHER", 1), ("AHEAD_S", WAIT_S)):
        monkeypatch.setattr(server, name, value)
    upload()
    waiting = [link.event(Codeword) for _ in range(3)]
    time.sleep(0.5)  # the others have sent theirs too
    most = link.listener.untaken
    for _ in range(CLIENTS):
        codeword = waiting.pop() if waiting else link.event(Codeword)
        link.listener.take(codeword.client, 1, 0)
        most = max(most, link.listener.untaken)
    assert most == 3


def test_event_that_cannot_be_emitted_costs_no_other_client(link, upload, monkeypatch) -> None:
    emit, broken = link.listener._emit, []

    def emit_all_but_first(event: object) -> None:
        if isinstance(event, Codeword) and not broken:
            broken.append(event)
            raise KeyError(event.client)
        emit(event)

    monkeypatch.setattr(link.listener, "_emit", emit_all_but_first)
    upload()
    for _ in range(CLIENTS - 1):
        link.event(Codeword)
    assert link.listener.refused == {"Unexpected KeyError": 1}


def test_codeword_without_room_fails_and_costs_no_other_client(link, upload, monkeypatch) -> None:
    emit, without_room = link.listener._emit, []

    def emit_all_but_first(event: object) -> None:
        if isinstance(event, Codeword) and not without_room:
            without_room.append(event.client)
            raise BadVector("no room")
        emit(event)

    monkeypatch.setattr(link.listener, "_emit", emit_all_but_first)
    upload()
    heard = [link.event() for _ in range(CLIENTS)]
    assert sum(isinstance(event, Codeword) for event in heard) == CLIENTS - 1
    assert [event.client for event in heard if isinstance(event, Failed)] == without_room
    assert link.listener.untaken == CLIENTS - 1
