"""Test a SuperLink with TLS and registered clients only: keys, doctor, a run, and setup errors.

The setup errors are a wrong certificate and a SuperLink without a required flag. The commands of servers and
clients are those of the deployment page with this machine's names and ports. Each command uses a store of its
own.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedgc.deploy.local_federation import free_port
from fedgc.deploy.superlink import Connection, installs, server_time
from fedgc.errors import EdgeFailed
from fedgc.processes import supervision
from tests.contract.conftest import WAIT_S, eventually

pytestmark = [pytest.mark.contract, pytest.mark.slow, pytest.mark.timeout(900)]
CLIENTS = ("ward-1", "ward-2")
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "deployment.md"
FLAG = "--disable-runtime-dependency-installation"
PROGRAMS = Path(sys.executable).parent


@dataclass(frozen=True)
class Hospital:
    """A deployment's folder, its SuperLink's port, and its commands."""

    folder: Path
    port: int
    sessions: int

    def documented(self, beginning: str, client: str = CLIENTS[0]) -> list[str]:
        """Return the words of the command on the page that begins so, with this machine's names and ports."""
        text = PAGE.read_text().replace("\\\n", " ")
        (line,) = re.findall(rf"^\$ ((?:[A-Z_]+=\S+ )*{beginning} .*)$", text, re.MULTILINE)
        here = {
            "fl.hospital.example": "localhost",
            "0.0.0.0": "127.0.0.1",  # noqa: S104  it is this that is replaced
            "9092": str(self.port),
            "9443": str(self.sessions),
            CLIENTS[0]: client,
        }
        for there, ours in here.items():
            line = line.replace(there, ours)
        return shlex.split(line)

    @property
    def environment(self) -> dict[str, str]:
        apart = {"FLWR_HOME": str(self.folder / "flwr"), "XDG_STATE_HOME": str(self.folder / "state")}
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "NO_COLOR": "1"}
        return {**os.environ, **apart, **quiet, "FEDGC_DB": str(self.folder / "mine.db")}

    def types(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "fedgc.cli", *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )

    def knows(self, **certificates: Path) -> None:
        """Write Flower's configuration: connections to one SuperLink with these root certificates."""
        named = (
            f'[superlink.{name}]\naddress = "localhost:{self.port}"\nroot-certificates = "{path}"\n'
            for name, path in certificates.items()
        )
        (self.folder / "flwr").mkdir(exist_ok=True)
        (self.folder / "flwr" / "config.toml").write_text("\n".join(named))

    def starts(self, name: str, *words: str) -> "subprocess.Popen[bytes]":
        """Start a program of Flower's with a home and a store of its own."""
        own = {
            "FLWR_HOME": str(self.folder / name),
            "FEDGC_DB": str(self.folder / "theirs.db"),
            "XDG_STATE_HOME": str(self.folder / name / "state"),
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, supervision.__file__, "env", *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **self.environment,
                    **own,
                    "PATH": os.pathsep.join([str(PROGRAMS), os.environ["PATH"]]),
                },
                cwd=self.folder,
                start_new_session=True,
            )

    def answers(self) -> bool:
        ours = self.folder / "keys" / "authority" / "ca.pem"
        return answers(Connection("hospital", f"localhost:{self.port}", False, ours))


def answers(where: Connection) -> bool:
    try:
        return server_time(where) is not None
    except EdgeFailed:
        return False


def ended(supervisor: "subprocess.Popen[bytes]") -> None:
    assert supervisor.stdin is not None
    supervisor.stdin.close()
    supervisor.wait(60.0)


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hospital]:
    made = Hospital(tmp_path_factory.mktemp("hospital"), free_port(), free_port())
    assert made.types(*made.documented("fedgc keys tls")[1:]).returncode == 0
    keys = made.folder / "keys"
    made.knows(hospital=keys / "authority" / "ca.pem")
    with ExitStack() as stack:
        superlink = made.starts("superlink", *made.documented("flower-superlink"))
        stack.callback(ended, superlink)
        eventually(made.answers)
        for name in CLIENTS:
            said = made.types(*made.documented("fedgc keys client", name)[1:])
            assert said.returncode == 0, said.stderr
            own = ("--port", str(free_port()))  # only because both are on one machine
            node = made.starts(name, *made.documented("flower-supernode", name), *own)
            stack.callback(ended, node)
        yield made


