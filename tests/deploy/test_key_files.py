"""Test a deployment's keys: certificates, strict verification, and files on disk."""

import json
import socket
import ssl
import subprocess
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from fedgc.deploy.authority import (
    AUTHORITY_DAYS,
    INSIDE,
    LONGEST_DAYS,
    describe,
    general_name,
    issue,
    make_authority,
    signed_by,
)
from fedgc.deploy.key_files import Keyring
from fedgc.deploy.registration import register
from fedgc.errors import EdgeFailed, Unusable

NOW = time.time()  # certificates are checked against the clock of this machine
NAMES = ("fl.example.org", "127.0.0.1")


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    made = Keyring(tmp_path_factory.mktemp("keys"))
    made.begin(NAMES, NOW, 397)
    return made


def shake_hands(ring: Keyring, name: str, authority: Path) -> str:
    """Dial a server that has the proxy's certificate, as a strict client does; return why it was refused."""
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(ring.folder / "proxy" / "server.pem", ring.folder / "proxy" / "server.key")
    here = ssl.create_default_context(cafile=str(authority))
    here.verify_flags |= ssl.VERIFY_X509_STRICT
    left, right = socket.socketpair()
    with left, right:

        def serve() -> None:
            try:
                there.wrap_socket(right, server_side=True).close()
            except (ssl.SSLError, OSError):
                right.close()

        server = threading.Thread(target=serve)
        server.start()
        try:
            here.wrap_socket(left, server_hostname=name).close()
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        finally:
            left.close()
            server.join()
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_strict_client_accepts_certificate_for_each_name(ring: Keyring, name: str):
    assert shake_hands(ring, name, ring.folder / "authority" / "ca.pem") == ""


def test_strict_client_refuses_other_name_and_other_authority(ring: Keyring, tmp_path: Path):
    other = Keyring(tmp_path)
    other.begin(NAMES, NOW, 30)
    assert "mismatch" in shake_hands(ring, "other.example.org", ring.folder / "authority" / "ca.pem")
    assert "issuer" in shake_hands(ring, NAMES[0], other.folder / "authority" / "ca.pem")


def test_renewal_keeps_authority_and_superlink_files(ring: Keyring, tmp_path: Path):
    fresh = Keyring(tmp_path)
    fresh.begin(NAMES, NOW, 30)
    before = {part: (tmp_path / part / "server.pem").read_bytes() for part in ("proxy", "server")}
    fresh.renew((*NAMES, "backup.example.org"), NOW + 86_400, 60)
    status = fresh.status()
    assert status.proxy.names == (*NAMES, "backup.example.org")
    assert status.proxy.days_left(NOW + 86_400) == 60
    assert (tmp_path / "proxy" / "server.pem").read_bytes() != before["proxy"]
    assert (tmp_path / "server" / "server.pem").read_bytes() == before["server"]
    assert shake_hands(fresh, "backup.example.org", tmp_path / "authority" / "ca.pem") == ""


def test_superlink_certificate_lasts_as_long_as_authority(ring: Keyring):
    inside = describe((ring.folder / "server" / "server.pem").read_bytes())
    assert inside.names == INSIDE
    assert ring.status().authority.ends - inside.ends <= timedelta(days=1)


def test_authority_key_has_own_folder_and_secrets_are_private(ring: Keyring):
    ring.make_client("ward-9")
    assert [each.parent.name for each in ring.folder.rglob("ca.key")] == ["authority"]
    assert (ring.folder / "clients").is_dir()
    for secret in ring.folder.rglob("*.key"):
        assert secret.stat().st_mode & 0o077 == 0


def test_certificate_never_outlives_authority():
    authority = make_authority(NOW)
    late = NOW + (AUTHORITY_DAYS - 10) * 86_400
    assert describe(issue(authority, NAMES, late, 397).public).ends <= describe(authority.public).ends
    with pytest.raises(Unusable, match="at its end"):
        issue(authority, NAMES, NOW + AUTHORITY_DAYS * 86_400, 397)


@given(days=st.integers(-5, 2 * LONGEST_DAYS))
def test_only_lifetime_accepted_by_verifiers_is_signed(days: int):
    authority = make_authority(NOW)
    if 1 <= days <= LONGEST_DAYS:
        assert describe(issue(authority, NAMES, NOW, days).public).days_left(NOW) == days
    else:
        with pytest.raises(Unusable, match=f"saw {days} days"):
            issue(authority, NAMES, NOW, days)


