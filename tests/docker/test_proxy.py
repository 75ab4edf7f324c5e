"""Test the shipped nginx configuration before a real listener: a session, large vectors, hidden paths."""

import http.client
import logging
import os
import queue
import random
import secrets
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedgc.deploy.key_files import Keyring
from fedgc.deploy.local_federation import free_port
from fedgc.links.identity import Identity
from fedgc.links.session.client import Session, Terms
from fedgc.links.session.server import Listener
from fedgc.links.session.sessions import Surroundings
from fedgc.messages import Codeword, Event, Held, Joined, Loaded, Offered, Reveal, Work
from tests.config_of import config_of

NGINX = Path(__file__).parents[2] / "docker" / "proxy" / "nginx.conf"
NUMBERS = 4_000_000  # 16 MB: many times every buffer on the way

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx here")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    made = Keyring(tmp_path / "keys")
    made.begin(("localhost",), time.time(), 30)
    return made


@pytest.fixture
def proxied(ring: Keyring, tmp_path: Path) -> Iterator[tuple[Listener, "queue.SimpleQueue[Event]", str]]:
    """A listener behind nginx; its events, and the address that clients dial."""
    port, inside, superlink = free_port(), free_port(), free_port()
    table = {"bind": f"127.0.0.1:{inside}", "advertise": f"localhost:{port}", "grace_s": 5.0}
    config = config_of({"work": "coded", **table, "authority": str(ring.folder / "authority" / "ca.pem")})
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    around = Surroundings(time.monotonic, os.urandom, time.time, logging.getLogger("test"))
    listener = Listener(config, "run-1", NUMBERS, events.put, around)
    listener.start()
    text = NGINX.read_text()
    changes = {
        "INSIDE:9092": f"127.0.0.1:{superlink}",
        "INSIDE:9094": f"127.0.0.1:{inside}",
        "PORT ssl": f"{port} ssl",
        "127.0.0.1:8081": f"127.0.0.1:{free_port()}",
        "/tmp/": f"{tmp_path}/",  # noqa: S108  inside a container
        "/keys": str(ring.folder / "proxy"),
        "access_log /dev/stdout line": "access_log off",
        "worker_processes auto": "worker_processes 1; user root",
    }
    for old, new in changes.items():
        text = text.replace(old, new)
    (tmp_path / "nginx.conf").write_text(text)
    with (tmp_path / "log").open("wb") as log:
        command = ["nginx", "-c", str(tmp_path / "nginx.conf"), "-e", "stderr", "-g", "daemon off;"]
        nginx = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 10.0
        while not listens(port):
            assert nginx.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < end, "nginx does not listen"
            time.sleep(0.02)
        yield listener, events, f"localhost:{port}"
    finally:
        nginx.terminate()
        nginx.wait(10)
        listener.close("test over")


def open_session(listener: Listener) -> Session:
    terms = Terms(5.0, 1024 * 1024, NUMBERS, time.monotonic, random.random)
    return Session(listener.invite(), Identity(secrets.token_bytes(32)), terms)


def test_model_and_codeword_pass_through_proxy(proxied: tuple):
    listener, events, _ = proxied
    vector = np.random.default_rng(0).standard_normal(NUMBERS).astype(np.float32)
    with open_session(listener) as session:
        session.send(Joined(0.0, "me", True, (Held("chunk-0", 8),)))
        client = events.get(timeout=20).client
        listener.publish(3, vector)
        listener.send(Work(client, 1, 3, 1, (0,), ((0, "chunk-0"),), 0, 60.0))
        assert isinstance(session.receive(20), Work)
        np.testing.assert_array_equal(session.fresh_model(3), vector)
        listener.send(Reveal(client, 1, 0, "local", None))
        assert isinstance(session.receive(20), Reveal)
        session.offer(1, 0, -vector)
        assert [type(events.get(timeout=30)) for _ in range(3)] == [Loaded, Offered, Codeword]
        np.testing.assert_array_equal(listener.take(client, 1, 0), -vector)


def test_proxy_hides_paths_that_clients_do_not_need(proxied: tuple, ring: Keyring):
    _, _, address = proxied
    trusted = ssl.create_default_context(cafile=str(ring.folder / "authority" / "ca.pem"))
    seen = {}
    for path in (
        "/v1/control/start-run",
        "/v1/fleet/../control/list-nodes",
        "/docs",
        "/v1/runtime/x",
        "/v1/fleet/x",
    ):
        line = http.client.HTTPSConnection(address, timeout=10, context=trusted)
        line.request("POST", path, b"")
        seen[path] = line.getresponse().status
        line.close()
    assert seen.pop("/v1/fleet/x") == 502  # let through to the SuperLink, which is not here
    assert set(seen.values()) == {404}
