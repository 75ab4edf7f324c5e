import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from fedgc.config import RunConfig, known
from fedgc.errors import EdgeFailed, Unusable
from fedgc.history import Score
from fedgc.store import migrate
from fedgc.store.database import Store
from fedgc.store.engine import open_to_write
from fedgc.store.records import Appended, Begun, Evaluated, Scored
from fedgc.store.tables import Table

NEWEST, NEXT = "0006", "0007"
OLD = Path(__file__).with_name("written_by_0001.sql")  # as the code of schema 0001 wrote it
FURTHER = f"""
import sqlalchemy as sa
from alembic import op
revision = "{NEXT}"
down_revision = "{NEWEST}"
def upgrade():
    op.create_table("more", sa.Column("id", sa.Integer(), primary_key=True))
    {{then}}
"""


@pytest.fixture
def further_step(tmp_path, monkeypatch):
    """Let the code know a step more."""

    def make(then: str) -> None:
        folder = tmp_path / "migrations"
        shutil.copytree(Path(migrate.__file__).with_name("migrations"), folder, dirs_exist_ok=True)
        (folder / "versions" / "further.py").write_text(FURTHER.format(then=then))

        def steps():
            found = ScriptDirectory(str(folder))
            return found, tuple(found.walk_revisions())[::-1]

        monkeypatch.setattr(migrate, "steps", steps)

    return make


def state(store: Store) -> tuple[bool, str]:
    with store._database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": migrate.VERSION_TABLE})
        return "more" in inspect(connection).get_table_names(), context.get_current_revision()


def test_migrations_lead_to_tables_of_code(store):
    with store._database.reading() as connection:
        options = {"version_table": migrate.VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Table.metadata) == []


def test_every_foreign_key_and_primary_key_exists(store):
    with store._database.reading() as connection:
        seen = inspect(connection)
        for name, table in Table.metadata.tables.items():
            assert seen.get_pk_constraint(name)["constrained_columns"] == [
                column.name for column in table.primary_key
            ]
            assert {key["constrained_columns"][0] for key in seen.get_foreign_keys(name)} == {
                key.parent.name for key in table.foreign_keys
            }


def test_older_schema_is_copied_and_upgraded(url, further_step, tmp_path):
    if url == "sqlite://":
        pytest.skip("a database in memory is never older than the code")
    Store.open(url).close()
    further_step("pass")
    if "://" not in url:
        with Store.open(url, reads_only=True, older=True) as store:
            store.backup(tmp_path / "copy.db")
        with pytest.raises(Unusable, match="older schema"):
            Store.open(str(tmp_path / "copy.db"), reads_only=True)
    with pytest.raises(Unusable, match="older schema"):
        Store.open(url, reads_only=True)
    with Store.open(url) as store:
        assert state(store) == (True, NEXT)
    Store.open(url, reads_only=True).close()


def test_store_of_first_schema_is_migrated_and_usable(tmp_path, a_row):
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as old:
        old.executescript(OLD.read_text())
    old.close()
    with Store.open(str(path)) as store:
        assert state(store) == (False, NEWEST)
        first, second = (each.row for each in store.rounds("old"))
        assert (first.samples, second.short, second.metrics) == (80, (3,), {"accuracy": 0.5})
        assert [(row.known_samples, row.coverage, row.left_out) for row in (first, second)] == [
            (0, None, "")
        ] * 2
        told = a_row(3, known_samples=90, counted_samples=60, left_out="1 client was refused data")
        store.write(Appended(1010.0, "old", told))
        third = store.rounds("old")[-1].row
        assert (third.lacking, third.left_out) == ("66% of the samples", told.left_out)
        assert store.check().faults == ()


def test_store_of_schema_0004_takes_scores(url, monkeypatch, a_row, a_client):
    if url == "sqlite://":
        pytest.skip("a database in memory is never older than the code")
    folder, known_steps = migrate.steps()
    with monkeypatch.context() as older:
        older.setattr(migrate, "steps", lambda: (folder, known_steps[:4]))
        database = open_to_write(url, 5.0, makes=True)
        migrate.upgrade(database)
        with database.writing() as connection:
            connection.exec_driver_sql("INSERT INTO tasks (name) VALUES ('digits')")
            connection.exec_driver_sql(
                "INSERT INTO runs (key, task_id, settings, state, reason, started, present, present_at)"
                " VALUES ('old', 1, '{}', 'completed', '', 1.0, '{}', 1.0)"
            )
        database.close()
    with Store.open(url) as store:
        assert state(store) == (False, NEWEST)
        assert (store.run("old").initial_metrics, store.scores("old"), store.best("old")) == ({}, (), None)
        store.write(Begun(2.0, "old", {"task": "digits"}))
        store.write(Appended(3.0, "old", a_row(1, a_client("a"))))
        store.write(Evaluated(3.0, "old", 0, {"accuracy": 0.25}))
        store.write(Scored(3.0, "old", 0, "a", 10, {"accuracy": 0.25}))
        assert store.run("old").initial_metrics == {"accuracy": 0.25}
        assert store.scores("old") == (Score(0, "a", 10, {"accuracy": 0.25}),)
        assert store.check().faults == ()


def test_settings_of_old_runs_are_read_in_groups(tmp_path):
    path = tmp_path / "old.db"
    old = {
        "work": "local",
        "rounds": 7,
        "gate": "drift",
        "gate-budget": 0.25,
        "gate-every": 8,
        "delta-bits": 8,
    }
    with sqlite3.connect(path) as database:
        database.executescript(OLD.read_text())
        database.execute("UPDATE runs SET settings = ?", [json.dumps({**old, "min-devices": 3})])
    database.close()
    with Store.open(str(path)) as store:
        config = RunConfig.read(known(store.run("old").settings))
    assert (config.rounds, config.gate, config.gate_budget) == (7, "drift", 0.25)
    assert (config.round_steps, config.codec, config.min_clients) == (8, "int8", 3)


def test_failed_migration_is_rolled_back(url, further_step, monkeypatch):
    if url == "sqlite://":
        pytest.skip("a database in memory is never older than the code")
    Store.open(url).close()
    with monkeypatch.context():
        further_step("op.execute('no such language')")
        with pytest.raises(EdgeFailed):
            Store.open(url)
    monkeypatch.undo()
    with Store.open(url) as store:
        assert state(store) == (False, NEWEST)


def test_newer_schema_is_refused_in_one_line(url, further_step, monkeypatch):
    if url == "sqlite://":
        pytest.skip("a database in memory is never newer than the code")
    further_step("pass")
    Store.open(url).close()
    monkeypatch.undo()
    for reads_only in (False, True):
        with pytest.raises(Unusable, match=f"saw schema {NEXT}, needed {NEWEST} or older") as refusal:
            Store.open(url, reads_only=reads_only)
        assert "\n" not in str(refusal.value)


def test_simultaneous_runs_on_new_file_find_one_schema(tmp_path):
    code = "import sys; from fedgc.store.database import Store; Store.open(sys.argv[1]).close()"
    path = str(tmp_path / "store.db")
    started = [subprocess.Popen([sys.executable, "-c", code, path], env=os.environ) for _ in range(3)]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    with Store.open(path) as store:
        assert store.check().faults == ()


def test_simultaneous_threads_on_one_server_find_one_schema(postgres):
    url, failures = postgres.fresh(), []

    def open_it():
        try:
            Store.open(url).close()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
