"""Test guards at the edges: a bug that one input triggers costs its sender, and nothing else."""

import json
import logging
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sqlalchemy import text

from fedgc import cli, guards
from fedgc.codes import RunningSum
from fedgc.errors import LONGEST_TEXT, BadMessage, EdgeFailed, Unexpected, words_of
from fedgc.flower.event_guard import EventGuard
from fedgc.flower.masked_client import failure
from fedgc.guards import COUNTS, DEBUG, guarded
from fedgc.links import frames as wire
from fedgc.links.session.client import Session
from fedgc.messages import LONGEST_REASON, Failed, Held, Joined, Published, Reveal, Skip, Stop, Tick
from fedgc.round.coded.scheduler import CodedScheduler
from fedgc.store.database import Store
from fedgc.training import CacheFiles
from fedgc.training.cache import Saved
from fedgc.training.cache_files import TrajectoryInfo
from fedgc.training.loop.environment import ScriptEnvironment
from fedgc.training.loop.leader import Leader
from fedgc.training.loop.protocol import LineSocket
from fedgc.web.serve import Place, Served
from tests.flower.test_client_loop import given_work, serving
from tests.flower.test_driver import run
from tests.links.conftest import WAIT_S, Link, link, make_link
from tests.links.message.test_grid_loop import House, joined, task
from tests.links.session.test_sessions_guards import NONCE, Visitor
from tests.web.run_of_four import tell_a_run
from tests.web.test_served import ask

__all__ = ["link", "make_link", "task"]


@pytest.fixture(autouse=True)
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Count anew in each test, without a debug option of the caller's environment."""
    monkeypatch.delenv(DEBUG, raising=False)
    COUNTS.clear()
    yield
    COUNTS.clear()


class Faulty:
    """A function that raises a KeyError at its calls number `first` to `last`, else calls another."""

    def __init__(self, real, first: int = 1, last: int = 1) -> None:
        self.real, self.calls, self.faulty = real, 0, range(first, last + 1)

    def __get__(self, instance, owner=None):
        return lambda *args, **named: self(instance, *args, **named)

    def __call__(self, *args, **named):
        self.calls += 1
        if self.calls in self.faulty:
            raise KeyError("a bug")
        return self.real(*args, **named)


def test_guard_counts_and_logs_first_of_each_kind(caplog) -> None:
    for cause in (KeyError("one"), KeyError("two"), ValueError("three\nlines")):
        with pytest.raises(Unexpected, match="a frame \\(x\\): saw") as seen, guarded("a frame", "x"):
            raise cause
        assert seen.value.__cause__ is cause
    assert COUNTS == {("a frame", "KeyError"): 2, ("a frame", "ValueError"): 1}
    assert ["KeyError" in each for each in caplog.messages] == [True, False]
    assert all(DEBUG in each for each in caplog.messages)
    assert not any(record.exc_info for record in caplog.records)


def test_guard_passes_errors_of_fedgc_and_ends_of_process() -> None:
    for error in (BadMessage("foreseen"), EdgeFailed("the disk"), KeyboardInterrupt(), SystemExit(3)):
        with pytest.raises(type(error)) as seen, guarded("a frame"):
            raise error
        assert seen.value is error
    assert not COUNTS


def test_debug_option_of_command_line_logs_traceback(monkeypatch, caplog) -> None:
    monkeypatch.setenv(DEBUG, "")
    monkeypatch.setattr("sys.argv", ["fedgc", "--debug", "sim"])
    with pytest.raises(SystemExit):
        cli.run_program(lambda: lambda **_: 0)
    with pytest.raises(EdgeFailed), guarded("a file", error=EdgeFailed):
        {}["x"]
    assert "Traceback" in caplog.text
    assert "test_guards.py" in caplog.text
    assert f"{DEBUG}=1" not in caplog.text


def test_bug_in_frame_of_session_costs_that_frame() -> None:
    visitor = Visitor()
    visitor.admission.expect(b"one")
    peer, _ = visitor.sessions.admit(visitor.hello(b"one"), NONCE)
    visitor.sessions._emit = Faulty(visitor.events.append)
    for sequence in (1, 2):
        visitor.sessions.arrived(peer, wire.encode(Joined(0.0, "x", True, (Held("a", 1),)), sequence))
    assert [type(event) for event in visitor.events] == [Joined]
    assert visitor.sessions.refusals.counts == {"Unexpected KeyError": 1}
    assert peer.flow.accounts.settle().refused == 1
    assert visitor.sessions.peers


def test_bug_in_answer_does_not_end_grid_loop(link) -> None:
    house = House(link)
    (packet,) = house.turn()
    house.message_server._emit = Faulty(house.events.append)
    house.answers(packet)
    assert house.turn() == []
    assert house.message_server.refusals.counts == {"Unexpected KeyError": 1}
    (again,) = house.turn()
    house.answers(again)
    house.turn(0.05)
    assert house.events[1:] == joined(house)


def test_bug_in_reply_costs_its_node_one_pause(link, monkeypatch) -> None:
    house = House(link, link.listener, run="run-1")
    (invitation,) = house.turn()
    monkeypatch.setattr(house.grid_loop, "_session_over", Faulty(house.grid_loop._session_over))
    house.session_ends(invitation, reached=True)
    assert house.turn() == []
    assert len(house.turn(3600.0)) == 1, "the node is invited again"
    assert "KeyError" in house.grid_loop.explained()


