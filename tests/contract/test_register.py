"""Test the registration of clients through Flower's own program on a real SuperLink."""

from pathlib import Path

import pytest

from fedgc.deploy.key_files import Keyring
from fedgc.deploy.local_federation import LocalFederation
from fedgc.deploy.registration import register, revoke
from fedgc.errors import EdgeFailed, Unusable

pytestmark = pytest.mark.contract


def test_key_is_admitted_once_and_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with LocalFederation(nodes=0) as federation:
        monkeypatch.setenv("FLWR_HOME", str(federation.folder / "homes" / "superlink"))
        client = Keyring(tmp_path).make_client("ward-3")
        node = register(client, "local")
        assert client.node == node > 0
        with pytest.raises(Unusable, match=rf"registered as {node}; --revoke comes first"):
            register(client, "local")
        same_key = Keyring(tmp_path).client("ward-3")
        assert revoke(same_key, "local") == node
        assert same_key.node is None
        with pytest.raises(EdgeFailed, match=r"ward-3: saw a key that was revoked, needed a new key, .*move"):
            register(same_key, "local")
        for each in (same_key.public, same_key.private):
            each.unlink()
        assert register(Keyring(tmp_path).make_client("ward-3"), "local") != node


def test_missing_superlink_gives_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = tmp_path / "flower"
    home.mkdir()
    text = '[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "127.0.0.1:9"\ninsecure = true\n'
    (home / "config.toml").write_text(text)
    monkeypatch.setenv("FLWR_HOME", str(home))
    with pytest.raises(EdgeFailed, match="flwr supernode register") as failed:
        register(Keyring(tmp_path).make_client("ward-3"), "local")
    assert "\n" not in str(failed.value)
