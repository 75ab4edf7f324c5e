"""Maintenance of the store: folding old client rows, check, backup, vacuum.

Folding turns the client rows of old rounds into one summary for each client and run. Rows in a ring stay,
however old: speeds are computed from them, and there are at most `WINDOW` of them for a client and task.
Figures of clients for the models of those rounds are dropped; the means are kept with the rounds.
Rounds, decisions and audit are small and are kept.
"""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, case, delete, exists, func, insert, select, tuple_, update
from sqlalchemy.orm import aliased

from fedgc.errors import EdgeFailed, Unusable, system_errors
from fedgc.files import whole
from fedgc.store import migrate, tables
from fedgc.store.engine import Damaged, Database, DiskFull
from fedgc.store.tables import ClientRound, Recent, Round, Score, Summary
from fedgc.store.views import Health

ROUNDS_AT_ONCE: Final = 200  # folded in one transaction: other writers must not wait long
Counts = tuple[int, int, int, int, int, int]  # bytes, runs, rounds, clients, their rows, and folded ones
_SUMMED: Final = (
    "finished", "counted", "steps", "busy_s", "upload_s", "download_s", "up_bytes", "down_bytes",
    "control_bytes", "refused", "implausible",
)  # fmt: skip


def fold(database: Database, keep_rounds: int) -> int:
    """Fold the client rows of all but the newest rounds of the store; return the number of folded rows."""
    if keep_rounds < 1:
        raise Unusable(f"rounds to keep: saw {keep_rounds}, needed at least 1")
    with database.reading() as connection:
        newest = select(Round.id).order_by(Round.id.desc()).offset(keep_rounds - 1).limit(1)
        border = connection.scalar(newest)
    folded, first, at_once = 0, 0, ROUNDS_AT_ONCE
    while border is not None and first < border:
        end = min(first + at_once, border)
        try:
            with database.writing() as connection:
                count = _fold(connection, first, end)
        except DiskFull:
            if at_once == 1:
                raise
            at_once = max(1, at_once // 8)
        else:
            folded, first = folded + count, end
        if at_once < ROUNDS_AT_ONCE:  # the log of what is deleted needs space too
            database.shorten_log()
    return folded


def _fold(connection: Connection, first: int, end: int) -> int:
    between = (Recent.round_id >= first, Recent.round_id < end)
    pointed = select(Recent.round_id, Recent.client_id).where(*between)
    old = (
        *(ClientRound.round_id >= first, ClientRound.round_id < end),
        tuple_(ClientRound.round_id, ClientRound.client_id).not_in(pointed),
    )
    sums = select(Round.run_id, ClientRound.client_id, *_sums())
    grouped = sums.join(Round, Round.id == ClientRound.round_id).where(*old)
    lines = connection.execute(grouped.group_by(Round.run_id, ClientRound.client_id)).mappings().all()
    _add(connection, [dict(line) for line in lines])
    connection.execute(delete(ClientRound).where(*old))
    _drop_scores(connection, first, end)
    return sum(line["rows"] for line in lines)


def _drop_scores(connection: Connection, first: int, end: int) -> None:
    """Drop the figures of clients for the models of old rounds, except those of the run's last round."""
    same = (Round.run_id == Score.run_id) & (Round.round == Score.round)
    is_old = exists().where(same, Round.id >= first, Round.id < end)
    later = aliased(Score)
    goes_on = exists().where(later.run_id == Score.run_id, later.round > Score.round)
    connection.execute(delete(Score).where(is_old, goes_on))


def _sums() -> list[Any]:
    failed = (ClientRound.failure.is_not(None)) | (ClientRound.implausible > 0)
    return [
        func.count().label("rows"),
        *(func.sum(getattr(ClientRound, name)).label(name) for name in _SUMMED),
        func.count(ClientRound.step_s).label("timed"),
        func.coalesce(func.sum(ClientRound.step_s), 0.0).label("step_sum_s"),
        func.coalesce(func.sum(ClientRound.step_s * ClientRound.step_s), 0.0).label("step_squares"),
        func.sum(case((failed, 1), else_=0)).label("failures"),
    ]


def _add(connection: Connection, lines: list[dict[str, Any]]) -> None:
    """Add sums to the summaries."""
    runs = {line["run_id"] for line in lines}
    kept = connection.execute(select(Summary.__table__).where(Summary.run_id.in_(runs))).mappings()
    known = {(line["run_id"], line["client_id"]): dict(line) for line in kept}
    new = []
    for line in lines:
        at = (line["run_id"], line["client_id"])
        if at not in known:
            new.append(line)
            continue
        of = (Summary.run_id == at[0], Summary.client_id == at[1])
        connection.execute(update(Summary).where(*of).values(_together(known[at], line)))
    if new:
        connection.execute(insert(Summary), new)


def _together(kept: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: kept[name] + line[name] for name in line if name not in ("run_id", "client_id")}


def check(database: Database) -> Health:
    """Look for damage, and count the rows."""
    counts: Counts = (0, 0, 0, 0, 0, 0)
    faults: tuple[str, ...] = ()
    try:
        with database.reading() as connection:
            faults = _sqlite_faults(connection) if database.is_sqlite else _orphans(connection)
        with database.reading() as connection:
            counts = _counts(connection, database)
    except Damaged:
        faults = (*faults, "the file is damaged, so that not all of it can be read")
    return Health(database.name, migrate.newest(), *counts, faults)


def _counts(connection: Connection, database: Database) -> Counts:
    runs, rounds, clients, rows = (
        connection.execute(select(func.count()).select_from(table)).scalar_one()
        for table in (tables.Run, Round, tables.Client, ClientRound)
    )
    folded = connection.scalar(select(func.coalesce(func.sum(Summary.rows), 0))) or 0
    return _size(connection, database), runs, rounds, clients, rows, int(folded)


def _sqlite_faults(connection: Connection) -> tuple[str, ...]:
    lines = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    found = [line for line in lines if line != "ok"]
    found += [f"{row[0]}: a row refers to one of {row[2]} that is not there" for row in broken]
    return tuple(map(str, found))


def _orphans(connection: Connection) -> tuple[str, ...]:
    """Count ring slots without a row, which a database server's own checks cannot know."""
    same = (ClientRound.round_id == Recent.round_id) & (ClientRound.client_id == Recent.client_id)
    loose = select(func.count()).select_from(Recent).outerjoin(Round, Round.id == Recent.round_id)
    count = connection.scalar(loose.outerjoin(ClientRound, same).where(Round.id.is_(None)))
    return (f"recents: {count} rows refer to a round that is not there",) if count else ()


def _size(connection: Connection, database: Database) -> int:
    if database.is_sqlite:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return int(pages * connection.exec_driver_sql("PRAGMA page_size").scalar_one())
    if database.url.get_backend_name() == "postgresql":
        return int(connection.scalar(select(func.pg_database_size(func.current_database()))) or 0)
    return 0


def backup(database: Database, path: Path) -> None:
    """Copy an SQLite store to a new file, consistently, while runs go on writing."""
    if not database.is_sqlite:
        raise Unusable(f"store {database.name}: saw a server, needed its own tool for a backup (pg_dump)")
    if path.exists():
        raise Unusable(f"backup {path}: saw a file there, needed a new name")
    unwritten = system_errors(f"backup {path}: could not be written", kinds=(OSError, sqlite3.Error))
    with unwritten, database.apart() as connection, whole(path, synced=True) as part:
        source = connection.connection.driver_connection
        with closing(sqlite3.connect(part)) as target:
            source.backup(target)  # type: ignore[union-attr]  # every SQLite connection has it


def vacuum(database: Database) -> None:
    """Return the space of folded rows to the disk.

    SQLite writes the file anew, into a temporary file and then into its log.
    """
    if database.is_sqlite:
        with database.reading() as connection:
            pages, unused, size = (
                int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
                for name in ("page_count", "freelist_count", "page_size")
            )
        needed, free = 2 * (pages - unused) * size, database.free_bytes()
        if free < needed:
            raise EdgeFailed(
                f"store {database.name}: saw {free / 1e6:.1f} MB free, needed {needed / 1e6:.1f} to make "
                f"its file smaller; new rows use the {unused * size / 1e6:.1f} MB that are unused in it"
            )
    with database.apart() as connection:
        connection.exec_driver_sql("VACUUM")
    if database.is_sqlite:
        database.shorten_log()