def test_bug_in_event_of_client_costs_that_event(tmp_path: Path, monkeypatch, caplog) -> None:
    heard = Faulty(CodedScheduler.heard, first=2, last=2)
    monkeypatch.setattr(CodedScheduler, "heard", heard)
    driver, sink, _ = run(tmp_path, evaluate_every=0)
    assert heard.calls > 2
    assert driver.finished.complete
    assert [row.version for row in sink.rows] == [0, 1]
    assert driver.guard.refusals.counts == {"Unexpected KeyError": 1}
    (refused,) = [each for row in sink.rows for each in row.clients if each.refused]
    assert ("refused", refused.client) in [audit[:2] for audit in sink.audit]
    assert f"an event Progress ({refused.client}): saw KeyError" in caplog.text


@pytest.mark.parametrize("event", [Tick(1.0), Stop(1.0, "enough"), Published(1.0, 0, bytes(32))], ids=repr)
def test_bug_in_event_of_server_ends_run(event) -> None:
    guard = EventGuard(logging.getLogger("test"), lambda: 1)
    with pytest.raises(KeyError, match="a bug"):
        guard.outputs(event, Faulty(None))


def test_vector_that_cannot_be_added_leaves_round_out(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(RunningSum, "add", Faulty(RunningSum.add))
    driver, sink, saved = run(tmp_path, evaluate_every=0)
    assert driver.finished.complete
    assert [each.version for each in saved] == [1, 2]
    np.testing.assert_array_equal(saved[0].model, driver.common.first())
    assert not np.array_equal(saved[1].model, saved[0].model)
    assert sum(client.refused for client in sink.rows[0].clients) == 1
    assert sum(client.refused for client in sink.rows[1].clients) == 0


def test_bug_in_frame_of_server_ends_session_with_reason(link: Link, monkeypatch) -> None:
    monkeypatch.setattr(Session, "_command", Faulty(Session._command))
    session = link.session()
    client = link.event(Joined).client
    link.listener.send(Skip(client, 1, 0))
    assert session.receive(WAIT_S) is None
    assert "a frame of the server: saw KeyError" in session.ended


def test_bug_in_command_is_reported_as_failure(link: Link) -> None:
    with serving(link) as (engine, client, ended):
        given_work(link, client)
        engine.error = ZeroDivisionError("a bug")
        link.listener.send(Skip(client, 1, 0))
        assert "a command Skip: saw ZeroDivisionError: a bug" in link.event(Failed).reason
        assert not ended


def test_long_reason_of_failure_is_cut() -> None:
    failed = failure(Reveal("a", 1, 0, "local", None), BadMessage("x" * 5000))
    assert len(failed.reason) == LONGEST_REASON


@pytest.mark.parametrize("path", ["/picture", "/round?round=1", "/metrics", "/stream"])
def test_bug_behind_page_is_answered_in_one_line(told_store: Store, monkeypatch, path: str) -> None:
    for name in ("pulse", "run", "rounds", "lately", "stretches"):
        monkeypatch.setattr(Store, name, Faulty(None, last=10**9))
    with Served(told_store, Place(port=0)).beside() as served:
        answer, said = ask(served, path)
    assert answer.status == 503
    assert "saw KeyError" in json.loads(said)["error"]


@pytest.fixture
def told_store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "fedgc.db")) as store:
        yield store


def test_damaged_row_of_store_hides_no_other(told_store: Store) -> None:
    tell_a_run(told_store)
    with told_store._database.writing() as connection:
        connection.execute(text("UPDATE runs SET present = '{broken', settings = '7'"))
    (found,) = told_store.runs()
    assert (dict(found.present), dict(found.settings)) == ({}, {})


def test_foreign_files_in_client_cache_are_passed_over(tmp_path: Path) -> None:
    cache = CacheFiles(tmp_path)
    cache.put_model(3, np.ones(4, np.float32))
    for name in ("model-1-2-3.pt", "model-x-y.pt", "model-.pt", "rest-0.pt", "private-0.pt"):
        (tmp_path / name).write_bytes(b"?")
    (tmp_path / "chunk-1-0.pt").mkdir()
    assert list(cache.models()) == [3]
    assert cache.model(3) is not None
    assert dict(cache.found()) == {}
    assert (cache.residual(), cache.private()) == (None, {})
    cache.put_private({"head": torch.ones(2)})
    assert list(cache.private()) == ["head"]


@pytest.mark.parametrize(
    "changes",
    [{"version": "x"}, {"reached": 2.5}, {"name": 7}, {"chunk": -1, "name": "no JSON"}, {"led": None}],
    ids=str,
)
def test_cache_file_with_other_types_is_passed_over(tmp_path: Path, changes: dict[str, object]) -> None:
    info = TrajectoryInfo(2, "m", 7, 1, "a", 8, 3, 0.5, 0.25, 0, 4, 0.0, "")
    saved = Saved(np.ones(4, np.float32), [], {})
    CacheFiles(tmp_path).put(info, saved)
    assert list(CacheFiles(tmp_path).found()) == [1]
    CacheFiles(tmp_path).put(replace(info, **changes), saved)
    assert list(CacheFiles(tmp_path).found()) == ([1] if "chunk" in changes else [])
    assert not COUNTS


def test_bad_line_of_client_ends_script_with_its_reason(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "client"))
        listener.listen()
        leader = Leader(ScriptEnvironment(str(tmp_path / "client"), "secret", {}, {}, str(tmp_path)))
        connection, _ = listener.accept()
    line = LineSocket(connection)
    line.send("train", round="?")
    with pytest.raises(EdgeFailed, match="a line of the client: saw ValueError"):
        leader.next()
    line.close()
    leader.close()


def test_words_of_exception_are_one_line() -> None:
    assert words_of(ValueError("a\tb\x1b" + "c" * 5000 + "\nd"), 200).startswith("ValueError: a bccc")
    assert len(words_of(ValueError("c" * 5000), LONGEST_TEXT)) == LONGEST_TEXT
    assert logging.getLogger("flwr.fedgc") is guards.LOG
