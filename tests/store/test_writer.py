"""Test the store writer against real failures: locks, refusals, unwritable files."""

import contextlib
import sqlite3
import threading

import pytest

from fedgc.errors import EdgeFailed
from fedgc.store import writer as keeping
from fedgc.store.database import Store
from fedgc.store.records import Appended, Audited, Begun, Present, Seen
from fedgc.store.spool import Aside
from fedgc.store.writer import Keeper
from tests.interrupting import at_line

WAIT_S = 30.0


@pytest.fixture
def path(tmp_path):
    Store.open(str(tmp_path / "store.db")).close()
    return tmp_path / "store.db"


@pytest.fixture
def keep(path, tmp_path):
    """Start a store writer, and collect its reports."""
    with contextlib.ExitStack() as stack:

        def make(opening=lambda: Store.open(str(path), wait_s=0.02), aside=tmp_path / "aside", retry_s=0.02):
            told = []
            return stack.enter_context(Keeper(opening, aside, told.append, retry_s)), told

        yield make


@contextlib.contextmanager
def locked(path):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def seen(path):
    with Store.open(str(path), reads_only=True) as store:
        return [client.client for client in store.clients()]


def test_records_are_written_in_order(keep, path, a_row, a_client):
    keeper, told = keep()
    keeper.put(Begun(1.0, "r1", {"task": "digits"}))
    for number in range(20):
        keeper.put(Appended(2.0 + number, "r1", a_row(number, a_client(f"d{number}"))))
    assert keeper.settled(WAIT_S)
    assert seen(path) == [f"d{number}" for number in range(20)]
    assert (told, keeper.trouble) == ([], "")


def test_close_writes_waiting_records(keep, path):
    keeper, _ = keep()
    for number in range(20):
        keeper.put(Seen(1.0, f"d{number}"))
    keeper.close()
    assert len(seen(path)) == 20


def test_locked_store_blocks_no_caller_and_gets_all_rows_later(keep, path, tmp_path):
    keeper, told = keep()
    with locked(path):
        for number in range(5):
            keeper.put(Seen(1.0, f"d{number}"))
        assert keeper.flush(WAIT_S)  # on the disk, though not in the store
        assert Aside(tmp_path / "aside").count == 5
        keeper.put(Seen(1.0, "d5"))
        assert keeper.flush(WAIT_S)
        assert "is locked" in keeper.trouble
        assert "6 records wait, 0 are lost" in keeper.trouble
    assert keeper.settled(WAIT_S)
    assert seen(path) == [f"d{number}" for number in range(6)]
    keeper.close()
    assert not (tmp_path / "aside").exists()
    assert len(told) == 2
    assert "is locked by another program" in told[0]
    assert "the store is back" in told[1]
    assert keeper.trouble == ""


def test_unopenable_store_blocks_no_caller(keep, path):
    there = threading.Event()

    def opening():
        if not there.is_set():
            raise EdgeFailed("the server is away")
        return Store.open(str(path))

    keeper, told = keep(opening)
    keeper.put(Seen(1.0, "a"))
    assert keeper.flush(WAIT_S)
    there.set()
    keeper.put(Seen(1.0, "b"))
    assert keeper.settled(WAIT_S)
    assert seen(path) == ["a", "b"]
    assert "the server is away" in told[0]


def test_run_ending_while_store_fails_leaves_rows_for_next_run(keep, path, tmp_path):
    keeper, told = keep()
    with locked(path):
        keeper.put(Seen(1.0, "a"))
        keeper.put(Audited(1.0, "joined", "a", "with key"))
        keeper.close()
    assert seen(path) == []
    assert "2 records wait in" in told[-1]
    keeper, _ = keep()
    keeper.put(Seen(1.0, "b"))
    assert keeper.settled(WAIT_S)
    assert seen(path) == ["a", "b"]
    assert not (tmp_path / "aside").exists()


def test_run_ending_without_writable_place_reports_loss(keep, path, tmp_path):
    (tmp_path / "file").write_text("")
    keeper, told = keep(aside=tmp_path / "file" / "aside")
    with locked(path):
        keeper.put(Seen(1.0, "a"))
        keeper.close()
    assert "1 records are lost" in told[-1]


def test_lines_written_before_kill_are_not_written_twice(keep, path, tmp_path, a_row, a_client):
    records = [
        Begun(1.0, "r1", {"task": "digits"}),
        Appended(2.0, "r1", a_row(0, a_client("a"))),
        Audited(3.0, "joined", "a", "with key"),
    ]
    entries = [(record, f"stamp-{number}") for number, record in enumerate(records)]
    for _ in range(2):
        Aside(tmp_path / "aside").add(entries)
        keeper, _ = keep()
        assert keeper.settled(WAIT_S)
        keeper.close()
    with Store.open(str(path)) as store:
        assert len(store.audited()) == 1
        assert [(pace.rounds, pace.finished) for pace in store.paces()] == [(1, 4)]


def test_records_of_earlier_process_are_written_first(keep, path, tmp_path):
    Aside(tmp_path / "aside").add([(Seen(1.0, f"a{number}"), f"s{number}") for number in range(3)])
    ready = threading.Event()

    def opening():
        ready.wait(WAIT_S)
        return Store.open(str(path))

    keeper, _ = keep(opening)
    keeper.put(Seen(1.0, "b"))
    ready.set()
    assert keeper.settled(WAIT_S)
    assert seen(path) == ["a0", "a1", "a2", "b"]


