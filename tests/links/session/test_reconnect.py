"""Test broken connections: no loss, no duplicates, and absent clients are lost."""

import math
import socket
import ssl
import struct
import time
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

from fedgc.errors import BadVector
from fedgc.links import frames as wire
from fedgc.links.session import streams
from fedgc.links.session.client import Session
from fedgc.links.session.connection import HEAD_LIMIT, PATH, PROTOCOL
from fedgc.messages import Codeword, Held, Joined, Loaded, Lost, Progress, Refuse, Reveal, Skip, Work
from tests.links.conftest import SHORT_GRACE_S, WAIT_S
from tests.links.raw_stream import RawStream

BIG = 2_000_000  # numbers: 8 MB, many pieces of 64 KiB


def work(client: str) -> Work:
    return Work(client, 1, 0, 4, (0,), ((0, "chunk-0"),), 7, 60.0)


def progress(number: int) -> Progress:
    return Progress(0.0, "me", 1, number, 4, 0.5, 32, 1.0, 0.5)


def test_lines_of_both_directions_survive_cuts_in_order(make_link, make_relay) -> None:
    link = make_link()
    relay = make_relay(link)
    session = link.session(address=relay.address)
    client = link.event(Joined).client
    for number in range(60):
        session.send(progress(number))
        link.listener.send(Skip(client, 1, number))
        if number % 15 == 7:
            relay.cut()
    assert [link.event(Progress).chunk for _ in range(60)] == list(range(60))
    assert [link.command(session).chunk for _ in range(60)] == list(range(60))
    assert link.events.empty()
    assert relay.connections > 1


@pytest.mark.parametrize("after", [200_000, 4_000_000, 7_990_000])
def test_cut_upload_resumes_at_first_missing_byte(make_link, make_relay, after: int) -> None:
    link = make_link(BIG, **{"piece_kb": 64})
    relay = make_relay(link)
    session = link.session(address=relay.address)
    client = link.event(Joined).client
    link.listener.send(Reveal(client, 1, 0, "local", None))
    link.command(session)
    relay.cut_after = after
    codeword = link.vector()
    session.offer(1, 0, codeword)
    told = link.event(Codeword)
    assert told.size_bytes == codeword.nbytes
    np.testing.assert_array_equal(link.listener.take(client, 1, 0), codeword)
    assert relay.connections > 1
    twice = link.listener.settle(client).up_bytes - codeword.nbytes
    assert twice < 2_000_000, "what had arrived was sent again"
    assert link.events.empty()


@pytest.mark.parametrize("after", [200_000, 4_000_000, 7_990_000])
def test_cut_download_resumes_at_first_missing_byte(make_link, make_relay, after: int) -> None:
    link = make_link(BIG, **{"piece_kb": 64})
    relay = make_relay(link)
    session = link.session(address=relay.address)
    client = link.event(Joined).client
    relay.cut_after_down = after
    model = link.vector()
    link.listener.publish(0, model)
    link.listener.send(work(client))
    assert link.command(session) == work(client)
    np.testing.assert_array_equal(session.fresh_model(0), model)
    assert relay.connections > 1
    assert isinstance(link.passing.get(timeout=WAIT_S), Loaded)
    moved = link.listener.settle(client)
    assert moved.down_bytes - model.nbytes < 2_000_000
    assert moved.download_s > 0


def test_upload_resumes_while_old_connection_is_open(make_link, make_relay) -> None:
    link = make_link(BIG, **{"grace_s": 4.0, "piece_kb": 64, "upload_slots": 1})
    relay = make_relay(link)
    session = link.session(address=relay.address)
    client = link.event(Joined).client
    link.listener.send(Reveal(client, 1, 0, "local", None))
    link.command(session)
    relay.hold_after = 2_000_000
    codeword = link.vector()
    session.offer(1, 0, codeword)
    link.event(Codeword)
    np.testing.assert_array_equal(link.listener.take(client, 1, 0), codeword)
    assert relay.connections > 1


