"""Test a SuperLink found by name: Flower's configuration and its program's messages."""

import stat
import sys
import time
from pathlib import Path

import pytest

from fedgc.deploy import superlink
from fedgc.deploy.key_files import Keyring
from fedgc.deploy.superlink import Connection, Superlink, connection, server_time
from fedgc.errors import EdgeFailed, Unusable
from tests.links.web_server import server

CONFIG = """
[superlink]
default = "hospital"

[superlink.hospital]
address = "fl.example:9093"
root-certificates = "/etc/ca.crt"

[superlink.play]
address = "127.0.0.1:1"
insecure = true

[superlink.local]
address = ":local-superlink:"

[superlink.number]
address = "127.0.0.1:1"
root-certificates = 7

[superlink.relative]
address = "127.0.0.1:1"
root-certificates = "keys/ca.pem"

[superlink.both]
address = "127.0.0.1:1"
insecure = true
root-certificates = "/etc/ca.crt"
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "config.toml").write_text(CONFIG)
    return {"FLWR_HOME": str(tmp_path)}


def test_connection_equals_flower_configuration(home: dict[str, str]):
    found = connection("hospital", home)
    assert (found.address, found.insecure, found.certificates) == (
        "fl.example:9093",
        False,
        Path("/etc/ca.crt"),
    )
    assert connection("play", home).insecure


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("hospitl", "did you mean hospital"),
        ("local", "needed host:port"),
        ("default", "saw hospital, play, local, number, relative, both in"),
        ("number", "saw root-certificates 7, needed an absolute path"),
        ("relative", "saw root-certificates 'keys/ca.pem', needed an absolute path"),
        ("both", "saw root-certificates and insecure = true, needed one of them"),
    ],
)
def test_unresolvable_name_is_refused(home: dict[str, str], name: str, sentence: str):
    with pytest.raises(Unusable, match=sentence):
        connection(name, home)


def test_missing_configuration_has_no_name_and_broken_one_fails(tmp_path: Path):
    with pytest.raises(Unusable, match="saw none in"):
        connection("hospital", {"FLWR_HOME": str(tmp_path)})
    with pytest.raises(Unusable, match=r"needed one of that name, or up; did you mean up\?$"):
        connection("ups", {"FLWR_HOME": str(tmp_path)}, "up")
    (tmp_path / "config.toml").write_text("[superlink")
    with pytest.raises(Unusable, match="cannot be read"):
        connection("hospital", {"FLWR_HOME": str(tmp_path)})


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    made = Keyring(tmp_path_factory.mktemp("keys"))
    made.begin(("localhost",), time.time(), 30)
    return made


def test_superlink_with_signed_certificate_gives_time(ring: Keyring):
    with server(ring, part="server") as address:
        where = Connection("x", address, insecure=False, certificates=ring.folder / "authority" / "ca.pem")
        told = server_time(where)
    assert told is not None
    assert abs(told - time.time()) < 60.0


def test_unreachable_superlink_reason_is_one_line(ring: Keyring, tmp_path: Path):
    def why(address: str, certificates: Path | None, *, insecure: bool = False) -> str:
        with pytest.raises(EdgeFailed) as said:
            server_time(Connection("x", address, insecure, certificates))
        assert "\n" not in str(said.value)
        return str(said.value)

    ours, text = ring.folder / "authority" / "ca.pem", tmp_path / "text.pem"
    text.write_text("no certificate")
    other = Keyring(tmp_path / "other")
    other.begin(("localhost",), time.time(), 30)
    with server(other) as address:
        assert f"its certificate is refused by root-certificates {ours}: unable to get" in why(address, ours)
        assert "its certificate is refused by those of the system" in why(address, None)
        assert why(address, tmp_path / "none.pem").startswith(
            f"root-certificates {tmp_path / 'none.pem'}: ca"
        )
        assert why(address, text).startswith(f"root-certificates {text}: cannot be read")
        assert "one with TLS does so where the connection says insecure" in why(address, None, insecure=True)
    assert why(address, ours).startswith(f"{address} does not answer: ")


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Replace `flwr` by this script."""

    def make(script: str) -> Superlink:
        folder = tmp_path / "bin"
        folder.mkdir()
        program = folder / "flwr"
        program.write_text(f"#!{sys.executable}\nimport sys, time\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(superlink.sys, "executable", str(folder / "python"))
        made.append(Superlink("play", tmp_path))
        return made[-1]

    made: list[Superlink] = []
    yield make
    for each in made:
        each.close()


def test_started_run_is_followed_to_its_end(says, tmp_path: Path):
    link = says(
        "words = sys.argv[1:]\n"
        "if words[0] == 'run': print('Successfully started run 77', flush=True); print('last words')\n"
        """else: print('{"success": true, "runs": [{"status": "finished:completed"}]}')"""
    )
    run = link.submit(tmp_path)
    assert run == 77
    assert link.wait(run, 200.0) == "finished:completed"
    assert not link.running(run)
    assert "last words" in link.log(run).read_text()


def test_run_that_fails_to_start_is_reported_with_last_output(says, tmp_path: Path):
    with pytest.raises(EdgeFailed, match=r"did not start a run: no such federation"):
        says("print('no such federation')").submit(tmp_path)


def test_flower_error_box_becomes_one_line_with_full_path(says, tmp_path: Path):
    """Flower draws a frame around an error and wraps lines at the terminal's width."""
    path = "/" + "/".join(["folder"] * 40)
    framed = (
        "from rich.console import Console\nfrom rich.panel import Panel\n"
        f"print('Using SuperLink: play')\nConsole().print(Panel('cannot read {path}', title='Error', "
        "title_align='left'))"
    )
    with pytest.raises(EdgeFailed, match=rf"did not start a run: cannot read {path}$"):
        says(framed).submit(tmp_path)


def test_reason_of_flower_names_no_temporary_copy_of_app(says, tmp_path: Path):
    said = f"print('Invalid configuration in {tmp_path.resolve()}/pyproject.toml: no publisher')"
    with pytest.raises(EdgeFailed, match=r"a run: Invalid configuration in pyproject.toml: no publisher$"):
        says(said).submit(tmp_path)


STOP = """
from pathlib import Path
asked = Path(sys.argv[0]).with_name("asked")
if sys.argv[1] == "list":
    print('{{"success": true, "runs": [{{"status": "{status}"}}]}}')
else:
    asked.write_text("x" + (asked.read_text() if asked.exists() else ""))
    print('{{"success": true}}' if asked.read_text() == "x" * {at} else "database is locked")
"""


@pytest.mark.parametrize(("status", "at", "asked"), [("running", 2, 2), ("finished:completed", 9, 1)])
def test_run_is_stopped_at_second_request_or_has_ended(
    says, tmp_path: Path, status: str, at: int, asked: int
):
    says(STOP.format(status=status, at=at)).stop(5)
    assert (tmp_path / "bin" / "asked").read_text() == "x" * asked


def test_run_that_flower_does_not_stop_is_reported(says):
    with pytest.raises(EdgeFailed, match=r"^flwr stop at SuperLink 'play' said: database is locked$"):
        says(STOP.format(status="running", at=9)).stop(5)


def test_error_of_flower_is_quoted_without_its_json(says):
    answer = r'{"success": false, "error-message": "Using SuperLink: play\nlog in"}'
    with pytest.raises(EdgeFailed, match=r"said: Using SuperLink: play log in$"):
        says(f"print({answer!r})").ask("list")


def test_endless_run_is_not_awaited(says, tmp_path: Path):
    link = says("print('started run 5', flush=True); time.sleep(600)")
    run = link.submit(tmp_path)
    assert link.running(run)
    with pytest.raises(EdgeFailed, match="has not ended"):
        link.wait(run, 0.01)


@pytest.mark.parametrize("said", ["not json", '{"success": false, "error": "log in"}', "[1]"])
def test_invalid_answer_is_reported_in_one_line(says, said: str):
    with pytest.raises(EdgeFailed, match="flwr list at SuperLink 'play' said"):
        says(f"print({said!r})").ask("list")
