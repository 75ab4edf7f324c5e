"""Test the limits of one client on the message link: it is excluded, and joins again after the pause."""

import dataclasses

import pytest

from fedgc.links.message.server import LONGEST_PAUSE_S
from fedgc.links.quotas import MOST_CHUNKS, MOST_REFUSALS, Quotas
from fedgc.messages import Held, Joined, Lost, Reveal
from tests.links.message.test_server import HOLDS, Node, SessionTable, progress, work


@pytest.fixture
def sessions(link) -> SessionTable:
    return SessionTable(link.identity)


def limited(sessions: SessionTable, quotas: Quotas) -> list[str]:
    """Set the limits of a server; return the exclusions that it will audit."""
    told: list[str] = []

    def audit(kind: str, _: str, what: str) -> None:
        if kind == "excluded":
            told.append(what)

    server = sessions.message_server
    server._around = dataclasses.replace(server._around, quotas=quotas, audit=audit)
    return told


def test_answer_of_too_many_lines_excludes_client(sessions) -> None:
    told = limited(sessions, Quotas(lines_per_s=1.0))
    node = sessions.node()
    sessions.message_server.send(work(node.client))
    node.next()
    node.says(*[progress(0)] * 11)
    assert [type(event) for event in node.events()] == [Joined, Lost]
    assert told == ["excluded for 5 s: it sent more than 1 lines a second, and more than 10 at once"]
    sessions.now += 2.0
    node.next()
    node.says(Joined(0.0, "x", True, HOLDS))
    assert len(node.events(Joined)) == 1, "it is still excluded"
    sessions.now += 10.0
    node.next()
    node.says(Joined(0.0, "x", True, HOLDS))
    assert len(node.events(Joined)) == 2


def test_join_with_too_many_chunks_does_not_reach_run(sessions) -> None:
    told = limited(sessions, Quotas())
    node = Node(sessions, 1)
    sessions.message_server.open(1)
    node.next()
    node.says(Joined(0.0, "x", True, tuple(Held(f"{at}", 1) for at in range(MOST_CHUNKS + 1))))
    assert not node.events()
    assert told == ["excluded for 5 s: it announced 20001 chunks, needed at most 20000"]


def test_codewords_that_do_not_come_are_counted(sessions) -> None:
    told = limited(sessions, Quotas())
    node = sessions.node()
    sessions.message_server.send(work(node.client))
    node.next()
    node.says(progress(0))
    for attempt in range(int(MOST_REFUSALS) + 1):
        sessions.message_server.send(Reveal(node.client, 5, attempt, "local", None))
    node.next()
    node.says()
    assert node.events(Lost)
    assert "messages to refuse" in told[0]


def test_excluded_client_is_lost_on_demand_of_run(sessions) -> None:
    told = limited(sessions, Quotas())
    node = sessions.node()
    sessions.message_server.exclude(node.client, "rounds waited for it")
    assert node.events(Lost)
    assert told == ["excluded for 5 s: rounds waited for it"]
    sessions.now += LONGEST_PAUSE_S
    node.next()
    node.says(Joined(0.0, "x", True, HOLDS))
    assert len(node.events(Joined)) == 2