def test_lost_welcome_does_not_exclude_client(make_link, make_relay) -> None:
    link = make_link()
    relay = make_relay(link)
    relay.cut_after = 2_000  # about where the hello of this client has passed and nothing else
    session = link.session(address=relay.address)
    link.event(Joined)
    assert not session.ended
    assert link.events.empty()


def test_absent_client_is_lost_only_after_grace_time(make_link, make_relay) -> None:
    link = make_link(**{"grace_s": SHORT_GRACE_S})
    relay = make_relay(link)
    session = link.session(address=relay.address)
    client = link.event(Joined).client
    away = time.monotonic()
    relay.refuse()
    lost = link.event(Lost)
    assert lost.client == client
    assert lost.now - away >= SHORT_GRACE_S
    link.eventually(lambda: session.receive(0.01) or session.ended)


def test_silently_gone_client_is_found_by_keepalive(make_link, make_relay) -> None:
    link = make_link(**{"grace_s": SHORT_GRACE_S})
    relay = make_relay(link)
    session = link.session(address=relay.address)
    client = link.event(Joined).client
    relay.stall()
    assert link.event(Lost).client == client
    link.eventually(lambda: session.receive(0.01) or session.ended)


def say_both_ways(link, session, client: str, number: int) -> None:
    session.send(progress(number))
    link.listener.send(Skip(client, 1, number))
    assert link.event(Progress).chunk == link.command(session).chunk == number


@pytest.mark.slow
def test_silent_session_survives_middlebox_idle_timeout(make_link, make_relay) -> None:
    link = make_link(
        **{"grace_s": 8.0}
    )  # a ping every 2 s; 60 s at most; middleboxes forget after 5 minutes or more
    relay = make_relay(link)
    relay.forgets_s = 6.0
    session = link.session(address=relay.address)
    client = link.event(Joined).client
    for number in range(2):
        say_both_ways(link, session, client, number)
        assert session.receive(1.5 * relay.forgets_s) is None
    say_both_ways(link, session, client, 2)
    assert relay.connections == 1
    assert link.events.empty()


def test_early_middlebox_timeout_loses_no_messages(make_link, make_relay) -> None:
    link = make_link(**{"grace_s": 4.0})
    relay = make_relay(link)
    session = link.session(address=relay.address)
    client = link.event(Joined).client
    relay.forgets_s = 0.3
    link.eventually(lambda: relay.connections > 1)
    relay.forgets_s = math.inf
    say_both_ways(link, session, client, 0)
    assert link.events.empty()


def test_suspended_machine_does_not_count_own_pause_as_silence(make_link, make_relay) -> None:
    link = make_link(**{"grace_s": SHORT_GRACE_S})
    relay, slow = make_relay(link), [1.0]  # how many seconds pass for others while one does here
    began = time.monotonic()
    terms = replace(link.terms(), clock=lambda: began + slow[0] * (time.monotonic() - began))
    session = link.open(
        Session(replace(link.listener.invite(), address=relay.address), link.identity(), terms)
    )
    session.send(Joined(0.0, "me", True, (Held("chunk-0", 8),)))
    client = link.event(Joined).client
    slow[0] = 1000.0
    for _ in range(4):
        heard = session._stream.heard
        link.eventually(lambda heard=heard: session._stream.heard > heard)
    link.listener.send(Skip(client, 1, 0))
    assert link.command(session) == Skip(client, 1, 0)
    assert relay.connections == 1


def test_ticket_is_void_after_client_was_lost(make_link, make_relay) -> None:
    link = make_link(**{"grace_s": SHORT_GRACE_S})
    relay = make_relay(link)
    session = link.session(address=relay.address)
    link.event(Joined)
    link.eventually(lambda: session._credential != session._invitation.token)
    session._terms = type(session._terms)(**{**_fields(session), "grace_s": 1000.0})
    relay.refuse()
    link.event(Lost)
    relay.accept()
    link.eventually(lambda: session.ended)
    assert "ticket" in session.ended


