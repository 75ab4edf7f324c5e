"""Test the listener's connections with clients that no code of fedgc's client serves."""

from contextlib import ExitStack
from typing import Any

import pytest

from fedgc.links import frames as wire
from fedgc.links import identity
from fedgc.links.frames import Hello, Ping, Welcome
from fedgc.links.identity import Identity
from fedgc.links.session.certificate import fingerprint
from fedgc.messages import WIRE_VERSION, Held, Joined, Work
from tests.links.conftest import SHORT_GRACE_S
from tests.links.raw_stream import RawStream, framed

BIG = 2_000_000  # numbers: 8 MB, more than the buffers of a socket
SMALL = 4096  # bytes that the system keeps for one that does not read


class Raw(RawStream):
    """An admitted client."""

    def enter(self, link: Any, who: Identity, credential: bytes) -> bytes:
        """Say hello; return the ticket."""
        self.ask()
        challenge = wire.decode(self.read() or b"", wire.FROM_SERVER, now=0.0, client="raw")
        known = fingerprint(link.listener.invite().certificate)
        signed = identity.statement(WIRE_VERSION, "run-1", credential, challenge.value.nonce, known)
        hello = Hello(WIRE_VERSION, "run-1", credential, who.public, who.sign(signed), "raw", 0)
        self.send(wire.encode(hello))
        welcome = wire.decode(self.read() or b"", wire.FROM_SERVER, now=0.0, client="raw").value
        assert isinstance(welcome, Welcome)
        return welcome.ticket


@pytest.fixture
def deaf(make_link) -> Any:
    """A link, a client that does not read the model that is sent to it, its stream and its ticket."""
    link = make_link(BIG, **{"grace_s": SHORT_GRACE_S, "piece_kb": 1024})
    who, invitation = link.identity(), link.listener.invite()
    with Raw(invitation.address, invitation.certificate, buffer=SMALL) as stream:
        ticket = stream.enter(link, who, invitation.token)
        link.listener.publish(1, link.vector())
        link.listener.send(Work(who.client, 1, 1, 1, (0,), ((0, "chunk-0"),), 0, 60.0))
        link.eventually(lambda: any(each._is_writing for each in link.listener._streams._open))
        yield link, who, stream, ticket


def test_left_connections_are_closed_while_unread(deaf) -> None:
    link, who, stream, ticket = deaf
    address, certificate = link.listener.invite().address, link.listener.invite().certificate
    left = [stream]
    for _ in range(3):
        left.append(Raw(address, certificate, buffer=SMALL))
        left[-1].enter(link, who, ticket)
    link.eventually(lambda: not link.listener._streams._open)
    for each in left[1:]:
        each.__exit__()


def test_rest_on_left_connection_harms_no_new_one(deaf) -> None:
    link, who, stream, ticket = deaf
    address, certificate = link.listener.invite().address, link.listener.invite().certificate
    with Raw(address, certificate) as second:
        second.enter(link, who, ticket)
        pings = b"".join(framed(wire.encode(Ping())) for _ in range(3))
        stream.line.sendall(pings[:-6])
        stream.line.sendall(pings[-6:] + b"noise")
        second.send(wire.encode(Joined(0.0, "me", True, (Held("chunk-0", 8),)), 1))
        assert link.event(Joined).client == who.client
    assert not link.listener.refused


def test_client_that_comes_back_again_and_again_holds_two_connections(make_link) -> None:
    """One carries its session, and the one before may still be read; it closes none of them."""
    link = make_link()
    who, invitation = link.identity(), link.listener.invite()
    with ExitStack() as stack:

        def entered(credential: bytes) -> bytes:
            raw = stack.enter_context(Raw(invitation.address, invitation.certificate))
            return raw.enter(link, who, credential)

        ticket = entered(invitation.token)
        for _ in range(5):
            entered(ticket)
        link.eventually(lambda: len(link.listener._streams._open) == 2)
        assert link.listener.clients() == (who.client,)
    link.eventually(lambda: not link.listener._streams._open and not link.listener._streams._left)
