import contextlib
import sqlite3
import subprocess
import sys

import pytest

from fedgc.errors import EdgeFailed, Unusable
from fedgc.store.database import Store
from fedgc.store.records import Appended, Begun, Seen


def test_backup_is_separate_store(file_store, tmp_path, a_row, a_client):
    file_store.write(Begun(1.0, "r1", {"task": "digits"}))
    file_store.write(Appended(2.0, "r1", a_row(0, a_client("a"))))
    file_store.backup(tmp_path / "copy.db")
    file_store.write(Seen(3.0, "b"))
    with Store.open(str(tmp_path / "copy.db"), reads_only=True) as copy:
        assert [client.client for client in copy.clients()] == ["a"]
        assert copy.client_rows("r1", 0) == file_store.client_rows("r1", 0)
        assert copy.check().faults == ()
    assert sorted(path.suffix for path in tmp_path.iterdir() if "copy" in path.name) == [".db"]


def test_backup_does_not_overwrite_file(file_store, tmp_path):
    (tmp_path / "packet").write_text("dear")
    with pytest.raises(Unusable, match="needed a new name"):
        file_store.backup(tmp_path / "packet")
    assert (tmp_path / "packet").read_text() == "dear"


def test_unwritable_backup_is_reported_and_leaves_nothing(file_store, tmp_path):
    with pytest.raises(EdgeFailed, match="could not be written"):
        file_store.backup(tmp_path / "nowhere" / "copy.db")
    (tmp_path / "taken").touch()
    with pytest.raises(EdgeFailed, match="could not be written: Not a directory"):
        file_store.backup(tmp_path / "taken" / "copy.db")


def test_database_server_is_backed_up_by_its_own_tool(postgres, tmp_path):
    with Store.open(postgres.fresh()) as store, pytest.raises(Unusable, match="pg_dump"):
        store.backup(tmp_path / "copy.db")


def test_vacuum_releases_folded_space(file_store, a_row, a_client):
    file_store.write(Begun(1.0, "r1", {"task": "digits"}))
    for number in range(80):
        clients = [a_client(f"client-{each}") for each in range(40)]
        file_store.write(Appended(2.0 + number, "r1", a_row(number, *clients)))
    before = file_store.check()
    assert file_store.fold(keep_rounds=1) == (80 - 32) * 40
    file_store.vacuum()
    after = file_store.check()
    assert after.size_bytes < before.size_bytes * 0.75
    assert after.client_rounds + after.folded == before.client_rounds == 80 * 40


SMALL_DISK = """
import os, shutil, sys
from pathlib import Path
from fedgc.errors import EdgeFailed
from fedgc.store.database import Store
from fedgc.store.records import Seen

path = Path(shutil.copy(sys.argv[1], sys.argv[2]))
filler = path.with_name("filler")
filler.write_bytes(bytes(shutil.disk_usage(path.parent).free - 300_000))
with Store.open(str(path)) as store:
    print(store.fold(1))
    try:
        store.vacuum()
    except EdgeFailed as error:
        print(error)
    print(store.check().faults, flush=True)
with filler.open("ab") as file:
    os.posix_fallocate(file.fileno(), filler.stat().st_size, shutil.disk_usage(path.parent).free)
try:
    Store.open(str(path), reads_only=True).clients()
except EdgeFailed as error:
    print(error)
"""


def test_full_disk_has_rows_folded_in_small_steps(file_store, tmp_path, a_row, a_client):
    file_store.write(Begun(1.0, "r1", {"task": "digits"}))
    rows = []
    for number in range(300):
        clients = [a_client(f"client-{each}", failure=f"{each}" * 40) for each in range(40)]
        rows.append((Appended(2.0 + number, "r1", a_row(number, *clients)), None))
    file_store.write_all(rows)
    file_store.close()
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = f'mount -t tmpfs -o size=4m none {disk} && exec {sys.executable} -c "$0" "$@"'
    words = ["unshare", "-rm", "sh", "-c", mounted, SMALL_DISK, str(tmp_path / "store.db"), str(disk)]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    if said.returncode and "fedgc" not in said.stderr:
        pytest.skip(f"no file system of its own: {said.stderr.strip()[-80:]}")
    folded, vacuumed, faults, opened = said.stdout.splitlines()
    assert int(folded) == (300 - 32) * 40
    assert "needed" in vacuumed
    assert "to make its file smaller" in vacuumed
    assert faults == "()"
    assert opened.endswith("the disk is full; needed space to write")


def test_check_detects_dangling_reference(file_store, tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as other:
        other.execute("INSERT INTO summaries SELECT 7, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1")
        other.commit()
    assert len(file_store.check().faults) == 2
    assert "summaries: a row refers to one of" in file_store.check().faults[0]


def test_client_row_takes_less_than_200_bytes(file_store, a_row, a_client):
    file_store.write(Begun(1.0, "r1", {"task": "digits"}))
    identities = [f"{each:064x}" for each in range(100)]
    for number in range(100):
        clients = [
            a_client(each, step_s=0.1 / 3 + number, busy_s=1 / 7, up_bytes=10**9) for each in identities
        ]
        file_store.write(Appended(1e6 + number, "r1", a_row(number, *clients)))
    health = file_store.check()
    assert health.client_rounds == 10_000
    assert health.size_bytes / health.client_rounds < 200


def test_server_is_reached_again_after_dropped_connections(postgres):
    with Store.open(postgres.fresh()) as store:
        store.write(Seen(1.0, "a"))
        with Store.open(postgres.fresh()) as other, other._database.reading() as connection:
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            connection.exec_driver_sql(
                f"{others} AND usename = 'postgres' AND backend_type = 'client backend'"
            )
        store.write(Seen(2.0, "b"))
        assert [client.client for client in store.clients()] == ["a", "b"]