def test_unfinished_last_line_is_cut_off(keep, path, tmp_path):
    Aside(tmp_path / "aside").add([(Seen(1.0, "a"), "s1")])
    with (tmp_path / "aside").open("a") as file:
        file.write('{"stamp": "s2", "kind": "Se')
    Aside(tmp_path / "aside").add([(Seen(1.0, "b"), "s3")])
    keeper, told = keep()
    assert keeper.settled(WAIT_S)
    assert (seen(path), told) == (["a", "b"], [])


@pytest.mark.parametrize("damage", [b"no json\n", b"\xff\xfe\n", b"\n"])
def test_damaged_line_is_reported_and_skipped(keep, path, tmp_path, damage):
    Aside(tmp_path / "aside").add([(Seen(1.0, "a"), "s1")])
    with (tmp_path / "aside").open("ab") as file:
        file.write(damage)
    Aside(tmp_path / "aside").add([(Seen(1.0, "b"), "s2")])
    keeper, told = keep()
    assert keeper.settled(WAIT_S)
    assert seen(path) == ["a", "b"]
    assert len(told) == 1
    assert "left a record out" in told[0]


def test_refused_record_blocks_no_other_record(keep, path, a_row):
    keeper, told = keep()
    keeper.put(Appended(1.0, "never-begun", a_row(0)))
    keeper.put(Seen(1.0, "a"))
    assert keeper.settled(WAIT_S)
    assert seen(path) == ["a"]
    assert len(told) == 1
    assert "left a record out" in told[0]
    assert "never-begun" in told[0]


@pytest.fixture
def held(keep, path):
    """A store writer that cannot open its store yet, what it reports, and an event that lets it."""
    free, asked = threading.Event(), threading.Event()

    def opening():
        asked.set()
        free.wait(WAIT_S)
        return Store.open(str(path))

    keeper, told = keep(opening)
    keeper.put(Begun(1.0, "r1", {"task": "digits"}))
    assert asked.wait(WAIT_S)
    yield keeper, told, free
    free.set()


def test_burst_beyond_limit_is_written_without_loss(held, path):
    keeper, told, free = held
    for number in range(2 * keeping.LIMIT):
        keeper.put(Seen(1.0, f"d{number:04d}"))
    free.set()
    assert keeper.settled(WAIT_S)
    assert seen(path) == [f"d{number:04d}" for number in range(2 * keeping.LIMIT)]
    assert told == []


def test_refused_record_among_many_is_left_out_alone(held, path, a_row):
    keeper, told, free = held
    for record in (Seen(1.0, "a"), Appended(1.0, "never-begun", a_row(0)), Seen(2.0, "b"), Seen(3.0, "c")):
        keeper.put(record)
    free.set()
    assert keeper.settled(WAIT_S)
    assert seen(path) == ["a", "b", "c"]
    assert len(told) == 1
    assert "never-begun" in told[0]


def test_newest_records_wait_in_memory_without_writable_place(keep, path, tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "LIMIT", 3)
    (tmp_path / "file").write_text("")
    keeper, told = keep(aside=tmp_path / "file" / "aside")
    with locked(path):
        for number in range(8):
            keeper.put(Seen(1.0, f"d{number}"))
        assert not keeper.flush(0.2)
        assert "3 records wait, 5 are lost" in keeper.trouble
    assert keeper.settled(WAIT_S)
    keeper.close()
    assert seen(path) == ["d5", "d6", "d7"]
    assert "5 records were lost" in told[-1]


def test_only_newest_record_of_current_round_waits(held, path):
    keeper, _, free = held
    for number in range(50):
        keeper.put(Present(2.0, "r1", {"round": number}))  # returns at once, though the store does not
    assert len(keeper._waiting) == 2
    free.set()
    assert keeper.settled(WAIT_S)
    with Store.open(str(path)) as store:
        assert dict(store.run().present) == {"round": 49}


def test_record_of_signal_handler_is_never_lost(held, path):
    keeper, told, free = held
    number, more = 0, True
    while more:
        keeper.put(Present(2.0, "r1", {"round": number}))
        with at_line(
            number, keeping, lambda at=number: keeper.put(Audited(1.0, "joined", f"c{at}", ""))
        ) as at:
            keeper.put(Present(2.0, "r1", {"round": number}))
        more = len(at) > number
        number += 1
    free.set()
    assert keeper.settled(WAIT_S)
    with Store.open(str(path)) as store:
        assert {each.who for each in store.audited()} == {f"c{at}" for at in range(number - 1)}
        assert dict(store.run().present) == {"round": number - 1}
    assert number > 5
    assert told == []


def test_current_round_is_not_spooled(keep, path, tmp_path):
    keeper, _ = keep()
    keeper.put(Begun(1.0, "r1", {"task": "digits"}))
    assert keeper.settled(WAIT_S)
    with locked(path):
        keeper.put(Present(2.0, "r1", {"round": 1}))
        assert keeper.flush(WAIT_S)
        assert not (tmp_path / "aside").exists()


def test_unreadable_spool_is_reported(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(EdgeFailed, match="needed a file that can be read"):
        Aside(tmp_path / "folder")
