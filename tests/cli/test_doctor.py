"""Test each finding of `fedgc doctor` on a sound and on a faulty setup."""

import json
import shutil
import socket
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from fedgc.cli import doctor
from fedgc.cli.commands import app
from fedgc.config import RunConfig
from fedgc.deploy.key_files import Keyring
from fedgc.deploy.superlink import Connection
from fedgc.errors import EdgeFailed
from fedgc.store.database import Store
from fedgc.store.records import Begun, Present
from tests.links.web_server import server
from tests.store.test_engine import unprivileged


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ask(*words: str):
    said = CliRunner().invoke(app, ["doctor", "--json", *words])
    findings = {each["what"]: each for each in json.loads(said.stdout)["findings"]}
    return findings, said.exception


def test_testing_machine_passes_check():
    findings, _ = ask()
    grades = {what: each["grade"] for what, each in findings.items()}
    wrong = {what for what, grade in grades.items() if grade == "wrong"}
    assert wrong == set()
    assert {"Python", "torch", "GPU", "Flower", "ports", "disk", "store", "clock"} == grades.keys()
    assert findings["store"]["saw"].endswith("does not exist yet: the first run makes it")


def test_port_in_use_fails_check_and_sets_exit_code():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        findings, error = ask("--set", f"links.bind=127.0.0.1:{taken.getsockname()[1]}")
    assert findings["ports"]["grade"] == "wrong"
    assert findings["ports"]["do"]
    assert isinstance(error, EdgeFailed)
    assert "ports" in str(error)


@pytest.mark.parametrize("bind", ["nonsense", "127.0.0.1:x", "127.0.0.1:99999"])
def test_invalid_address_fails_check(bind: str):
    found = doctor.port(bind)
    assert found.grade == "wrong"
    assert found.do.startswith("set links.bind to")


def test_missing_device_fails_check():
    found = doctor.gpu("cuda:99")
    assert found.grade == "wrong"
    assert found.do.startswith("set client.device=auto, ")
    assert doctor.gpu("cpu").grade == "ok"


def test_damaged_store_fails_check(apart: Path):
    (apart / "fedgc.db").write_bytes(b"no database at all" * 1000)
    assert doctor.store().grade == "wrong"


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch):
    """A folder for a store that users without privileges can enter."""
    folder = Path(tempfile.mkdtemp(prefix="fedgc-doctor-"))
    folder.chmod(0o755)
    monkeypatch.setenv("FEDGC_DB", str(folder / "fedgc.db"))
    yield folder
    shutil.rmtree(folder)


def test_store_that_cannot_be_written_fails_check(entered: Path):
    with unprivileged():
        made = doctor.store()  # there is none, and it could not be made
    assert (made.grade, made.saw) == ("wrong", f"{entered} cannot be written")
    with Store.open():
        pass
    before = sorted((each.name, each.stat().st_mtime_ns) for each in entered.iterdir())
    for mode in (0o644, 0o666):
        (entered / "fedgc.db").chmod(mode)
        with unprivileged():
            found = doctor.store()
        assert found.grade == "wrong"
        locked = entered / "fedgc.db" if mode == 0o644 else entered
        assert found.saw == f"{locked} cannot be written"
    assert sorted((each.name, each.stat().st_mtime_ns) for each in entered.iterdir()) == before
    assert doctor.store().grade == "ok"


def test_clock_behind_newest_row_fails_check():
    with Store.open() as store:
        store.write(Begun(time.time(), "r", RunConfig(work="coded").table()))
        store.write(Present(time.time() + 3600, "r", {}))
    found = doctor.clock()
    assert found.grade == "wrong"
    assert "behind the store" in found.saw


def certificate(folder: Path, days: float) -> Path:
    key, name = Ed25519PrivateKey.generate(), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=400))
        .not_valid_after(now + timedelta(days=days))
        .sign(key, None)
    )
    from cryptography.hazmat.primitives.serialization import Encoding

    assert made.signature_hash_algorithm is None or isinstance(
        made.signature_hash_algorithm, hashes.HashAlgorithm
    )
    (folder / "ca.crt").write_bytes(made.public_bytes(Encoding.PEM))
    return folder / "ca.crt"


