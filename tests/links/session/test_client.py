"""Test listener and sessions over real loopback TLS: join, models down, codewords up, goodbye."""

import dataclasses
import socket
import time

import numpy as np
import pytest

from fedgc.links.session.client import Session
from fedgc.links.session.uploads import Uploads
from fedgc.messages import (
    Close,
    Codeword,
    Failed,
    Held,
    Joined,
    Lost,
    Mix,
    Progress,
    Refuse,
    Reveal,
    Skip,
    Work,
)
from tests.links.conftest import SHORT_GRACE_S, WAIT_S


def work(client: str, round_: int = 1, version: int = 0) -> Work:
    return Work(client, round_, version, 4, (0,), ((0, "chunk-0"),), 7, 60.0)


def test_client_joins_with_proven_identity(link) -> None:
    who = link.identity()
    link.session(who)
    joined = link.event(Joined)
    assert joined.client == who.client
    assert joined.holds[0].name == "chunk-0"
    assert link.listener.clients() == (who.client,)


def test_work_arrives_after_bit_identical_model(link) -> None:
    session = link.session()
    client = link.event(Joined).client
    model = link.vector()
    link.listener.publish(0, model)
    link.listener.send(work(client))
    link.listener.send(Skip(client, 1, 0))
    assert link.command(session) == work(client)
    np.testing.assert_array_equal(session.fresh_model(0), model)
    assert link.command(session) == Skip(client, 1, 0)


def test_model_sent_with_work_is_kept_for_next_work(link) -> None:
    session = link.session()
    client = link.event(Joined).client
    models = [link.vector(seed=version) for version in (0, 1)]
    for version, model in enumerate(models):  # the second comes before the first is asked for
        link.listener.publish(version, model)
        link.listener.send(work(client, version + 1, version))
        told = link.passing.get(timeout=WAIT_S)
        assert (told.client, told.version, told.size_bytes) == (client, version, model.nbytes)
        if version == 0:
            assert link.command(session) == work(client)
    np.testing.assert_array_equal(session.fresh_model(0), models[0])
    assert link.command(session) == work(client, 2, 1)
    np.testing.assert_array_equal(session.fresh_model(1), models[1])
    assert session.fresh_model(1) is None


def test_codeword_of_closed_round_is_not_offered(link) -> None:
    session = link.session()
    client = link.event(Joined).client
    link.listener.send(Reveal(client, 1, 0, "local", None))
    link.listener.send(Close(client, 1, "synced", True))
    link.listener.send(Reveal(client, 2, 0, "local", None))
    assert [type(link.command(session)) for _ in range(3)] == [Reveal, Close, Reveal]
    session.offer(1, 0, link.vector())  # it was in the making
    session.offer(2, 0, link.vector())
    assert link.event(Codeword).round == 2
    assert link.listener.settle(client).refused == 0
    assert not link.listener.refused


def test_model_is_sent_once_per_version(link) -> None:
    session = link.session()
    client = link.event(Joined).client
    link.listener.publish(0, link.vector())
    moved = []
    for round_ in (1, 2):
        link.listener.send(work(client, round_))
        link.command(session)
        session.fresh_model(0)
        moved.append(session.accounts.settle().down_bytes)
    assert moved[0] > link.numbers * 4
    assert moved[1] == 0


def test_events_arrive_unchanged_with_listener_clock(link) -> None:
    session = link.session()
    client = link.event(Joined).client
    before = time.monotonic()
    session.send(Progress(-0.0, "somebody else", 1, 0, 4, 0.5, 32, 1.25, 0.75, tuple(map(float, range(16)))))
    progress = link.event(Progress)
    assert progress.client == client
    assert before <= progress.now <= time.monotonic()
    assert progress.sketch[3] == 3.0


def test_slow_line_of_tests_takes_expected_time(link) -> None:
    terms = dataclasses.replace(link.terms(), uplink_bytes_s=20_000.0)
    session = link.open(Session(link.listener.invite(), link.identity(), terms))
    session.send(Joined(0.0, "me", True, (Held("chunk-0", 8),)))
    asked = Reveal(link.event(Joined).client, 1, 0, "coded", Mix((0,), ((1.0,),)))
    link.listener.send(asked)
    link.command(session)
    began = time.monotonic()
    session.offer(1, 0, link.vector())
    assert link.event(Codeword).now - began >= 4 * link.numbers / 20_000.0


def test_piece_slower_than_grace_time_arrives(make_link) -> None:
    link = make_link(100_000, grace_s=2.0, piece_kb=1024)
    terms = dataclasses.replace(link.terms(), uplink_bytes_s=100_000.0)
    session = link.open(Session(link.listener.invite(), link.identity(), terms))
    session.send(Joined(0.0, "me", True, (Held("chunk-0", 8),)))
    link.listener.send(Reveal(link.event(Joined).client, 1, 0, "local", None))
    link.command(session)
    session.offer(1, 0, link.vector())
    assert link.event(Codeword).seconds > 2.0


