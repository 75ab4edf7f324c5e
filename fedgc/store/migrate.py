"""Migrations of the schema: every step in one transaction with its version record.

The steps are Alembic revisions in `migrations/versions`, in one line. Each is looked up, applied and recorded
under the writer's lock, so that a kill leaves both or neither, and of two runs that start at once one applies
a step and the other finds it applied. Alembic's own environment script is not used: it would run on import,
and would read the version before it holds the lock.
"""

import threading
from pathlib import Path
from typing import Final

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, inspect

from fedgc.errors import Unusable
from fedgc.store.engine import Database

VERSION_TABLE: Final = "fedgc_schema"
# `alembic.op`, which the steps use, is global to the process: threads take turns to set it.
_ONE_AT_A_TIME: Final = threading.Lock()


def steps() -> tuple[ScriptDirectory, tuple[Script, ...]]:
    """Return the folder of steps, and the steps from first to newest."""
    folder = ScriptDirectory(str(Path(__file__).with_name("migrations")))
    return folder, tuple(folder.walk_revisions())[::-1]


def newest() -> str:
    """Return the schema version that this code needs."""
    return steps()[1][-1].revision


def upgrade(database: Database) -> None:
    """Apply every missing step."""
    if behind(database) == 0:
        return
    with _ONE_AT_A_TIME:
        while _step(database):
            pass


def behind(database: Database) -> int:
    """Return the number of missing steps; refuse a foreign or newer schema."""
    _, known = steps()
    with database.reading() as connection:
        return len(known) - _taken(database, connection, known)


def _step(database: Database) -> bool:
    folder, known = steps()
    with database.writing() as connection:
        taken = _taken(database, connection, known)
        if taken == len(known):
            return False
        context = _context(connection)
        with Operations.context(context):
            known[taken].module.upgrade()
        context.stamp(folder, known[taken].revision)
    return True


def _context(connection: Connection) -> MigrationContext:
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})


def _taken(database: Database, connection: Connection, known: tuple[Script, ...]) -> int:
    tables = inspect(connection).get_table_names()
    if VERSION_TABLE not in tables:
        if tables:
            raise Unusable(
                f"store {database.name}: saw tables of another program ({', '.join(sorted(tables)[:3])}), "
                "needed an empty database or one of fedgc"
            )
        return 0
    revisions = [step.revision for step in known]
    current = _context(connection).get_current_revision()
    if current not in revisions:
        raise Unusable(
            f"store {database.name}: saw schema {current}, needed {revisions[-1]} or older: "
            "a newer fedgc wrote it, upgrade this one"
        )
    return revisions.index(current) + 1
