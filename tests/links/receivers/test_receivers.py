"""Test several processes that receive: one sum whatever their number, and what the end of one costs."""

import gc
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedgc.codecs.model_change import ModelChange
from fedgc.config import RunConfig
from fedgc.config.receivers import receivers_of
from fedgc.deploy.local_federation import free_port
from fedgc.errors import BadSetting, EdgeFailed
from fedgc.links.identity import Identity
from fedgc.links.session.server import Listener
from fedgc.messages import (
    Add,
    Close,
    Joined,
    Lost,
    Progress,
    Reveal,
    Work,
)
from fedgc.training.round_sum import RoundSum
from tests.links.conftest import WAIT_S
from tests.links.receivers.conftest import NUMBERS, Served


def updates() -> list[np.ndarray]:
    """Updates of uneven sizes: their sum depends on the order, and on every bit."""
    chance = np.random.default_rng(3)
    return [(10.0**n * chance.standard_normal(NUMBERS)).astype(np.float32) for n in range(-3, 4)]


def summed(served: Served) -> bytes:
    """Add an update of each of seven clients, one after the other."""
    total = RoundSum(served.config, NUMBERS)
    total.begin(0, np.zeros(NUMBERS, np.float32), ())
    for n, update in enumerate(updates()):
        session = served.session()
        client = served.event(Joined).client
        vector = served.upload(session, client, update)
        total.add(Add(client, 1, 0, (8.0 + n,)), vector)
        served.link.forget(client, 1, 0)
    mean = total.mean(1.0, 1)
    assert mean is not None
    return mean.tobytes()


def test_sum_has_same_bits_with_any_number_of_receivers(serve):
    one = summed(serve(1))
    assert one == summed(serve(2)) == summed(serve(3))


def test_clients_are_spread_over_receivers(serve):
    served = serve(3)
    ports = [served.sessions.invite().address for _ in range(6)]
    assert sorted(map(ports.count, set(ports))) == [2, 2, 2]


def work(client: str, version: int) -> Work:
    return Work(client, version + 1, version, 4, (0,), ((0, "chunk-0"),), 7, 60.0)


