"""Test a session through a proxy that terminates the client's TLS and routes by path."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from fedgc.config import RunConfig
from fedgc.deploy.key_files import Keyring
from fedgc.errors import BadSetting
from fedgc.flower.server import placed
from fedgc.links import frames as wire
from fedgc.links.message import invitation
from fedgc.links.session.certificate import authority_at
from fedgc.links.session.client import Session
from fedgc.links.session.options import client_options
from fedgc.messages import Joined, Work


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:

    made = Keyring(tmp_path_factory.mktemp("keys"))
    made.begin(("localhost",), time.time(), 30)
    return made


@contextmanager
def proxy(ring: Keyring, inner: str, certificate: bytes) -> Iterator[int]:
    """A server with the deployment's certificate that hands streams of one path to the listener."""
    trusted = grpc.ssl_channel_credentials(certificate)
    with grpc.secure_channel(inner, trusted, options=client_options(5.0)) as channel:

        def forward(frames: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            call = channel.stream_stream(wire.METHOD)(frames)
            context.add_callback(call.cancel)
            try:
                yield from call
            except grpc.RpcError:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the listener is gone")

        service, name = wire.METHOD.strip("/").split("/")
        server = grpc.server(ThreadPoolExecutor(4))
        handler = grpc.stream_stream_rpc_method_handler(forward)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
        folder = ring.folder / "proxy"
        pair = ((folder / "server.key").read_bytes(), (folder / "server.pem").read_bytes())
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        server.start()
        yield port
        server.stop(0.5).wait()


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
