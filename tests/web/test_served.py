"""Test the served addresses: answers, access and refusals."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse

import pytest

from fedgc.errors import EdgeFailed, Unusable
from fedgc.store.database import Store
from fedgc.store.liveness import ALIVE_S, SERVER
from fedgc.store.records import Appended, Begun, Ended, Evaluated, Present
from fedgc.web import app as app_room
from fedgc.web.access import COOKIE, Entry
from fedgc.web.check import HEAVIEST, check
from fedgc.web.serve import Place, Served
from tests.web.run_of_four import START, round_of

TOKEN = "a-token-of-this-test"
EVERYWHERE = "0.0.0.0"  # noqa: S104  asked about, not bound to


@pytest.fixture
def served(told: Store) -> Iterator[Served]:
    with Served(told, Place(port=0)).beside() as served:
        yield served


@pytest.fixture
def guarded(told: Store) -> Iterator[Served]:
    with Served(told, Place(port=0, token=TOKEN)).beside() as served:
        yield served


def ask(served: Served, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    words = {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(HTTPConnection(*served.address, timeout=30)) as connection:
        connection.request(method, path, headers=words)
        answer = connection.getresponse()
        return answer, answer.read()


class Events:
    """A stream of events, as a browser reads it."""

    def __init__(self, served: Served, path: str = "/stream") -> None:
        self._connection = HTTPConnection(*served.address, timeout=30)
        self._connection.request("GET", path)
        self._answer = self._connection.getresponse()
        self.status = self._answer.status

    def next(self, name: str) -> dict:
        """Return the data of the next event with this name; others are skipped."""
        while line := self._answer.readline().decode():
            if line == f"event: {name}\n":
                return json.loads(self._answer.readline().decode().removeprefix("data: "))
        raise AssertionError("the stream ended")

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


@pytest.fixture
def events(served: Served) -> Iterator[Events]:
    stream = Events(served)
    yield stream
    stream.close()


def test_page_and_its_parts_are_served(served: Served):
    for path in ("/", *(f"/page/{name}" for name in app_room.PAGE)):
        answer, said = ask(served, path)
        assert answer.status == 200
        assert said
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert ask(served, "/page/page.py")[0].status == 404
    assert ask(served, "/page/..%2Fapp.py")[0].status == 404


def test_snapshot_and_round_are_json(served: Served):
    answer, said = ask(served, "/picture?sort=speed&find=s")
    assert answer.headers["content-type"] == "application/json"
    assert [line["name"] for line in json.loads(said)["fleet"]["lines"]] == ["slow", "steady"]
    assert json.loads(ask(served, "/round?run=spring&round=3")[1])["round"]["row"]["outcome"] == "synced"


@pytest.mark.parametrize(
    ("asked", "status", "sentence"),
    [
        ("/picture?run=sprung", 404, "did you mean spring"),
        ("/picture?sort=sped", 404, "did you mean speed"),
        ("/picture?page=-1", 404, "needed a whole number"),
        ("/picture?page=99999999999999999999", 404, "needed a whole number"),
        ("/round?round=77", 404, "saw no round 77"),
        ("/round?round=one", 404, "needed a whole number"),
        ("/stream?run=sprung", 404, "did you mean spring"),
        ("/metrics?run=sprung", 404, "did you mean spring"),
    ],
)
def test_missing_resource_gives_one_json_line(served: Served, asked: str, status: int, sentence: str):
    answer, said = ask(served, asked)
    assert answer.status == status
    assert sentence in json.loads(said)["error"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_server_is_read_only(served: Served, method: str):
    for path in ("/", "/picture", "/round", "/stream", "/metrics"):
        assert ask(served, path, method)[0].status == 405


# ---- the stream


def test_stream_begins_with_snapshot_and_sends_each_change(events: Events, told: Store):
    assert events.next("picture")["totals"]["rounds"] == 12
    told.write(Appended(START + 90, "spring", round_of(13)))
    assert events.next("round")["round"]["row"]["round"] == 13
    assert events.next("picture")["series"]["last"][-1] == 13
    told.write(Evaluated(START + 91, "spring", 13, {"accuracy": 0.75}))
    assert events.next("picture")["series"]["metrics"]["accuracy"][-1] == 0.75
    told.write(
        Present(START + 92, "spring", {"round": 14, "phase": "collecting", "covered": 4, "chunks": 16})
    )
    now = events.next("now")
    assert now["phase"] == "collecting"
    assert now["why"][0].startswith("no record for "), "as `fedgc status --why` says it"
    told.write(Ended(START + 93, "spring", "completed"))
    assert events.next("picture")["now"]["state"] == "completed"


def test_stream_of_newest_run_moves_to_next_run(events: Events, told: Store):
    assert events.next("picture")["now"]["run"] == "spring"
    told.write(Begun(START + 500, "summer", {"task": "digits"}))
    assert events.next("picture")["now"]["run"] == "summer"


def test_stream_explains_run_anew_when_it_falls_silent(served: Served, told: Store):
    heard = time.time() - ALIVE_S + 3  # of a server on another machine
    told.write(Present(heard, "spring", {"round": 13, "rounds": 99, "phase": "working"}))
    events = Events(served)
    picture = events.next("picture")
    assert picture["now"]["why"][0].startswith("round 13 of 99, working")
    assert picture["now"]["silent_s"] == 0.0
    assert picture["totals"]["left_s"] > 0.0
    now = events.next("now")
    assert now["why"][0].startswith("no record for 1 min")
    assert now["silent_s"] >= ALIVE_S
    events.close()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are seen in /proc")
def test_stream_reports_killed_server(events: Events, told: Store):
    program = (
        "from fedgc.store.liveness import this_process; import json, time; "
        "print(json.dumps(this_process().words()), flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        process = json.loads(server.stdout.readline())
        told.write(Present(START + 99.0, "spring", {"round": 13, SERVER: process}))
        assert events.next("now")["state"] == "running"
        server.kill()
        now = events.next("picture")["now"]
    assert now["state"] == "crashed"
    assert now["reason"].startswith("the server process ")
    assert now["reason"].endswith("; `fedgc run --resume spring` goes on")


def test_stream_survives_temporary_loss_of_store(events: Events, told: Store, path, tmp_path):
    events.next("picture")
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).replace(tmp_path / f"away{ending}")
    path.mkdir()
    told.close()  # what it holds open would go on answering
    assert "store" in events.next("trouble")
    path.rmdir()
    for ending in ("", "-wal", "-shm"):
        if (tmp_path / f"away{ending}").exists():
            (tmp_path / f"away{ending}").replace(path.with_name(path.name + ending))
    assert events.next("picture")["now"]["run"] == "spring"


def test_streams_are_bounded_and_released(served: Served, monkeypatch):
    monkeypatch.setattr(app_room, "MOST_STREAMS", 2)
    first, second = Events(served), Events(served)
    for each in (first, second):
        each.next("picture")
    answer, said = ask(served, "/stream")
    assert answer.status == 503
    assert "2 pages open" in json.loads(said)["error"]
    first.close()
    while (again := Events(served)).status == 503:  # until the server has noticed
        again.close()
    assert again.next("picture")["now"]["run"] == "spring"
    for each in (again, second):
        each.close()


# ---- who may see it


def test_token_is_required(guarded: Served):
    for path in (
        "/",
        "/picture",
        "/stream",
        "/metrics",
        "/page/page.js",
        "/?token=wrong",
        "/picture?token=" + TOKEN,
    ):
        answer, said = ask(guarded, path)
        assert answer.status == 401
        assert b"spring" not in said
    assert ask(guarded, "/", authorization="Bearer wrong")[0].status == 401
    assert ask(guarded, "/", cookie=f"{COOKIE}=wrong")[0].status == 401
    assert ask(guarded, "/", cookie="=;;\x01")[0].status in (400, 401)


def test_address_with_token_sets_cookie_and_clean_address(guarded: Served):
    answer, _ = ask(guarded, f"/?token={TOKEN}")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=lax" in cookie.casefold()
    assert ask(guarded, "/picture", cookie=cookie.partition(";")[0])[0].status == 200
    assert ask(guarded, "/metrics", authorization=f"Bearer {TOKEN}")[0].status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_rebound_host_name_is_refused(served: Served, host: str):
    answer, said = ask(served, "/picture", host=host)
    assert answer.status in (400, 421)
    assert b"spring" not in said


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8600", "[::1]", "[::1]:8600"])
def test_own_host_names_are_served(served: Served, host: str):
    assert ask(served, "/picture", host=host)[0].status == 200


@pytest.mark.parametrize(
    ("place", "asks"), [(Place(), False), (Place("::1"), False), (Place(EVERYWHERE), True)]
)
def test_token_is_generated_for_public_address(place: Place, asks: bool):
    entry = place.entry
    assert (entry.token is not None) is asks
    assert entry.token != Place(EVERYWHERE).entry.token or not asks  # a new one each time


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: Place(port=70_000), "--port: saw 70000"),
        (lambda: Place(token="short"), "token: saw 5 characters"),
        (lambda: Entry("ü" * 20), "all of them ASCII"),
    ],
)
def test_invalid_address_is_refused(wrong, sentence: str):
    with pytest.raises(Unusable, match=sentence):
        wrong()


def test_port_in_use_and_foreign_address_give_one_line(told: Store):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EdgeFailed, match=f"127.0.0.1 port {port}: Address already in use"):
            Served(told, Place(port=port))
    with pytest.raises(EdgeFailed, match=r"192\.0\.2\.1"):
        Served(told, Place("192.0.2.1", 0, TOKEN))


# ---- the page looks at itself


def test_check_finds_light_page_without_external_requests(guarded: Served):
    found = check(guarded)
    assert (found.run, found.rounds, found.clients, found.elsewhere, found.faults) == ("spring", 12, 4, 0, ())
    assert found.page_bytes < HEAVIEST
    assert found.metrics > 20


def test_check_reports_page_with_external_requests(served: Served, monkeypatch):
    told = app_room.page_file
    monkeypatch.setattr(app_room, "page_file", lambda name: told(name) + b'<img src="//cdn.example/x">')
    found = check(served)
    assert found.elsewhere == len(app_room.PAGE)
    assert "references to other machines" in found.faults[0]
