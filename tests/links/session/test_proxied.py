"""Test a session through a proxy that terminates the client's TLS."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedgc.config import RunConfig
from fedgc.deploy.key_files import Keyring
from fedgc.errors import BadSetting
from fedgc.flower.app_config import placed
from fedgc.links import frames as wire
from fedgc.links.message import invitation
from fedgc.links.session.certificate import SERVER_NAME, authority_at
from fedgc.links.session.client import Session
from fedgc.links.session.connection import HEAD_LIMIT, NOT_FOUND, UPGRADED
from fedgc.messages import Joined, Work


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:

    made = Keyring(tmp_path_factory.mktemp("keys"))
    made.begin(("localhost",), time.time(), 30)
    return made


@contextmanager
def proxy(ring: Keyring, inner: str, certificate: bytes) -> Iterator[int]:
    """A server with the deployment's certificate that passes on what it decrypts, and the answers."""
    folder = ring.folder / "proxy"
    outside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    outside.load_cert_chain(folder / "server.pem", folder / "server.key")
    inside = ssl.create_default_context(cadata=certificate.decode())
    host, port = inner.rsplit(":", 1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(host, int(port), ssl=inside, server_hostname=SERVER_NAME)
        try:
            await asyncio.gather(forward(reader, there[1]), forward(there[0], writer))
        finally:
            for each in (writer, there[1]):
                each.transport.abort()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def listen() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=outside)
        opened.put((asyncio.get_running_loop(), asyncio.current_task(), server.sockets[0].getsockname()[1]))
        with suppress(asyncio.CancelledError):
            await server.serve_forever()

    opened: SimpleQueue[Any] = SimpleQueue()
    thread = Thread(target=lambda: asyncio.run(listen()))
    thread.start()
    loop, task, outer = opened.get()
    yield outer
    loop.call_soon_threadsafe(task.cancel)
    thread.join()


def test_proxied_session_works_like_direct_session(make_link: Callable, ring: Keyring):
    link = make_link(authority=str(ring.folder / "authority" / "ca.pem"))
    invited = link.listener.invite()
    with proxy(ring, invited.address, invited.certificate) as port:
        session = link.session(address=f"localhost:{port}")
        client = link.event(Joined).client
        vector = link.vector()
        link.listener.publish(3, vector)
        link.listener.send(Work(client, 1, 3, 1, (0,), ((0, "chunk-0"),), 0, 60.0))
        assert isinstance(link.command(session), Work)
        np.testing.assert_array_equal(session.fresh_model(3), vector)
        session.end("done")


@pytest.mark.parametrize("wrong", ["authority", "name"])
def test_foreign_proxy_is_never_contacted(make_link: Callable, ring: Keyring, tmp_path: Path, wrong: str):

    other = Keyring(tmp_path)
    other.begin(("localhost",), time.time(), 30)
    believed = other if wrong == "authority" else ring
    link = make_link(authority=str(believed.folder / "authority" / "ca.pem"))
    invited = link.listener.invite()
    host = "localhost" if wrong == "authority" else "127.0.0.1"  # the certificate is for localhost alone
    with proxy(ring, invited.address, invited.certificate) as port:
        there = replace(invited, address=f"{host}:{port}")
        session = link.open(Session(there, link.identity(), replace(link.terms(), connect_s=1.0)))
        link.eventually(lambda: session.ended)
        assert "could not be reached" in session.ended
        assert not session.reached
        assert link.events.empty()


@contextmanager
def false_listener(ring: Keyring, answer: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A server with the deployment's certificate that has this answer for everybody."""
    folder = ring.folder / "proxy"
    outside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    outside.load_cert_chain(folder / "server.pem", folder / "server.key")
    asked: list[bytes] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                plain, _ = listening.accept()
                with suppress(OSError), outside.wrap_socket(plain, server_side=True) as line:
                    asked.append(line.recv(65536))
                    line.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1], asked
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (NOT_FOUND, "404 Not Found"),
        (b"HTTP/1.1 502 Bad Gateway\r\n" + b"x: y\r\n" * HEAD_LIMIT, "the head of HTTP: saw"),
        (UPGRADED[:40], "has ended"),
    ],
    ids=["other path", "long answer", "cut answer"],
)
def test_wrong_answer_is_tried_again_and_shown(make_link: Callable, ring: Keyring, answer: bytes, says: str):
    link = make_link(authority=str(ring.folder / "authority" / "ca.pem"))
    with false_listener(ring, answer) as (port, asked):
        there = replace(link.listener.invite(), address=f"localhost:{port}")
        session = link.open(Session(there, link.identity(), replace(link.terms(), connect_s=1.0)))
        link.eventually(lambda: session.ended)
    assert len(asked) > 1
    assert f"localhost:{port} could not be reached" in session.ended
    assert says in session.ended


def test_authority_between_is_enough(make_link: Callable, ring: Keyring, tmp_path: Path):
    """The certificate that a site trusts need not be a root."""
    key = ec.generate_private_key(ec.SECP256R1())
    own = x509.load_pem_x509_certificate((ring.folder / "authority" / "ca.pem").read_bytes())
    root = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root")])
    between = (
        x509.CertificateBuilder(
            root, own.subject, own.public_key(), own.serial_number, own.not_valid_before_utc,
            own.not_valid_after_utc, list(own.extensions),
        )
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    path = tmp_path / "between.pem"
    path.write_bytes("# übergeordnet\n".encode() + between.public_bytes(serialization.Encoding.PEM))
    link = make_link(authority=str(path))
    invited = link.listener.invite()
    with proxy(ring, invited.address, invited.certificate) as port:
        session = link.session(address=f"localhost:{port}")
        assert link.event(Joined)
        session.end("done")


def test_message_carries_authority(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(invitation, "Message", SimpleNamespace)  # Flower makes messages inside a run alone
    given = wire.Invitation("fl.example.org:443", b"certificate", b"token", "run", b"authority")
    assert invitation.invited(invitation.invite(given, 7, 60.0).content) == given


def test_invalid_authority_is_reported_before_run(tmp_path: Path, make_link: Callable):
    (tmp_path / "ca.pem").write_text("nonsense")
    assert authority_at("") == b""
    with pytest.raises(BadSetting, match="needed a certificate in PEM"):
        authority_at(str(tmp_path / "ca.pem"))
    with pytest.raises(BadSetting, match="No such file or directory"):
        make_link(authority=str(tmp_path / "none.pem"))


def test_run_setting_overrides_deployment_setting():
    environment = {
        "FEDGC_BIND": "0.0.0.0:9094",
        "FEDGC_ADVERTISE": "fl.example.org:443",
        "FEDGC_AUTHORITY": "",
    }
    config = placed(RunConfig(advertise="elsewhere:1", work="coded"), environment)
    assert (config.bind, config.advertise, config.authority) == ("0.0.0.0:9094", "elsewhere:1", "")
    assert placed(RunConfig(rounds=3, work="coded"), {}) == RunConfig(rounds=3, work="coded")