def test_model_and_its_change_reach_clients_of_every_receiver(serve):
    served = serve(2, fragments=2, link="session")
    model = updates()[3]
    after = model.copy()
    after[: NUMBERS // 2] += 1
    sessions = [(served.session(), served.event(Joined).client) for _ in range(2)]
    served.link.publish(0, model)
    for session, client in sessions:
        served.link.send(work(client, 0))
        assert session.receive(WAIT_S) == work(client, 0)
        np.testing.assert_array_equal(session.fresh_model(0), model)
        assert served.loaded.get(timeout=WAIT_S).size_bytes == model.nbytes
    served.link.publish(1, after, ModelChange(slice(0, NUMBERS // 2), "float32", after[: NUMBERS // 2]))
    for session, client in sessions:
        served.link.send(work(client, 1))
        assert session.receive(WAIT_S) == work(client, 1)
        np.testing.assert_array_equal(session.fresh_model(1), after)
        assert served.loaded.get(timeout=WAIT_S).size_bytes == model.nbytes // 2


@pytest.mark.parametrize("wire", ["float32", "bf16"])
def test_vector_of_any_codec_arrives_and_is_accounted(serve, wire):
    served = serve(2, codec=wire)
    session = served.session()
    client = served.event(Joined).client
    exact = np.arange(NUMBERS, dtype=np.float32) % 128
    np.testing.assert_array_equal(served.upload(session, client, exact, wire), exact)
    up_bytes = served.link.settle(client).up_bytes
    assert 0 <= up_bytes - NUMBERS * (4 if wire == "float32" else 2) < 1000
    assert served.link.settle(client).up_bytes == 0
    with pytest.raises(EdgeFailed, match="it is not here"):
        served.link.take(client, 1, 0)


def test_killed_receiver_costs_only_its_own_sessions(serve):
    served = serve(2, grace_s=2.0)
    model = updates()[3]
    served.link.publish(0, model)
    owners, people = {}, {}
    for _ in range(4):
        who = Identity(secrets.token_bytes(32))
        people[who.client] = who
        owners[who.client] = served.session(who)
        assert served.event(Joined).client == who.client
    killed, other = served.sessions.pids
    os.kill(killed, signal.SIGKILL)
    lost = {served.event(Lost).client for _ in range(2)}
    assert set(served.link.clients()) == owners.keys() - lost
    for client in owners.keys() - lost:
        owners[client].send(Progress(0.0, "me", 1, 0, 4, 0.5, 32, 1.0, 0.5))
        assert served.event(Progress).client == client
    for client in lost:
        while not owners[client].ended:
            owners[client].receive(0.05)
        session = served.session(people[client])
        assert served.event(Joined).client == client
        served.link.send(work(client, 0))
        assert session.receive(WAIT_S) == work(client, 0)
        np.testing.assert_array_equal(session.fresh_model(0), model)
        np.testing.assert_array_equal(served.upload(session, client, model), model)
        served.link.forget(client, 1, 0)
    assert served.sessions.pids[0] != killed
    assert served.sessions.pids[1] == other
    assert set(served.link.clients()) == owners.keys()


def test_client_on_another_receiver_leaves_its_old_session(serve):
    served = serve(2)
    who = Identity(secrets.token_bytes(32))
    old = served.session(who)
    served.event(Joined)
    new = served.session(who)
    assert served.event(Lost).client == served.event(Joined).client == who.client
    old.send(Progress(0.0, "me", 1, 1, 4, 0.5, 32, 1.0, 0.5))
    new.send(Progress(0.0, "me", 1, 2, 4, 0.5, 32, 1.0, 0.5))
    assert served.event(Progress).chunk == 2
    served.link.send(Reveal(who.client, 1, 0, "local", None))
    assert isinstance(new.receive(WAIT_S), Reveal)
    old.end("over")
    new.send(Progress(0.0, "me", 1, 3, 4, 0.5, 32, 1.0, 0.5))
    assert served.event(Progress).chunk == 3, "the end of the old session loses nobody"


def test_excluded_client_is_admitted_by_no_receiver(serve):
    served = serve(2)
    who = Identity(secrets.token_bytes(32))
    session = served.session(who)
    served.event(Joined)
    served.link.exclude(who.client, "it waits")
    served.event(Lost)
    for _ in range(2):
        session = served.session(who)
        while not session.ended:
            session.receive(0.05)
        assert "excluded" in session.ended
    assert ("excluded", who.client) in {each[:2] for each in served.audit}


def test_voided_invitation_ends_its_session(serve):
    served = serve(2)
    invitations = [served.sessions.invite() for _ in range(2)]
    who = Identity(secrets.token_bytes(32))
    session = served.session(who, invitations[0])
    served.event(Joined)
    assert [served.sessions.opened(each) for each in invitations] == [True, False]
    assert [served.sessions.cancel(each, "over") for each in invitations] == [True, False]
    late = served.session(Identity(secrets.token_bytes(32)), invitations[1])
    while not late.ended:
        late.receive(0.05)
    assert "token" in late.ended
    while not session.ended:
        session.receive(0.05)
    assert session.ended == "the session is ended: over"
    served.event(Lost)
    assert served.link.clients() == ()


def files_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def shared_by(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:fedgc")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the open files of a process")
def test_shared_memory_and_its_files_are_freed(serve):
    served = serve(2)
    session = served.session()
    client = served.event(Joined).client
    everyone = (os.getpid(), *served.sessions.pids)
    update = updates()[3]
    counts = set()
    for n in range(6):
        served.link.publish(n, update)
        kept = served.upload(session, client, update, round_=n + 1)
        served.link.forget(client, n + 1, 0)
        served.link.send(Close(client, n + 1, "empty", True))
        assert isinstance(session.receive(WAIT_S), Close)
        np.testing.assert_array_equal(kept, update)
        del kept
        gc.collect()
        counts.add(tuple((files_of(each), shared_by(each)) for each in everyone))
    assert len(counts) <= 2, counts  # a receiver may not have let go of the last model yet
    served.sessions.close("over")
    assert not any(Path(f"/proc/{pid}").exists() for pid in everyone[1:])
    gc.collect()
    assert shared_by(os.getpid()) <= 1  # the last model


SERVER = """
import logging, os, sys, time
from fedgc.config import RunConfig
from fedgc.config.receivers import receivers_of
from fedgc.links.receivers.receivers import Receivers
from fedgc.links.session.sessions import Surroundings

around = Surroundings(time.monotonic, os.urandom, time.time, logging.getLogger("test"))
receivers = Receivers(RunConfig(), "run-1", 2, lambda event: None, around)
receivers.start()
print(*receivers.pids, flush=True)
sys.stdin.read()
"""


def test_receivers_end_with_server_that_is_killed():
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        ends = [os.pidfd_open(int(pid)) for pid in server.stdout.readline().split()]
        server.kill()
    for each in ends:
        assert select.select([each], [], [], WAIT_S)[0], "a receiver outlives its server"
        os.close(each)


def test_given_port_is_followed_by_those_of_others(serve):
    port = following = free_port()
    while following != port + 1:  # outside the ephemeral range, where any connection may have the next one
        port, following = following, free_port()
    served = serve(2, bind=f"127.0.0.1:{port}", advertise=f"localhost:{port}")
    assert {served.sessions.invite().address for _ in range(2)} == {
        f"localhost:{port}",
        f"localhost:{port + 1}",
    }


def test_port_that_is_taken_is_named(serve):
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as taken,
        pytest.raises(BadSetting, match=r"links.bind: cannot listen at"),
    ):
        serve(2, bind=f"127.0.0.1:{taken.getsockname()[1]}")


def test_one_receiver_is_listener_of_server(serve):
    assert isinstance(serve(1).sessions, Listener)


@pytest.mark.parametrize(
    ("count", "changes"),
    [
        (4, {}),
        (2, {"min_clients": 500}),
        (1, {"min_clients": 499}),
        (1, {"bind": "0.0.0.0:9000"}),
        (1, {"advertise": "fl.example.org:443"}),
        (1, {"authority": "ca.pem"}),
    ],
)
def test_number_follows_clients_and_is_one_where_port_is_given(changes, count):
    assert receivers_of(RunConfig(**{"min_clients": 2000, **changes}), cores=16) == count


def test_several_receivers_behind_one_proxy_are_refused():
    with pytest.raises(BadSetting, match=r"links\.receivers: saw 2 with links\.authority"):
        receivers_of(RunConfig(receivers=2, authority="ca.pem"))


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        (
            {"receivers": 2, "bind": "127.0.0.1:65535"},
            "setting links.bind: .* at most 65534 with 2 receivers",
        ),
        ({"receivers": 3, "advertise": "fl.example.org:65534"}, "setting links.advertise: .* at most 65533"),
        ({"bind": "127.0.0.1:65536"}, "setting links.bind: saw port 65536, needed at most 65535$"),
    ],
)
def test_port_that_does_not_exist_is_refused(settings, needed):
    with pytest.raises(BadSetting, match=needed):
        receivers_of(RunConfig(**settings))
    last = {"receivers": 2, "bind": "127.0.0.1:65534", "advertise": "fl.example.org:65534"}
    assert receivers_of(RunConfig(**last)) == 2
