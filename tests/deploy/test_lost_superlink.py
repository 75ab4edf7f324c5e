"""Test what becomes of a SuperNode that has no contact with its SuperLink."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgc.cli.commands import app
from fedgc.deploy.flower_programs import write_programs
from fedgc.deploy.processes import ClientPlace, save_process
from fedgc.errors import EdgeFailed
from fedgc.flower import contact

GIVES_UP = """
import subprocess, sys, threading
from fedgc.flower.contact import followed
from flwr.supercore.heartbeat import HeartbeatSender

def failed():
    raise RuntimeError("status 404")

def supernode():
    threading.Thread(target=threading.Event().wait).start()  # as the web server of Flower's
    subprocess.Popen([sys.executable, "-c", "input()", "flwr-clientapp"])
    print("given up", flush=True)
    if sys.argv[1] == "heartbeats":
        HeartbeatSender(failed).start()
        threading.Event().wait()

followed(supernode)()
"""


@pytest.mark.parametrize("what", ["SuperLink", "heartbeats"])
def test_node_that_has_given_up_ends_after_its_app(what: str):
    node = subprocess.Popen(
        [sys.executable, "-c", GIVES_UP, what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert node.stdout is not None
    assert node.stdout.readline() == "given up\n"
    with pytest.raises(subprocess.TimeoutExpired):
        node.wait(2 * contact._POLL_S)  # its ClientApp has still something to do
    _, said = node.communicate("over\n", timeout=60)
    assert said.splitlines()[-1] == (
        f"SuperNode: saw its {what} given up after the error above, needed a new start; it ends with exit "
        "code 1"
    )
    assert node.returncode == 1


def test_deployed_node_is_followed(tmp_path: Path):
    for name in ("state", "cache"):
        (tmp_path / name).mkdir()
    place = ClientPlace("localhost:9", "a", tmp_path, tmp_path / "state", tmp_path / "cache")
    program = place.program()
    assert program.environment[contact.ENVIRONMENT] == str(place.state / "contact")
    write_programs(tmp_path)
    assert "followed(flower_supernode)" in (tmp_path / "flower-supernode").read_text()


@pytest.fixture
def running(tmp_path: Path):
    """A state folder of a SuperNode that was started, and answers, with its executor."""
    program = (
        "import http.server, subprocess, sys\n"
        "class Answer(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        "subprocess.Popen([sys.executable, '-c', 'input()', 'flower-superexec'])\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), Answer)\n"
        "print(server.server_port, flush=True)\n"
        "server.serve_forever()\n"
    )
    node = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert node.stdout is not None
    save_process(tmp_path, node.pid, f"127.0.0.1:{int(node.stdout.readline())}")
    yield tmp_path
    node.terminate()
    node.communicate()


def test_node_without_contact_for_long_is_unhealthy(running: Path):
    words = ["deploy", "health", "client", "--state", str(running), "--cache", str(running)]

    def health(*more: str) -> BaseException | None:
        return CliRunner().invoke(app, [*words, *more]).exception

    assert health() is None, "it was started a moment ago"
    long_ago = time.time() - 300.0
    os.utime(running / "process", (long_ago, long_ago))
    said = health()
    assert isinstance(said, EdgeFailed)
    assert str(said) == "the SuperLink has not answered for 300 s, needed 120 s or less"
    assert health("--live") is None, "a restart would not help"
    (running / "contact").touch()
    assert health() is None
    os.utime(running / "contact", (long_ago, long_ago))
    assert isinstance(health(), EdgeFailed)
    save_process(running, int((running / "process").read_text()), (running / "address").read_text().strip())
    assert health() is None, "a new start"