@pytest.mark.parametrize(("days", "grade"), [(400, "ok"), (3, "warning"), (-1, "wrong")])
def test_certificate_expiry_is_reported(apart: Path, days: float, grade: str):
    where = Connection("x", "127.0.0.1:1", insecure=False, certificates=certificate(apart, days))
    assert doctor.certificates(where).grade == grade


def test_missing_or_invalid_certificate_fails_check(apart: Path):
    def grade(address: str, *, insecure: bool, path: Path | None) -> str:
        return doctor.certificates(Connection("x", address, insecure, path)).grade

    (apart / "text").write_text("no certificate")
    assert grade("a:1", insecure=False, path=apart / "none") == "wrong"
    assert grade("a:1", insecure=False, path=apart / "text") == "wrong"
    assert grade("127.0.0.1:1", insecure=False, path=None) == "ok"
    assert grade("a:1", insecure=True, path=None) == "warning"
    assert grade("127.0.0.1:1", insecure=True, path=None) == "ok"


@pytest.mark.parametrize(
    ("since_days", "grade", "saw"),
    [(0, "ok", "30 days left"), (-20, "warning", "10 days left"), (-100, "wrong", "ended on")],
)
def test_certificate_of_server_is_examined(apart: Path, since_days: int, grade: str, saw: str):
    ring = Keyring(apart / "keys")
    ring.begin(("localhost",), time.time(), 30)
    ring.renew(("localhost",), time.time() + since_days * 86_400, 30)
    for trusted in (ring.folder / "authority" / "ca.pem", None):
        with server(ring) as address:
            found = doctor.certificates(Connection("x", address, insecure=False, certificates=trusted))
        assert (found.grade, bool(found.do)) == (grade, grade != "ok")
        assert f"{address}: {saw}" in found.saw


@pytest.fixture
def answering():
    """A web server whose clock is so many seconds off."""
    off_s: list[float] = [0.0]

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response_only(404)
            self.send_header("Date", formatdate(time.time() + off_s[0], usegmt=True))
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", off_s
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("apart_s", "grade"), [(0.0, "ok"), (120.0, "wrong"), (-120.0, "wrong")])
def test_reachable_superlink_reports_its_clock(answering, apart_s: float, grade: str):
    address, off_s = answering
    off_s[0] = apart_s
    assert doctor.reached(Connection("x", address, insecure=True, certificates=None)).grade == grade


def test_superlink_without_required_tls_fails_check(answering):
    found = doctor.reached(Connection("x", answering[0], insecure=False, certificates=None))
    assert found.grade == "wrong"
    assert "saw no TLS as it should be" in found.saw


def test_missing_or_unknown_superlink_fails_check(apart: Path):
    (apart / "flwr").mkdir()
    (apart / "flwr" / "config.toml").write_text(
        '[superlink.gone]\naddress = "127.0.0.1:1"\ninsecure = true\n'
    )
    findings, error = ask("--superlink", "gone")
    assert findings["SuperLink"]["grade"] == "wrong"
    assert "versions" not in findings
    assert isinstance(error, EdgeFailed)
    findings, _ = ask("--superlink", "gnoe")
    assert "did you mean gone" in findings["SuperLink"]["saw"]
    findings, _ = ask("--superlink", "up")
    assert "fedgc up" in findings["SuperLink"]["saw"]


def test_superlink_is_not_contacted_with_invalid_certificates(apart: Path):
    (apart / "flwr").mkdir()
    (apart / "flwr" / "config.toml").write_text(
        f'[superlink.tls]\naddress = "127.0.0.1:1"\nroot-certificates = "{apart / "none.pem"}"\n'
    )
    findings, error = ask("--superlink", "tls")
    assert findings["certificates"]["saw"] == f"{apart / 'none.pem'}: No such file or directory"
    assert "SuperLink" not in findings
    assert "certificates" in str(error)


def test_versions_are_judged_by_reachable_superlink():
    def refuse() -> None:
        raise EdgeFailed("flwr list said: incompatible")

    assert doctor.both_versions("x", dict).grade == "ok"
    assert doctor.both_versions("x", refuse).grade == "wrong"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "fl.hospital.example:9092"])
def test_unreadable_dependency_setting_is_not_called_ok(address: str):
    found = doctor.dependencies(Connection("x", address, insecure=True, certificates=None))
    assert found.grade == "warning"
    assert found.do.endswith("--disable-runtime-dependency-installation")