@pytest.mark.parametrize(
    "name", ["", "fl.example.org:443", "a b", "-a.org", "https://x", "1.2.3", "1.2.3.4.5", "a" * 64]
)
def test_invalid_name_or_address_is_refused(name: str):
    with pytest.raises(Unusable, match="needed a host's name or address"):
        general_name(name)


@given(st.ip_addresses())
def test_every_address_is_included_once(address: object):
    assert general_name(str(address)).value == address


def test_client_key_is_readable_by_flower_and_made_once(ring: Keyring):
    first = ring.make_client("ward-3")
    secret = first.private.read_bytes()
    key = serialization.load_ssh_private_key(secret, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.curve.name == "secp384r1"
    public = serialization.load_ssh_public_key(first.public.read_bytes())
    assert public == key.public_key()
    assert ring.make_client("ward-3").print() == first.print()
    assert first.private.read_bytes() == secret
    assert (first.folder / "ca.pem").read_bytes() == (ring.folder / "authority" / "ca.pem").read_bytes()


def test_public_key_supplied_by_client_is_kept_unchanged(ring: Keyring, tmp_path: Path):
    made = ring.make_client("ward-4")
    elsewhere = Keyring(tmp_path).client("ward-4")
    elsewhere.folder.mkdir(parents=True)
    elsewhere.public.write_bytes(made.public.read_bytes())
    assert Keyring(tmp_path).make_client("ward-4").print() == made.print()
    assert not elsewhere.private.exists()


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "a" * 64, "ward 3"])
def test_client_name_is_no_path(ring: Keyring, name: str):
    with pytest.raises(Unusable, match="client name"):
        ring.client(name)


def test_invalid_key_is_named(ring: Keyring, tmp_path: Path):
    client = Keyring(tmp_path).client("x")
    client.folder.mkdir(parents=True)
    client.public.write_text("nonsense")
    with pytest.raises(EdgeFailed, match=r"client\.pub: needed an elliptic curve's public key"):
        client.print()
    client.public.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EdgeFailed, match=r"client\.pub: needed an elliptic curve's public key"):
        register(client, "local")
    client.private.write_text("half")
    client.public.unlink()
    with pytest.raises(EdgeFailed, match="public half"):
        Keyring(tmp_path).make_client("x")
    (client.folder / "node").write_text("seven")
    with pytest.raises(EdgeFailed, match="saw 'seven', needed the number"):
        _ = client.node


def test_certificate_of_other_authority_is_detected(ring: Keyring, tmp_path: Path):
    other = Keyring(tmp_path)
    other.begin(NAMES, NOW, 30)
    foreign = (ring.folder / "proxy" / "server.pem").read_bytes()
    (tmp_path / "proxy" / "server.pem").write_bytes(foreign)
    assert not signed_by(foreign, (tmp_path / "authority" / "ca.pem").read_bytes())
    with pytest.raises(EdgeFailed, match="not signed by"):
        other.status()


def test_missing_file_gives_one_sentence(tmp_path: Path):
    with pytest.raises(EdgeFailed, match="No such file or directory, needed a file to read"):
        Keyring(tmp_path).status()


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch):
    """Flower's program at a SuperLink that knows every key."""
    said = json.dumps({"success": False, "error-message": "Public key already in use."})
    answer = subprocess.CompletedProcess([], 0, said, "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)


@pytest.mark.usefixtures("refusing")
def test_known_key_is_called_revoked_where_that_is_known(ring: Keyring):
    client = ring.make_client("ward-9")
    with pytest.raises(
        EdgeFailed, match=r"ward-9: saw a key that the SuperLink knows .* needed a file .*node"
    ):
        register(client, "local")
    client.registered(7)
    client.revoked()
    assert (client.node, client.is_revoked) == (None, True)
    with pytest.raises(EdgeFailed, match=r"ward-9: saw a key that was revoked, needed a new key, as"):
        register(client, "local")
    for each in (client.public, client.private):
        each.unlink()
    assert not ring.make_client("ward-9").is_revoked
