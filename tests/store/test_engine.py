"""Test each fault of a database and its one-line message."""

import contextlib
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import event

from fedgc.errors import EdgeFailed, FedgcError, Unusable
from fedgc.store.database import Store
from fedgc.store.engine import Database, address, default_path
from fedgc.store.records import Seen

NOBODY = 65534


def one_line(refusal: pytest.ExceptionInfo[FedgcError]) -> str:
    text = str(refusal.value)
    assert "\n" not in text
    assert "needed" in text
    return text


def write_for_ever(store):
    for number in count():
        store.write(Seen(2.0, f"{number:0200d}"))


@contextlib.contextmanager
def unprivileged():
    """Root may write read-only files: run as another user."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextlib.contextmanager
def privileged():
    """Be the user again that `unprivileged` left."""
    was = os.geteuid()
    if os.getuid() == 0:
        os.seteuid(0)
    try:
        yield
    finally:
        os.seteuid(was)


@pytest.mark.parametrize(
    ("url", "environment", "expected"),
    [
        ("/data/a.db", {"FEDGC_DB": "/data/b.db"}, "sqlite:////data/a.db"),
        (None, {"FEDGC_DB": "/data/b.db"}, "sqlite:////data/b.db"),
        (None, {"XDG_STATE_HOME": "/state"}, "sqlite:////state/fedgc/fedgc.db"),
        (None, {"HOME": "/home/ada"}, "sqlite:////home/ada/.local/state/fedgc/fedgc.db"),
        ("postgresql://h/d", {}, "postgresql+psycopg://h/d"),
    ],
)
def test_address_is_argument_then_environment_then_default(url, environment, expected):
    assert str(address(url, environment)) == expected


def test_default_needs_no_home_in_environment():
    assert default_path({}) == Path.home() / ".local" / "state" / "fedgc" / "fedgc.db"


def test_relative_state_folder_is_refused():
    with pytest.raises(Unusable, match="XDG_STATE_HOME: saw state, needed an absolute path"):
        address(None, {"XDG_STATE_HOME": "state"})


def test_environment_names_store_and_its_folder_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "new" / "folder" / "f.db"))
    Store.open().close()
    assert (tmp_path / "new" / "folder" / "f.db").is_file()


def test_database_that_is_not_supported_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "MySQLdb", None)
    with pytest.raises(Unusable) as failure:
        Store.open("mysql://host/x")
    said = (
        "store mysql://host/x: saw the database mysql, needed the path of an SQLite file, or postgresql://..."
    )
    assert str(failure.value) == said


@pytest.mark.parametrize("url", ["nosuch://host/x", "://", "postgresql+nosuchdriver://h/d"])
def test_unknown_address_is_refused(url):
    with pytest.raises(Unusable) as refusal:
        Store.open(url)
    one_line(refusal)


def test_password_is_never_shown():
    url = "postgresql://ada:secret@127.0.0.1:1/none"
    pytest.importorskip("psycopg")
    with pytest.raises(EdgeFailed) as failure:
        Store.open(url, wait_s=0.1)
    assert "secret" not in str(failure.value)
    assert "ada:***@" in str(failure.value)


@pytest.mark.parametrize("content", [b"this is a packet, not a database" * 40, b"\x89PNG\r\n" * 200])
def test_non_database_file_is_refused_and_unchanged(tmp_path, content):
    path = tmp_path / "packet.txt"
    path.write_bytes(content)
    for reads_only in (False, True):
        with pytest.raises(Unusable, match="is not a database") as refusal:
            Store.open(str(path), reads_only=reads_only)
        one_line(refusal)
    assert path.read_bytes() == content


def test_database_of_other_program_is_refused_and_unchanged(tmp_path):
    path = tmp_path / "bookmarks.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE bookmarks (url)")
        other.commit()
    content = path.read_bytes()
    with pytest.raises(Unusable, match=r"tables of another program \(bookmarks\)") as refusal:
        Store.open(str(path))
    one_line(refusal)
    assert path.read_bytes() == content, "nor is it turned to WAL"
    with contextlib.closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("bookmarks",)]


def test_missing_store_is_created_only_on_request(tmp_path):
    path = tmp_path / "deep" / "fedgc.db"
    with pytest.raises(Unusable, match="saw nothing there, needed the store of an earlier run") as refusal:
        Store.open(str(path), makes=False)
    one_line(refusal)
    assert not path.parent.exists()
    Store.open(str(path)).close()
    Store.open(str(path), makes=False).close()


@pytest.mark.parametrize("reads_only", [False, True])
def test_folder_in_place_of_file_is_refused(tmp_path, reads_only):
    with pytest.raises(Unusable, match="is a folder; needed the name of a file") as refusal:
        Store.open(str(tmp_path), reads_only=reads_only)
    one_line(refusal)


def test_file_of_another_user_is_refused():
    with tempfile.TemporaryDirectory() as folder:  # where other users may look, unlike `tmp_path`
        path = Path(folder) / "store.db"
        Store.open(str(path)).close()
        path.parent.chmod(0o755)
        path.chmod(0)
        with (
            unprivileged(),
            pytest.raises(EdgeFailed, match="needed the right to read and write it") as refusal,
        ):
            Store.open(str(path), reads_only=True)
        one_line(refusal)


def test_uncreatable_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Unusable, match="its folder") as refusal:
        Store.open(str(tmp_path / "file" / "store.db"))
    one_line(refusal)


def test_reading_creates_nothing(tmp_path):
    path = tmp_path / "none" / "store.db"
    with pytest.raises(Unusable, match="saw nothing there"):
        Store.open(str(path), reads_only=True)
    assert not path.parent.exists()


@pytest.fixture
def shared() -> Iterator[Path]:
    """The store of one client, in a folder that users without privileges can enter."""
    folder = Path(tempfile.mkdtemp(prefix="fedgc-read-only-"))
    with Store.open(str(folder / "store.db")) as store:
        store.write(Seen(1.0, "a"))
    folder.chmod(0o755)
    yield folder / "store.db"
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_read_only_store_is_readable_and_write_is_reported(shared):
    shared.chmod(0o444)
    with unprivileged():
        with Store.open(str(shared), reads_only=True) as store:
            assert [client.client for client in store.clients()] == ["a"]
        with pytest.raises(EdgeFailed, match="is read-only") as failure:
            Store.open(str(shared))
    one_line(failure)


def test_reader_in_read_only_folder_sees_later_writes(shared):
    shared.chmod(0o644)
    shared.parent.chmod(0o555)
    with unprivileged(), Store.open(str(shared), reads_only=True) as reader:
        assert [client.client for client in reader.clients()] == ["a"]
        with privileged():
            shared.parent.chmod(0o755)
            with Store.open(str(shared)) as store:
                store.write(Seen(2.0, "b"))
            shared.parent.chmod(0o555)
        assert [client.client for client in reader.clients()] == ["a", "b"]


def test_file_turned_read_only_is_reported_on_write(tmp_path):
    with Store.open(str(tmp_path / "store.db")) as store:
        store.write(Seen(1.0, "a"))

        @event.listens_for(store._database.engine, "connect")
        def read_only(connection, _record):
            connection.execute("PRAGMA query_only = ON")

        store._database.engine.dispose()
        with pytest.raises(EdgeFailed, match="is read-only") as failure:
            store.write(Seen(2.0, "b"))
        one_line(failure)


def test_locked_store_is_reported_and_works_after_unlock(tmp_path):
    path = tmp_path / "store.db"
    Store.open(str(path)).close()
    with Store.open(str(path), wait_s=0.05) as store, contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(EdgeFailed, match="is locked by another program") as failure:
            store.write(Seen(1.0, "a"))
        one_line(failure)
        assert store.clients() == ()  # a reader never waits for the writer
        other.rollback()
        store.write(Seen(1.0, "a"))
        assert [client.client for client in store.clients()] == ["a"]


def test_locked_new_file_is_reported(tmp_path):
    path = tmp_path / "store.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(EdgeFailed, match="is locked by another program"):
            Store.open(str(path), wait_s=0.05)


def test_full_disk_is_reported_and_loses_no_written_rows(tmp_path):
    path = tmp_path / "store.db"
    with Store.open(str(path)) as store:
        store.write(Seen(1.0, "a"))
    with Store.open(str(path)) as store:

        @event.listens_for(store._database.engine, "connect")
        def no_more_pages(connection, _record):
            connection.execute("PRAGMA max_page_count = 1")  # no more than there are

        store._database.engine.dispose()
        with pytest.raises(EdgeFailed, match="the disk is full") as failure:
            write_for_ever(store)
        one_line(failure)
    with Store.open(str(path)) as store:
        assert store.clients()[0].client == "a"
        assert store.check().faults == ()


def test_damaged_file_is_detected_by_check(tmp_path):
    path = tmp_path / "store.db"
    with Store.open(str(path)) as store:
        for number in range(200):
            store.write(Seen(1.0, f"client-{number}"))
    data = bytearray(path.read_bytes())
    with contextlib.closing(sqlite3.connect(path)) as plain:
        (page,) = plain.execute("SELECT rootpage FROM sqlite_master WHERE name = 'clients'").fetchone()
    data[(page - 1) * 4096 + 8 : page * 4096] = os.urandom(4088)
    path.write_bytes(data)
    with Store.open(str(path), reads_only=True) as store:
        assert store.check().faults
        with pytest.raises(EdgeFailed, match="is damaged; needed a backup"):
            store.clients()


def test_sqlite_is_configured_for_durability(tmp_path):
    with Store.open(str(tmp_path / "store.db")) as store, store._database.reading() as connection:
        asked = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        seen = [connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in asked]
    assert seen == ["wal", 2, 1, 5000]


def test_threads_share_in_memory_database():
    database = Database(address("sqlite://", {}), 1.0)
    with database.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
    with database.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM t").scalar_one() == 0
    database.close()