@pytest.mark.parametrize("blocks", [1, 3])
def test_codeword_arrives_whole_and_is_reported_once(link, blocks: int) -> None:
    session = link.session()
    client = link.event(Joined).client
    mix = Mix((0,), ((1.0,) * blocks,))
    link.listener.send(Reveal(client, 1, 0, "coded", mix))
    link.command(session)
    codeword = link.vector(-(-link.numbers // blocks))
    session.offer(1, 0, codeword)
    told = link.event(Codeword)
    assert (told.round, told.attempt, told.size_bytes) == (1, 0, codeword.nbytes)
    np.testing.assert_array_equal(link.listener.take(client, 1, 0), codeword)
    assert link.listener.settle(client).up_bytes > codeword.nbytes
    assert link.events.empty()


def test_both_ends_count_same_bytes(link) -> None:
    session = link.session()
    client = link.event(Joined).client
    link.listener.publish(0, link.vector())
    link.listener.send(work(client))
    link.command(session)
    link.listener.send(Reveal(client, 1, 0, "local", None))
    link.command(session)
    session.offer(1, 0, link.vector())
    link.event(Codeword)
    ours, theirs = link.listener.settle(client), session.accounts.settle()
    assert (ours.up_bytes, ours.down_bytes) == (theirs.up_bytes, theirs.down_bytes)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_codeword_is_refused_and_reported_as_failure(link, bad: float) -> None:
    session = link.session()
    client = link.event(Joined).client
    link.listener.send(Reveal(client, 1, 0, "local", None))
    link.command(session)
    codeword = link.vector()
    codeword[700] = bad
    session.offer(1, 0, codeword)
    failed = link.event(Failed)
    assert "NaN or Inf" in failed.reason
    assert isinstance(link.command(session), Refuse)
    assert link.listener.settle(client).refused == 1
    assert link.listener.refused["BadVector"] == 1


def test_long_codeword_of_wrong_size_is_refused_before_first_byte(make_link) -> None:
    link = make_link(numbers=50_000)
    session = link.session()
    client = link.event(Joined).client
    link.listener.send(Reveal(client, 1, 0, "local", None))
    link.command(session)
    session.offer(1, 0, link.vector(link.numbers + 1))
    refusal = link.command(session)
    assert isinstance(refusal, Refuse)
    assert "needed 200000" in refusal.reason
    assert link.event(Failed).reason == refusal.reason, "the round waits for it no longer"
    assert link.listener.settle(client).up_bytes == 0


def test_unrequested_codeword_is_refused(link) -> None:
    session = link.session()
    link.event(Joined)
    session.offer(9, 0, link.vector())
    refusal = link.command(session)
    assert isinstance(refusal, Refuse)
    assert refusal.round == 9


def test_late_codeword_is_refused_after_close(link) -> None:
    session = link.session()
    client = link.event(Joined).client
    link.listener.send(Reveal(client, 1, 0, "local", None))
    link.listener.send(Close(client, 1, "approximate", True))
    link.command(session)
    link.command(session)
    session._closed = -1  # one that has not heard of it
    session.offer(1, 0, link.vector())
    assert isinstance(link.command(session), Refuse)


def test_work_of_round_closed_before_model_arrived_is_dropped(link) -> None:
    session = link.session()
    client = link.event(Joined).client
    for command in (work(client, 1, version=5), Close(client, 1, "synced", True)):
        session._inbox.append(command, 100)
    assert link.command(session) == Close(client, 1, "synced", True)


def test_client_is_lost_at_once_after_goodbye(make_link) -> None:
    link = make_link(**{"grace_s": 1000.0})
    session = link.session()
    client = link.event(Joined).client
    session.end("lease over")
    assert link.event(Lost).client == client


def test_listener_goodbye_ends_session(link) -> None:
    session = link.session()
    link.event(Joined)
    link.listener.close("run over")
    link.eventually(lambda: session.ended)
    assert session.ended == "run over"


def test_session_to_silently_gone_server_ends_after_grace_time(make_link) -> None:
    link = make_link(**{"grace_s": SHORT_GRACE_S})
    session = link.session()
    link.event(Joined)
    link.listener._loop.call_soon_threadsafe(link.listener._sessions.peers.clear)
    link.listener.close("nobody hears this")
    link.eventually(lambda: session.receive(0.01) or session.ended)
    assert "away" in session.ended


def test_upload_slots_admit_one_client_at_once(make_link) -> None:
    link = make_link(**{"upload_slots": 1}, numbers=300_000)
    sessions = [link.session() for _ in range(3)]
    clients = [link.event(Joined).client for _ in sessions]
    for client in clients:
        link.listener.send(Reveal(client, 1, 0, "local", None))
    for number, session in enumerate(sessions):
        link.command(session)
        session.offer(1, 0, link.vector(seed=number))
    told = set()
    for _ in sessions:
        told.add(client := link.event(Codeword).client)
        link.listener.forget(client, 1, 0)
    assert told == set(clients)


def test_session_with_closed_port_gives_up_in_time_with_reason(link) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    terms = dataclasses.replace(link.terms(), connect_s=0.2, grace_s=60.0)
    invitation = dataclasses.replace(link.listener.invite(), address=address)
    session = link.open(Session(invitation, link.identity(), terms))
    link.eventually(lambda: session.receive(0.01) or session.ended)
    assert not session.reached
    assert f"{address} could not be reached" in session.ended


def test_denied_session_has_reached_its_server(link) -> None:
    session = link.session(run="another run")
    link.eventually(lambda: session.ended)
    assert session.reached


def test_listener_looks_for_stalled_clients_while_serving(make_link, monkeypatch) -> None:
    looked: list[float] = []
    monkeypatch.setattr(Uploads, "free_stalled", lambda _, limit_s: looked.append(limit_s))
    link = make_link(**{"grace_s": SHORT_GRACE_S})
    link.eventually(lambda: len(looked) >= 2)
    assert set(looked) == {SHORT_GRACE_S}
