"""Test the page of the example `plugs` on real processes: what its buttons do, and who may press them."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from benchmarks.served import alive, eventually
from fedgc.processes import supervision

pytestmark = [pytest.mark.contract, pytest.mark.slow, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "examples.plugs"]


class Page:
    """The page in a process of its own, and a browser that has shown the token."""

    def __init__(self, folder: Path) -> None:
        words = [*COMMAND, "--port", "0", "--folder", str(folder)]
        self.process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.said = self.process.stderr.readline()
        self.port, self.cookie = 0, ""

    def enter(self) -> None:
        """Show the token, as a browser does that opens the address."""
        found = re.match(r"http://127\.0\.0\.1:(\d+)/(\?token=\S+)", self.said)
        assert found, self.said
        self.port = int(found[1])
        status, headers, _ = self.ask("GET", f"/{found[2]}")
        assert status == 303
        self.cookie = headers["set-cookie"].partition(";")[0]

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, said

    def press(self, name: str, button: str) -> int:
        return self.ask("POST", "/press", {"name": name, "button": button}, cookie=self.cookie)[0]

    def state(self) -> dict:
        return json.loads(self.ask("GET", "/state", cookie=self.cookie)[2])

    def outcome(self) -> str:
        """How the last press ended; empty while it is made."""
        return self.state()["presses"][-1]["outcome"]

    def goes_on(self) -> None:
        before = self.state()["exchanges"]
        eventually(lambda: self.state()["exchanges"] > before + 1)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    page = Page(tmp_path_factory.mktemp("plugs") / "files")
    try:
        page.enter()
        yield page
    finally:
        below = supervision.descendants(page.process.pid)
        page.process.send_signal(signal.SIGINT)
        page.process.wait(300)
        page.process.stderr.close()
    assert not any(map(alive, below))


def test_buttons_of_page_end_and_stop_processes_of_run(page: Page):
    eventually(lambda: page.state()["exchanges"] >= 1)
    assert page.press("site-0", "kill") == 202
    eventually(page.outcome)
    assert page.outcome() == "SIGKILL"
    page.goes_on()
    assert page.press("site-1", "stop") == 202
    eventually(lambda: any(each["faults"] == ["stop"] for each in page.state()["processes"]))
    page.goes_on()
    assert page.press("site-1", "stop") == 202
    eventually(lambda: page.outcome() == "go on")
    assert page.press("server", "kill") == 202
    eventually(page.outcome)
    page.goes_on()
    assert page.state()["serves"]


def test_run_goes_on_without_site_that_is_cut_off(page: Page):
    page.goes_on()
    assert page.press("site-2", "cut off") == 202
    eventually(page.outcome)
    page.goes_on()
    assert page.press("site-2", "cut off") == 202
    eventually(lambda: page.outcome() == "connect")
    page.goes_on()


def test_run_goes_on_after_its_gateway_was_killed(page: Page):
    page.goes_on()
    assert page.press("gateway", "kill") == 202
    eventually(page.outcome)
    page.goes_on()
    assert page.outcome() == "SIGKILL"


def test_run_goes_on_after_disk_of_server_was_full(page: Page):
    page.goes_on()
    assert page.press("server", "fill disk") == 202
    eventually(lambda: page.outcome() == "fill disk")
    assert page.press("server", "fill disk") == 202
    eventually(lambda: page.outcome() == "free disk")
    page.goes_on()


def test_page_refuses_presses_without_token(page: Page):
    button = {"name": "site-0", "button": "kill"}
    presses = len(page.state()["presses"])
    assert page.ask("POST", "/press", button)[0] == 401
    assert page.ask("GET", "/state")[0] == 401
    assert page.ask("POST", "/press", button, authorization="Bearer wrong-wrong-wrong")[0] == 401
    assert len(page.state()["presses"]) == presses


@pytest.mark.parametrize(
    "body",
    [{"name": "site-9", "button": "kill"}, {"name": "server", "button": "leave"}, ["kill"], "x" * 500],
    ids=["process", "button", "form", "size"],
)
def test_page_refuses_unknown_buttons(page: Page, body: object):
    status, _, said = page.ask("POST", "/press", body, cookie=page.cookie)
    assert status == 400
    assert "needed" in json.loads(said)["error"]