def test_token_is_void_after_use(link) -> None:
    first = link.session()
    link.event(Joined)
    link.eventually(lambda: first._credential != first._invitation.token)
    thief = link.open(Session(first._invitation, link.identity(), link.terms()))
    link.eventually(lambda: thief.ended)
    assert "used before" in thief.ended
    assert not first.ended
    assert link.listener.refused["NotAdmitted"] == 1


def test_new_process_of_client_replaces_old_one(link) -> None:
    who = link.identity()
    link.session(who)
    link.event(Joined)
    link.session(who)
    assert link.event(Joined).client == who.client  # it was never lost
    assert link.listener.clients() == (who.client,)


def test_slot_of_disconnected_client_goes_to_next(make_link, make_relay) -> None:
    link = make_link(BIG, **{"upload_slots": 1, "piece_kb": 64})
    relay = make_relay(link)
    first = link.session(address=relay.address)
    ours = link.event(Joined).client
    second = link.session()
    theirs = link.event(Joined).client
    for client, session in ((ours, first), (theirs, second)):
        link.listener.send(Reveal(client, 1, 0, "local", None))
        link.command(session)
    relay.cut_after = 3_000_000
    relay.stays_away = True
    first.offer(1, 0, link.vector())
    link.eventually(lambda: not relay.is_open)
    second.offer(1, 0, link.vector(seed=1))
    assert link.event(Codeword).client == theirs
    link.listener.forget(theirs, 1, 0)
    relay.accept()
    assert link.event(Codeword).client == ours
    np.testing.assert_array_equal(link.listener.take(ours, 1, 0), link.vector())


def test_refusal_keeps_codeword_of_same_round(link) -> None:
    session = link.session()
    client = link.event(Joined).client
    link.listener.send(Reveal(client, 1, 0, "local", None))
    link.command(session)
    session.offer(1, 0, link.vector())
    link.listener.send(Refuse(client, 1, "a copy that came too late"))
    assert link.event(Codeword).client == client


def _fields(session: Session) -> dict[str, object]:
    return {name: getattr(session._terms, name) for name in session._terms.__dataclass_fields__}


def test_malformed_frames_are_refused_and_harm_no_client(link) -> None:
    other = link.session()
    link.event(Joined)
    for frame, kind in ((b"GET / HTTP/1.1", "BadMessage"), (b'L[0,"Hello",[1]]', "BadMessage")):
        before = link.listener.refused[kind]
        answers = raw_stream(link, frame)
        assert any(b"Denied" in answer for answer in answers)
        assert link.listener.refused[kind] == before + 1
    link.listener.send(Skip(link.listener.clients()[0], 1, 0))
    assert link.command(other)


def test_silent_stream_is_ended(make_link) -> None:
    link = make_link(**{"grace_s": SHORT_GRACE_S})
    assert len(raw_stream(link, None)) == 1  # the challenge
    assert link.listener.refused == {"TimeoutError": 1}


@pytest.mark.parametrize("size", [0, wire.HELLO_LIMIT + 1, 2**32 - 1])
def test_message_of_refused_length_is_not_read(link, size: int) -> None:
    invitation = link.listener.invite()
    with RawStream(invitation.address, invitation.certificate) as stream:
        stream.ask()
        stream.line.sendall(struct.pack("<I", size) + bytes(1000))
        *_, answer = stream.messages()
    assert f"a message of {size} bytes: needed 1 to {wire.HELLO_LIMIT}".encode() in answer
    assert link.listener.refused == {"BadMessage": 1}


def test_admitted_client_may_send_longer_messages_than_hello(link) -> None:
    session = link.session(says_joined=False)
    holds = tuple(Held(f"chunk-{number}", 8) for number in range(5000))
    session.send(Joined(0.0, "me", True, holds))
    assert link.event(Joined).holds == holds


