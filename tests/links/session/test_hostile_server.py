"""Test that a client ends its session in one clear line if its server sends without end."""

import numpy as np
import pytest

from fedgc.codecs.model_change import ChangeForm
from fedgc.errors import BadMessage, BadVector
from fedgc.large_vectors import Scratch
from fedgc.links import frames as wire
from fedgc.links.frames import Challenge, StreamId
from fedgc.links.pieces import CHANGE
from fedgc.links.session import channel, inbox
from fedgc.links.session.arrived_models import MOST_WAITING, ArrivedModels
from fedgc.links.session.client import Session
from fedgc.links.session.client_stream import ClientStream
from fedgc.messages import WIRE_VERSION, Close, Failed, Skip, Take


def apart(link) -> Session:
    """Return a session whose thread does not run: the test says what arrives."""
    return Session(link.listener.invite(), link.identity(), link.terms())


def arrive(session: Session, stream: ClientStream, commands: list[Skip | Close | Take]) -> None:
    for sequence, command in enumerate(commands, start=1):
        session.arrived(stream, wire.encode(command, sequence))


@pytest.mark.parametrize(
    ("limit", "most", "command"),
    [
        ("KEPT_LIMIT", 50, Skip("me", 1, 0)),
        ("KEPT_LIMIT", 50, Close("me", 1, "synced", True)),
        ("KEPT_BYTES", 1000, Take("me", 1, tuple(range(50)))),
    ],
)
def test_commands_without_end_are_refused(
    link, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, command: Skip | Close | Take
) -> None:
    monkeypatch.setattr(inbox, limit, most)
    session, stream = apart(link), ClientStream()
    with pytest.raises(BadMessage, match=r"commands of \d+ bytes that wait .* needed at most"):
        arrive(session, stream, [command] * 100)
    assert isinstance(session.receive(0.0), type(command))


def test_listener_that_sends_without_end_ends_session(link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "KEPT_LIMIT", 50)
    session = link.session()
    client = link.event().client
    for _ in range(100):
        link.listener.send(Skip(client, 1, 0))
    link.eventually(lambda: session.ended)
    assert session.ended.startswith("saw 51 commands")
    assert session.receive(0.0) is None


def test_commands_that_are_taken_count_no_more(link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "KEPT_LIMIT", 5)
    session, stream = apart(link), ClientStream()
    for sequence in range(1, 100):
        session.arrived(stream, wire.encode(Skip("me", sequence, 0), sequence))
        taken = session.receive(0.0)
        assert isinstance(taken, Skip)
        assert taken.round == sequence


def test_second_challenge_on_stream_is_refused(link) -> None:
    session, stream = apart(link), ClientStream()
    challenge = wire.encode(Challenge(WIRE_VERSION, bytes(16)))
    session.arrived(stream, challenge)
    with pytest.raises(BadMessage, match="saw a second challenge"):
        session.arrived(stream, challenge)
    assert len(stream.opening) == 1


def test_events_never_acknowledged_end_session(link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "KEPT_LIMIT", 50)
    session = apart(link)
    for round_ in range(60):
        session.send(Failed(0.0, "me", round_, "it failed"))
    assert session.ended == "the other side has not acknowledged 50 lines"


def test_unrequested_changes_are_bounded() -> None:
    models = ArrivedModels(ChangeForm(), Scratch())
    models.numbers = 100
    change = np.zeros(100, np.float32)
    for version in range(1, MOST_WAITING + 1):
        models.enter(StreamId("model", version, CHANGE), change)
    with pytest.raises(BadVector, match="without work for them, needed at most"):
        models.enter(StreamId("model", MOST_WAITING + 1, CHANGE), change)
