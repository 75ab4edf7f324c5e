"""Test `fedgc keys tls` and `fedgc keys client`."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedgc.deploy.authority import signed_by
from fedgc.deploy.superlink import answer_in
from fedgc.errors import EdgeFailed


def keys(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; sys.argv[0] = 'fedgc'; from fedgc.cli import main; main()"
    command = [sys.executable, "-c", program, "keys", *words, "--folder", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_certificates_are_made_shown_and_renewed(tmp_path: Path):
    made = keys(tmp_path, "tls", "fl.example.org", "192.0.2.7", "--days", "30")
    assert made.returncode == 0
    assert " days, for fl.example.org, 192.0.2.7" in made.stdout
    first = (tmp_path / "proxy" / "server.pem").read_bytes()
    shown = json.loads(keys(tmp_path, "tls", "--json").stdout)
    assert shown["names"] == ["fl.example.org", "192.0.2.7"]
    assert shown["days_left"] in {29, 30}  # a second may have passed
    assert (tmp_path / "proxy" / "server.pem").read_bytes() == first
    renewed = keys(tmp_path, "tls", "--renew", "--days", "60")
    assert any(f"{days} days, for fl.example.org, 192.0.2.7" in renewed.stdout for days in (59, 60))
    assert (tmp_path / "proxy" / "server.pem").read_bytes() != first


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("tls",), "needed the names that clients dial"),
        (("tls", "fl.example.org:443"), "saw 'fl.example.org:443', needed a host's name or address"),
        (("tls", "a.org", "--days", "9000"), "saw 9000 days, needed 1 to 825"),
        (("client", "ward 3"), "client name: saw 'ward 3'"),
        (("client", "ward-3", "--revoke"), "`flwr supernode list` shows the number"),
        (("client", "ward-3", "--register", "--revoke"), "needed one of them"),
    ],
)
def test_bad_input_gives_one_line_and_exit_code_2(tmp_path: Path, words: tuple[str, ...], sentence: str):
    said = keys(tmp_path, *words)
    assert said.returncode == 2
    assert sentence in said.stderr
    assert said.stderr.count("\n") == 1
    assert list(tmp_path.rglob("*.key")) == []


def test_certificates_of_missing_authority_are_not_replaced(tmp_path: Path):
    keys(tmp_path, "tls", "a.example.org")
    certificate = (tmp_path / "proxy" / "server.pem").read_bytes()
    (tmp_path / "authority").rename(tmp_path / "kept-elsewhere")
    for words in (("tls",), ("tls", "a.example.org")):
        said = keys(tmp_path, *words)
        assert said.returncode == 2
        assert "needed the authority that has signed them" in said.stderr
    assert (tmp_path / "proxy" / "server.pem").read_bytes() == certificate
    assert not (tmp_path / "authority").exists()


def test_other_names_need_renewal(tmp_path: Path):
    keys(tmp_path, "tls", "a.example.org")
    said = keys(tmp_path, "tls", "b.example.org")
    assert said.returncode == 2
    assert "the certificate is for a.example.org; --renew replaces it" in said.stderr
    assert "for b.example.org" in keys(tmp_path, "tls", "b.example.org", "--renew").stdout


@pytest.mark.parametrize("renew", [("--renew",), ()])
def test_authority_alone_signs_certificates(tmp_path: Path, renew: tuple[str, ...]):
    from fedgc.deploy.key_files import Keyring

    Keyring(tmp_path).begin(("a.example.org",), time.time(), 30)
    before = (tmp_path / "authority" / "ca.pem").read_bytes()
    shutil.rmtree(tmp_path / "proxy")
    shutil.rmtree(tmp_path / "server")
    said = keys(tmp_path, "tls", *renew)
    assert said.returncode == 2
    assert "no certificate in" in said.stderr
    assert " days, for b.example.org" in keys(tmp_path, "tls", "b.example.org", *renew).stdout
    assert (tmp_path / "authority" / "ca.pem").read_bytes() == before
    assert signed_by((tmp_path / "server" / "server.pem").read_bytes(), before)


def test_expired_certificate_is_reported_as_failure(tmp_path: Path):
    from fedgc.deploy.key_files import Keyring

    Keyring(tmp_path).begin(("a.example.org",), 1_700_000_000.0, 1)
    said = keys(tmp_path, "tls")
    assert said.returncode == 1
    assert "it ended on 2023-11-15; --renew signs a new one" in said.stderr


def test_certificate_of_future_is_reported_as_failure(tmp_path: Path):
    from fedgc.deploy.key_files import Keyring

    Keyring(tmp_path).begin(("a.example.org",), time.time() + 30 * 86_400.0, 30)
    said = keys(tmp_path, "tls")
    assert said.returncode == 1
    assert "it begins on " in said.stderr
    assert "or this machine's clock is wrong; --renew signs a new one" in said.stderr


def test_client_key_is_made_once_and_shown(tmp_path: Path):
    first = json.loads(keys(tmp_path, "client", "ward-3", "--json").stdout)
    assert first["node"] is None
    assert first["key"].startswith("SHA256:")
    assert first["key"] in keys(tmp_path, "client", "ward-3").stdout


def test_flwr_error_is_reported_in_one_sentence():
    assert answer_in('starting\n{"success": true, "node-id": 7}', "x") == {"success": True, "node-id": 7}
    with pytest.raises(EdgeFailed, match="flwr register: the key is in use"):
        answer_in('{"success": false, "error-message": "the key\\nis in use"}', "flwr register")
    with pytest.raises(EdgeFailed, match="connection refused"):
        answer_in("", "flwr register", "connection\n refused")
    with pytest.raises(EdgeFailed, match="no output"):
        answer_in("", "x")
