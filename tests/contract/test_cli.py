"""Test the command line on a terminal: watch a run, stop it by Ctrl-C, resume it."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

import pytest

from fedgc.deploy.local_federation import exposure
from fedgc.processes import supervision
from fedgc.store.database import Store
from tests.contract.conftest import command

pytestmark = [pytest.mark.contract, pytest.mark.slow, pytest.mark.timeout(900)]
WAIT_S = 400.0
COMMAND = [sys.executable, "-m", "fedgc.cli"]


class Terminal:
    """A program on its own terminal, with its recorded output."""

    def __init__(self, words: list[str], folder: Path) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 130, 0, 0))
        apart = {
            "FEDGC_DB": str(folder / "fedgc.db"),
            "XDG_STATE_HOME": str(folder / "state"),
            "TERM": "xterm",
        }
        self.program = subprocess.Popen(
            [*COMMAND, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env={**os.environ, **apart},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self._ours, self._exchange_drawn = ours, bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                some = os.read(self._ours, 65536)
            except OSError:
                return
            if not some:
                return
            self._exchange_drawn += some

    @property
    def text(self) -> str:
        """The output so far, without cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._exchange_drawn.decode(errors="replace"))

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def until(self, pattern: str) -> None:
        end = time.monotonic() + WAIT_S
        while not re.search(pattern, self.text):
            assert self.program.poll() is None, self.text[-3000:]
            assert time.monotonic() < end, self.text[-3000:]
            time.sleep(0.1)

    def ended(self) -> int:
        code = self.program.wait(WAIT_S)
        self._reader.join(10.0)
        os.close(self._ours)
        return code


@pytest.fixture
def terminal(folder: Path) -> Iterator[Callable[[list[str]], Terminal]]:
    """Start programs on terminals; those that a failed test leaves are killed, and end what they started."""
    started: list[Terminal] = []

    def start(words: list[str]) -> Terminal:
        started.append(Terminal(words, folder))
        return started[-1]

    yield start
    for each in started:
        each.program.kill()
        each.program.wait(WAIT_S)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    return tmp_path


def test_run_is_shown_stopped_by_ctrl_c_and_resumed(folder: Path, terminal: Callable[[list[str]], Terminal]):
    settings = ["--set", "rounds=100000", "--set", "gate.name=every", "--set", "client.threads=1"]
    shown = terminal(["run", "--clients", "2", *settings])
    shown.until(r"[3-9] of 100000, about \d+ (s|min) left")
    shown.until(r"client-1 .* of 16 steps, session")
    below = supervision.descendants(shown.program.pid)
    assert below
    shown.press("\x03")
    assert shown.ended() == 130
    assert "stopping the run" in shown.text
    assert "where Flower asks for no login" in shown.text
    assert not set(supervision.descendants(1)) & set(below)
    with Store.open() as store:
        run = store.run()
    assert run.state == "stopped"
    assert f"fedgc run --resume {run.run}" in " ".join(shown.text.split())
    assert "Traceback" not in shown.text
    further = ["--set", f"rounds={run.last_round + 2}"]
    resumed = subprocess.run(
        [*COMMAND, "run", "--resume", run.run, *further],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert f"round {run.last_round + 2}: synced" in resumed.stdout
    with Store.open() as store:
        assert store.run(run.run).state == "completed"
        assert sorted(each.name for each in store.clients()) == ["client-0", "client-1"]


def test_run_of_killed_server_reports_how_to_resume(folder: Path, terminal: Callable[[list[str]], Terminal]):
    settings = ["--set", "rounds=100000", "--set", "gate.name=every", "--set", "client.threads=1"]
    shown = terminal(["run", "--clients", "2", *settings])
    shown.until(r"[3-9] of 100000, about \d+ (s|min) left")
    below = supervision.descendants(shown.program.pid)
    (server,) = (pid for pid in below if "flwr-serverapp" in command(pid))
    os.kill(server, signal.SIGKILL)
    assert shown.ended() == 1
    said = " ".join(shown.text.split())
    killed = r"the run did not complete: the server process was killed by SIGKILL (in|after) round \d"
    assert re.search(killed, said)
    assert "Traceback" not in said
    with Store.open() as store:
        run = store.run()
    assert f"`fedgc run --resume {run.run}` goes on" in said
    assert run.state == "running", "it could not say that it ended"
    status = subprocess.run([*COMMAND, "status"], cwd=folder, capture_output=True, text=True, timeout=WAIT_S)
    assert re.search(r"crashed: the server process is gone (in|after) round \d", status.stdout)


def test_client_that_fails_at_its_start_ends_run_that_needs_it(folder: Path):
    (folder / "ward.py").write_text(
        "import fedgc\nfrom fedgc.training.tasks import named\n\n"
        "def task(config, client):\n"
        "    if 'data' in client:\n"
        "        raise FileNotFoundError(client['data'])\n"
        "    return named('digits', config)\n"
    )
    words = ["run", "--task", "ward:task", "--clients", "2", "--client", "south:data=missing.pt"]
    ended = subprocess.run(
        [*COMMAND, *words, "--set", "timing.start-timeout-s=3600"],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    cause = "client south: task ward:task: the function raised FileNotFoundError: missing.pt"
    assert f"\n{cause}: it does not take part (its app failed with Flower's code 2)\n" in ended.stdout
    said = f"fedgc: the run did not complete: {cause}; 1 of 2 clients are left, needed min-clients, 2"
    assert (ended.returncode, ended.stderr) == (1, f"{said}; it has no model to go on from\n")


def test_open_ports_of_running_federation_are_reported_correctly(folder: Path):
    here = {
        "cwd": folder,
        "env": {**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        "capture_output": True,
    }
    said = subprocess.run([*COMMAND, "up", "--clients", "1"], **here, text=True, timeout=WAIT_S)
    try:
        assert said.returncode == 0, said.stderr
        found = re.search(r"^(\d+) clients? .*?(127\.0\.0\.1:\d+);", said.stdout, re.MULTILINE)
        assert found, said.stdout
        assert said.stdout.splitlines()[-1] == exposure(found[2])
        stranger = HTTPConnection(found[2], timeout=WAIT_S)
        words = {"Host": "elsewhere.example", "Origin": "http://elsewhere.example"}
        words |= {"Content-Type": "application/protobuf", "Accept": "application/protobuf"}
        stranger.request("POST", "/v1/control/list-runs", b"", words)
        assert stranger.getresponse().status == HTTPStatus.OK
        stranger.close()
    finally:
        subprocess.run([*COMMAND, "down"], **here, timeout=WAIT_S, check=True)
