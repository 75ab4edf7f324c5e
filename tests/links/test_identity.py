"""Test a client's key: made once, private, never shared by two clients."""

from errno import ENOSPC
from os import strerror
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgc.errors import EdgeFailed, NotAdmitted
from fedgc.links import identity

WITH_PASSPHRASE = Ed25519PrivateKey.generate().private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.BestAvailableEncryption(b"of the operator"),
)


def test_key_is_made_once_and_private_to_owner(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "a.key"
    with identity.hold(path) as first:
        assert path.stat().st_mode & 0o777 == 0o600
    with identity.hold(path) as again:
        assert again.client == first.client
    assert len(first.client) == identity.DIGITS


def test_key_in_use_is_refused_to_other_client(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    with identity.hold(path), pytest.raises(EdgeFailed, match="another client uses it"), identity.hold(path):
        pass
    with identity.hold(path):
        pass


def test_clients_without_path_get_and_keep_own_keys(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    with identity.hold_default(environment) as one, identity.hold_default(environment) as two:
        assert one.client != two.client
    with identity.hold_default(environment) as again:
        assert again.client == one.client


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        (b"not a key", 0o600, "needed an Ed25519"),
        (WITH_PASSPHRASE, 0o600, "needed an Ed25519 private key in PEM .Password was not given"),
        (b"", 0o644, "others can read it"),
    ],
)
def test_file_without_private_key_is_named(tmp_path: Path, text: bytes, mode: int, says: str) -> None:
    path = tmp_path / "a.key"
    path.write_bytes(text)
    path.chmod(mode)
    with pytest.raises(EdgeFailed, match=says), identity.hold(path):
        pass


def test_key_without_place_is_one_line_and_leaves_no_file(tmp_path: Path, monkeypatch) -> None:
    def full(_: int) -> None:
        raise OSError(ENOSPC, strerror(ENOSPC))

    (tmp_path / "file").touch()
    with pytest.raises(EdgeFailed, match=r"file/a\.key: File exists: .*file, needed a place"):
        identity.open_key(tmp_path / "file" / "a.key", makes=True)
    monkeypatch.setattr(identity.os, "fsync", full)
    with pytest.raises(EdgeFailed, match=r"a\.key: No space left on device, needed a place"):
        identity.open_key(tmp_path / "a.key", makes=True)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_signature_holds_only_for_its_key_and_statement(tmp_path: Path) -> None:
    with identity.hold(tmp_path / "a.key") as ours, identity.hold(tmp_path / "b.key") as theirs:
        words = identity.statement(1, "run", b"token", b"nonce", b"server")
        signature = ours.sign(words)
        assert identity.check(ours.public, signature, words) == ours.client
        others = [
            (theirs.public, words),
            (ours.public, identity.statement(1, "run", b"token", b"nonc", b"eserver")),
            (ours.public, identity.statement(1, "run", b"token", b"nonce", b"another")),
            (b"short", words),
        ]
        for public, said in others:
            with pytest.raises(NotAdmitted):
                identity.check(public, signature, said)