def test_other_paths_and_protocols_are_not_found(link) -> None:
    invitation = link.listener.invite()
    for path, protocol in (("/", PROTOCOL), (PATH, "websocket"), (PATH + "?x", PROTOCOL)):
        with RawStream(invitation.address, invitation.certificate) as stream:
            assert stream.ask(path, protocol) == "HTTP/1.1 404 Not Found"
            assert stream.line.recv(100) == b"", "the listener ends it"
    assert not link.listener.refused


def test_endless_request_is_refused(link) -> None:
    invitation = link.listener.invite()
    with RawStream(invitation.address, invitation.certificate) as stream:
        stream.line.sendall(b"GET / HTTP/1.1\r\n" + b"x" * 10 * HEAD_LIMIT)
        while stream.line.recv(4096):
            pass
    link.eventually(lambda: link.listener.refused == {"BadMessage": 1})


@pytest.mark.parametrize("change", ["version", "run", "signature"])
def test_invalid_hello_is_not_admitted(link, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"run": "another run"} if change == "run" else {}
    if change == "version":
        monkeypatch.setattr("fedgc.links.session.client.WIRE_VERSION", 99)
    if change == "signature":
        monkeypatch.setattr("fedgc.links.identity.Identity.sign", lambda *_: bytes(64))
    session = link.session(**changes)
    link.eventually(lambda: session.ended)
    assert {"version": "wire version", "run": "another run", "signature": "signature"}[
        change
    ] in session.ended
    assert not link.listener.clients()


def raw_stream(link, frame: bytes | None) -> list[bytes]:
    """Open a stream without any of our own client, send one frame, return all answers."""
    invitation = link.listener.invite()
    with RawStream(invitation.address, invitation.certificate) as stream:
        assert stream.ask() == "HTTP/1.1 101 Switching Protocols"
        if frame is not None:
            stream.send(frame)
        return list(stream.messages())


def test_too_many_unknown_connections_close_oldest_and_no_client(make_link, monkeypatch) -> None:
    monkeypatch.setattr(streams, "MOST_UNAUTHENTICATED", 3)
    link = make_link()
    address = link.listener.invite()
    with ExitStack() as stack:
        silent = []
        for _ in range(3):
            silent.append(stack.enter_context(RawStream(address.address, address.certificate)))
            silent[-1].ask()
            silent[-1].read()  # its challenge: it is counted
        session = link.session()
        link.event(Joined)
        assert not session.ended
        assert silent[0].read() is None
        assert link.listener.refused == {"TimeoutError": 1}
        for stream in silent[1:]:
            stream.send(b"L[]")
            assert b"Denied" in stream.read()


@pytest.mark.parametrize("secure", [False, True], ids=["before TLS", "after TLS"])
def test_connection_without_stream_is_closed(make_link, secure: bool) -> None:
    link = make_link(**{"grace_s": SHORT_GRACE_S})
    invitation = link.listener.invite()
    host, port = invitation.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as plain:
        if not secure:
            while plain.recv(4096):
                pass
            return
        trusted = ssl.create_default_context(cadata=invitation.certificate.decode())
        trusted.check_hostname = False
        with trusted.wrap_socket(plain) as ours:
            while ours.recv(4096):
                pass
    assert not link.listener.refused


class Spoiled:
    """A vector that can be read in part."""

    size, dtype = BIG, np.dtype(np.float32)

    def __getitem__(self, part: slice) -> np.ndarray:
        if part.stop > BIG // 2:
            raise BadVector("update: saw it changed")
        return np.ones(part.stop - part.start, np.float32)


def test_session_ends_when_vector_can_no_longer_be_read(make_link) -> None:
    link = make_link(BIG, **{"piece_kb": 64})
    session = link.session()
    client = link.event(Joined).client
    link.listener.send(Reveal(client, 1, 0, "local", None))
    link.command(session)
    session.offer(1, 0, Spoiled())
    link.eventually(lambda: session.ended == "update: saw it changed")
    assert link.event(Lost).client == client
