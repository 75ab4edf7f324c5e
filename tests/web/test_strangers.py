"""Test the page's server against unauthorized clients: large, slow or frequent requests, and guesses."""

import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from fedgc.store.database import Store
from fedgc.web.access import COOKIE
from fedgc.web.guesses import AT_ONCE, EACH_S, MOST_ADDRESSES, Guesses
from fedgc.web.serve import Place, Served
from tests.web.run_of_four import tell_a_run

PROGRAM = "import sys; sys.argv[0] = 'fedgc'; from fedgc.cli import main; main()"
TOKEN = "a-token-of-this-test"
MB = 2**20
HALF = b"GET /picture HTTP/1.1\r\nhost: localhost\r\nx: "
CROWD = 300
WAIT_S = 60


class Page:
    """`fedgc watch` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.said = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", self.said)
        assert found, self.said
        self.address = ("127.0.0.1", int(found.group(1)))

    @property
    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1))

    def ask(self, path: str, **headers: str) -> HTTPResponse:
        words = {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(HTTPConnection(*self.address, timeout=WAIT_S)) as connection:
            connection.request("GET", path, headers=words)
            answer = connection.getresponse()
            answer.read()
            return answer

    def half(self) -> socket.socket:
        """A request that is never finished."""
        line = socket.create_connection(self.address, timeout=WAIT_S)
        line.sendall(HALF)
        return line


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Page]]:
    environment = {**os.environ, "FEDGC_DB": str(tmp_path / "fedgc.db")}
    environment.pop("FEDGC_TOKEN", None)
    with Store.open(str(tmp_path / "fedgc.db")) as store:
        tell_a_run(store)

    with ExitStack() as started:

        def page(*words: str, **variables: str) -> Page:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "watch", "--port", "0", *words],
                stdout=subprocess.PIPE,
                env={**environment, **variables},
                text=True,
            )
            started.enter_context(process)
            started.callback(process.kill)
            return Page(process)

        yield page


@pytest.fixture(autouse=True)
def room_for_a_crowd() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * CROWD)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- too much, too slowly


def test_64_mb_header_is_refused_and_not_kept(start):
    page = start()
    assert page.ask("/picture").status == 200
    before = page.peak_bytes
    with page.half() as line, suppress(OSError):  # broken pipe or reset, as it happens
        for _ in range(64):
            line.sendall(b"x" * MB)
        pytest.fail("all of it was taken")
    assert page.ask("/picture").status == 200
    assert page.peak_bytes - before < 16 * MB


def test_half_requests_do_not_block_whole_request(start):
    page = start()
    with ExitStack() as held:
        for _ in range(CROWD):
            held.enter_context(page.half())
        assert [page.ask("/picture").status for _ in range(5)] == [200] * 5


def test_unread_answers_do_not_block_request(start):
    page = start()
    with ExitStack() as held:
        for _ in range(CROWD):
            line = held.enter_context(socket.socket())
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.settimeout(WAIT_S)
            line.connect(page.address)
            line.sendall(b"GET /page/page.js HTTP/1.1\r\nhost: localhost\r\n\r\n" * 50)
        assert [page.ask("/picture").status for _ in range(5)] == [200] * 5


def test_trickling_requests_are_closed(start):
    """The first request of a connection, and one that follows another, at the same time."""
    page = start()
    first = b"GET /page/icon.svg HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with ExitStack() as opened:
        lines = [opened.enter_context(socket.create_connection(page.address, WAIT_S)) for _ in range(2)]
        for line, before in zip(lines, (b"", first), strict=True):
            line.sendall(before + HALF)
            line.settimeout(0.2)
        end = time.monotonic() + WAIT_S
        while lines := [line for line in lines if _open(line)]:
            assert time.monotonic() < end, "it is still open"


def _open(line: socket.socket) -> bool:
    """Send a few more bytes; return whether the server still accepts them."""
    try:
        line.sendall(b"x")
        return bool(line.recv(65_536))
    except TimeoutError:
        return True
    except OSError:
        return False


# ---- the token


def test_wrong_tokens_are_delayed_and_owner_stays_in(start):
    page = start(FEDGC_TOKEN=TOKEN)
    cookie = page.ask(f"/?token={TOKEN}").headers["set-cookie"].partition(";")[0]
    seen = [page.ask("/", authorization=f"Bearer wrong-{number}").status for number in range(AT_ONCE)]
    assert seen == [401] * AT_ONCE
    for path, headers in ((f"/?token={TOKEN}", {}), ("/", {"authorization": f"Bearer {TOKEN}"})):
        answer = page.ask(path, **headers)  # a guess costs time even where it is right
        assert answer.status == 429
        assert 1 <= int(answer.headers["retry-after"]) <= EACH_S
    assert page.ask("/picture").status == 401  # to offer nothing is no guess
    assert page.ask("/picture", cookie=cookie).status == 200


def test_cookie_differs_from_token_and_is_secure_with_tls(start):
    page = start(FEDGC_TOKEN=TOKEN)
    plain = page.ask(f"/?token={TOKEN}").headers["set-cookie"]
    behind = page.ask(f"/?token={TOKEN}", x_forwarded_proto="https").headers["set-cookie"]
    for cookie in (plain, behind):
        assert cookie.startswith(COOKIE)
        assert TOKEN not in cookie
        assert "HttpOnly" in cookie
        assert "samesite=lax" in cookie.casefold()
    assert ("Secure" in plain, "Secure" in behind) == (False, True)


def test_token_is_read_from_file_or_variable(start, tmp_path: Path):
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    for page in (start("--token", str(file)), start("--token", "env:OURS", OURS=TOKEN)):
        assert page.ask("/picture").status == 401
        assert page.ask("/picture", authorization=f"Bearer {TOKEN}").status == 200
        assert TOKEN not in Path(f"/proc/{page.process.pid}/cmdline").read_text()
        assert TOKEN not in page.said
        assert "(it asks for your token, once in the address as ?token=TOKEN; " in page.said


def test_only_token_that_was_made_up_is_printed(tmp_path: Path):
    with Store.open(str(tmp_path / "fedgc.db")) as store:
        for place in (Place("127.0.0.2", 0), Place("127.0.0.2", 0, TOKEN)):
            with Served(store, place).beside() as served:
                assert (f"?token={served.token}" in served.url) is (place.token is None)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_guesses_are_delayed_one_by_one_per_address():
    clock = Clock()
    guesses = Guesses(clock)
    for _ in range(AT_ONCE):
        assert guesses.wait_s("192.0.2.1") == 0
        guesses.wrong("192.0.2.1")
    assert guesses.wait_s("192.0.2.1") == pytest.approx(EACH_S)
    assert guesses.wait_s("192.0.2.2") == 0
    clock.now += EACH_S
    assert guesses.wait_s("192.0.2.1") == 0
    guesses.wrong("192.0.2.1")
    assert guesses.wait_s("192.0.2.1") == pytest.approx(EACH_S)


def test_address_above_limit_waits_until_others_are_forgotten():
    clock = Clock()
    guesses = Guesses(clock)
    for number in range(MOST_ADDRESSES):
        guesses.wrong(f"2001:db8:0:{number:x}::1")
    assert guesses.wait_s("192.0.2.1") > 0
    clock.now += EACH_S
    assert guesses.wait_s("192.0.2.1") == 0