def test_doctor_finds_no_fault_and_run_completes(hospital: Hospital):
    said = hospital.types("doctor", "--superlink", "hospital", "--json")
    found = {each["what"]: each["grade"] for each in json.loads(said.stdout)["findings"]}
    assert {found[what] for what in ("certificates", "SuperLink", "versions", "dependencies")} == {"ok"}, (
        said.stdout
    )
    settings = ("rounds=2", "min-clients=2", "gate.name=every", "client.threads=1")
    said = hospital.types("run", "--superlink", "hospital", *(f"--set={each}" for each in settings))
    assert said.returncode == 0, said.stdout + said.stderr
    assert [number for number, _ in re.findall(r"round (\d) (synced) ", said.stdout)] == ["1", "2"]
    joined = re.findall(r"client (\S+) \(\w+\) joins over the session link", said.stdout)
    assert sorted(joined) == list(CLIENTS), "they reach the port that FEDGC_ADVERTISE tells them"
    assert said.stderr == ""


def test_wrong_certificate_gives_one_line(hospital: Hospital):
    assert hospital.types("keys", "tls", "127.0.0.1", "--folder", "other").returncode == 0
    (hospital.folder / "text.pem").write_text("no certificate\n")
    wrong = {
        "another": (
            hospital.folder / "other" / "authority" / "ca.pem",
            "its certificate is refused by root-",
        ),
        "text": (hospital.folder / "text.pem", "cannot be read"),
        "gone": (hospital.folder / "gone.pem", "cannot be read"),
    }
    hospital.knows(**{name: path for name, (path, _) in wrong.items()})
    for name, (path, sentence) in wrong.items():
        for words in (["run"], ["keys", "client", "ward-9", "--register"]):
            said = hospital.types(*words, "--superlink", name)
            assert said.returncode == 1, said.stdout + said.stderr
            assert said.stderr.count("\n") == 1
            assert said.stderr.startswith("fedgc: ")
            assert sentence in said.stderr
            assert f"root-certificates {path}" in said.stderr
        said = hospital.types("doctor", "--superlink", name)
        assert (said.returncode, said.stderr.count("\n")) == (1, 1)


def test_superlink_without_tls_flag_is_named_by_doctor_and_run(tmp_path: Path):
    made = Hospital(tmp_path, free_port(), free_port())
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / "config.toml").write_text(
        f'[superlink.hospital]\naddress = "127.0.0.1:{made.port}"\ninsecure = true\n'
    )
    where = Connection("hospital", f"127.0.0.1:{made.port}", True, None)
    plain = ("--insecure", "--host", "127.0.0.1", "--port", str(made.port))
    with ExitStack() as stack:
        stack.callback(ended, made.starts("superlink", "flower-superlink", *plain))
        eventually(lambda: installs(where))
        eventually(lambda: answers(where))
        said = made.types("doctor", "--superlink", "hospital", "--json")
        found = {each["what"]: each for each in json.loads(said.stdout)["findings"]}
        assert (said.returncode, found["dependencies"]["grade"]) == (1, "wrong"), said.stdout
        assert FLAG in found["dependencies"]["do"]
        said = made.types("run", "--superlink", "hospital", "--set", "rounds=1")
    assert said.returncode == 1, said.stdout
    assert said.stderr.startswith("fedgc: the run did not complete: ")
    assert said.stderr.endswith(f"{FLAG}; it has no model to go on from\n")
    assert said.stderr.count("\n") == 1
