"""Opening the database: its address, its modes, and one-line messages for its errors.

SQLite runs in WAL mode, so that readers never wait for the writer. `synchronous=FULL` syncs the log at every
commit: one sync per round makes each written round survive a kill and a power cut (NORMAL would only survive
a kill).

There is one writer at a time. SQLite has that lock itself, but only `BEGIN IMMEDIATE` waits for it: a
transaction that reads first and writes later fails at once if another came between. On PostgreSQL an advisory
lock gives the same order, so a transaction's reads still hold when it writes, and two runs cannot deadlock.
"""

import contextlib
import math
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, create_engine, event, exc, make_url, text
from sqlalchemy.pool import NullPool, StaticPool

from fedgc.errors import BadMessage, EdgeFailed, FedgcError, Unusable, system_errors, text_of
from fedgc.files import close_to_others, make_file, make_folder
from fedgc.guards import guarded
from fedgc.processes.state_folder import state_folder

ENVIRONMENT: Final = "FEDGC_DB"
STORE: Final = "store"
_FILE: Final = "file"  # in the notes of a connection: which file it has open
_MODE: Final = "fedgc_mode"  # execution option of a connection: reading unless it says "write" or "apart"
_ADVISORY: Final = 0x6665646763  # "fedgc", the key of the lock in PostgreSQL
_CACHE_KB: Final = 16_384
_PAUSE_S: Final = 0.02
_LEAST_FREE: Final = 1 << 20  # bytes; with less, a failure to read or write means that the disk is full
STORE_DAMAGED: Final = "needed a backup to restore"
_SQLITE_ERRORS: Final = {
    "SQLITE_NOTADB": "is not a database; needed an SQLite file of fedgc, or no file",
    "SQLITE_CORRUPT": "is damaged; {}",
    "SQLITE_READONLY": "is read-only; needed the right to write it and its folder",
    "FOLDER": "is a folder; needed the name of a file",
    "SQLITE_CANTOPEN": "cannot be opened; needed the right to read and write it and its folder",
    "SQLITE_BUSY": "is locked by another program; needed a turn to write",
    "SQLITE_LOCKED": "is locked by another program; needed a turn to write",
    "SQLITE_FULL": "the disk is full; needed space to write",
    "SQLITE_IOERR": "the disk failed to read or write",
}


class _Locked(EdgeFailed):
    """Another writer has the lock; the one failure that a retry can cure."""


class Damaged(EdgeFailed):
    """The file of the database is damaged."""


class DiskFull(EdgeFailed):
    """There is no space to write."""


_KINDS: Final[Mapping[str, type[FedgcError]]] = {
    "SQLITE_NOTADB": Unusable,  # only another address helps
    "FOLDER": Unusable,
    "SQLITE_BUSY": _Locked,
    "SQLITE_LOCKED": _Locked,
    "SQLITE_CORRUPT": Damaged,
    "SQLITE_FULL": DiskFull,
}


def default_path(environment: Mapping[str, str]) -> Path:
    """Return the default file of the store.

    >>> default_path({"HOME": "/home/ada"}).as_posix()
    '/home/ada/.local/state/fedgc/fedgc.db'
    """
    return state_folder(environment) / "fedgc.db"


def runs_folder(checkpoint_dir: str, environment: Mapping[str, str]) -> Path:
    """Return the folder of the checkpoints of all runs: the one in the settings, or the default.

    >>> runs_folder("/models", {}).as_posix(), runs_folder("", {"XDG_STATE_HOME": "/state"}).as_posix()
    ('/models', '/state/fedgc/runs')
    """
    return Path(checkpoint_dir) if checkpoint_dir else state_folder(environment) / "runs"


def address(url: str | None, environment: Mapping[str, str]) -> URL:
    """Return the database's address: the one given, else FEDGC_DB, else the default file.

    A path is taken for an SQLite file.

    >>> str(address("/data/fedgc.db", {}))
    'sqlite:////data/fedgc.db'
    """
    chosen = url or environment.get(ENVIRONMENT) or str(default_path(environment))
    if "://" not in chosen:
        return URL.create("sqlite", database=str(Path(chosen).expanduser()))
    try:
        found = make_url(chosen)
    except (exc.ArgumentError, ValueError) as error:
        raise Unusable(
            f"store: saw an address that cannot be read, needed a path or a URL ({error})"
        ) from error
    if found.drivername in ("postgresql", "postgres"):
        return found.set(drivername="postgresql+psycopg")
    return found


def _name_of(url: URL) -> str:
    """Return the URL of a SQLite file as it is typed; a path that is not of this locale is shown in part.

    >>> _name_of(make_url("sqlite:////srv/a b/%C3%BC.db"))
    'sqlite:////srv/a b/ü.db'
    """
    path = os.fsencode(url.database or "").decode(errors="replace")
    return f"{url.drivername}:///{path}" if path else f"{url.drivername}://"


class Database:
    """An open database: `reading` and `writing` give a connection for one transaction."""

    def __init__(
        self,
        url: URL,
        wait_s: float,
        *,
        kind: str = STORE,
        damaged: str = STORE_DAMAGED,
        opens_afresh: bool = False,
    ) -> None:
        """Open a database: afresh for each transaction, or with connections that stay.

        `kind` names the database in errors, and `damaged` says what helps if its file is damaged.
        """
        self.url, self._kind, self._damaged = url, kind, damaged
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self.name = _name_of(url) if self.is_sqlite else url.render_as_string(hide_password=True)
        self.is_memory = self.is_sqlite and url.database in (None, "", ":memory:")
        self._wait_s = wait_s
        self._opens_afresh = opens_afresh
        # An in-memory database has one connection, which threads share in turn.
        self._turn: contextlib.AbstractContextManager[Any] = (
            threading.RLock() if self.is_memory else contextlib.nullcontext()
        )
        try:
            self.engine = create_engine(url, **self._options())
        except (exc.ArgumentError, ImportError) as error:
            raise Unusable(f"{self._kind} {self.name}: {_without_driver(url, error)}") from error
        event.listen(self.engine, "connect", self._on_connect)
        event.listen(self.engine, "begin", self._on_begin)
        if kind == STORE and self.file is not None and not opens_afresh:
            event.listen(self.engine, "checkout", self._on_checkout)

    @property
    def file(self) -> Path | None:
        """The SQLite file, if it is one."""
        named = self.is_sqlite and not self.is_memory and not str(self.url.database).startswith("file:")
        return Path(str(self.url.database)) if named else None

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a connection with a snapshot of the database."""
        with (
            guarded(f"the {self._kind}", self.name, EdgeFailed),
            self._turn,
            self.plainly(),
            self.engine.connect() as connection,
            connection.begin(),
        ):
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open the connection of the only writer; its changes are committed together or not at all."""
        with (
            guarded(f"the {self._kind}", self.name),
            self._turn,
            self.plainly(),
            self.engine.connect() as connection,
        ):
            connection.execution_options(**{_MODE: "write"})
            with connection.begin():
                yield connection

    @contextlib.contextmanager
    def apart(self) -> Iterator[Connection]:
        """Open a connection outside any transaction, for statements that cannot run in one."""
        with self._turn, self.plainly(), self.engine.connect() as connection:
            if not self.is_sqlite:
                connection.execution_options(isolation_level="AUTOCOMMIT")
            yield connection.execution_options(**{_MODE: "apart"})

    def close(self) -> None:
        """Close all connections."""
        with self._turn:
            self.engine.dispose()

    @contextlib.contextmanager
    def plainly(self) -> Iterator[None]:
        """Translate the database's errors."""
        try:
            yield
        except (exc.IntegrityError, exc.DataError) as error:
            raise BadMessage(f"{self._kind} {self.name}: refused: {text_of(error.orig or error)}") from error
        except exc.SQLAlchemyError as error:
            raise self._meaning(error) from error

    def free_bytes(self) -> float:
        """Return the free space on the disk of the SQLite file; without a file there is no limit."""
        return math.inf if self.file is None else shutil.disk_usage(self.file.parent).free

    def shorten_log(self) -> None:
        """Write SQLite's log into its file, and return its space to the disk."""
        with self.apart() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def _options(self) -> dict[str, Any]:
        if self.is_memory:
            return {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
        if self._opens_afresh:
            return {"poolclass": NullPool, "creator": self._opened_afresh}
        if self.is_sqlite:
            return {"connect_args": {"timeout": self._wait_s}}
        if self.url.drivername == "postgresql+psycopg":
            patience = max(2, round(self._wait_s))
            limits = {"connect_timeout": patience, "tcp_user_timeout": patience * 1000}
            given = {key: value for key, value in limits.items() if key not in self.url.query}
            return {"pool_pre_ping": True, "connect_args": given}
        return {"pool_pre_ping": True}

    def _opened_afresh(self) -> sqlite3.Connection:
        """Open a file for one transaction without writing beside it."""
        file = Path(str(self.url.database)).absolute()
        unchanging = "" if file.with_name(f"{file.name}-wal").exists() else "&immutable=1"
        return sqlite3.connect(f"{file.as_uri()}?mode=ro{unchanging}", timeout=self._wait_s, uri=True)

    def _on_connect(self, connection: Any, _record: object) -> None:  # noqa: ANN401  (each driver has its own type)
        if not self.is_sqlite:
            return
        connection.isolation_level = None  # the driver would begin and commit by its own rules
        for pragma in ("foreign_keys = ON", "synchronous = FULL", f"cache_size = -{_CACHE_KB}"):
            connection.execute(f"PRAGMA {pragma}")

    def _on_checkout(self, _connection: object, record: Any, _proxy: object) -> None:  # noqa: ANN401
        """Replace a connection to a file that was replaced, such as by a backup."""
        now = _inode(self.file)
        before = record.info.setdefault(_FILE, now)
        if now is not None and before != now:
            raise exc.DisconnectionError(f"{self.name} was replaced")

    def _on_begin(self, connection: Connection) -> None:
        mode = connection.get_execution_options().get(_MODE)
        if self.is_sqlite and mode != "apart":
            connection.exec_driver_sql("BEGIN IMMEDIATE" if mode == "write" else "BEGIN")
        elif mode == "write" and self.url.get_backend_name() == "postgresql":
            connection.execute(text(f"SET LOCAL lock_timeout = {round(self._wait_s * 1000)}"))
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY})"))

    def _meaning(self, error: exc.SQLAlchemyError) -> FedgcError:
        cause = getattr(error, "orig", None) or error
        code = str(getattr(cause, "sqlite_errorname", ""))
        if code.startswith("SQLITE_IOERR") and self.free_bytes() < _LEAST_FREE:  # such as of its -shm
            code = "SQLITE_FULL"
        if code == "SQLITE_CANTOPEN" and self.file is not None and self.file.is_dir():
            code = "FOLDER"
        for prefix, meaning in _SQLITE_ERRORS.items():
            if code.startswith(prefix):
                return _KINDS.get(prefix, EdgeFailed)(
                    f"{self._kind} {self.name}: {meaning.format(self._damaged)}"
                )
        return EdgeFailed(f"{self._kind} {self.name}: {text_of(cause)}")


def _inode(file: Path | None) -> tuple[int, int] | None:
    """Return what tells a file from another of its name; None if it is not there."""
    try:
        found = file.stat() if file is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def use_wal(database: Database, wait_s: float) -> None:
    """Switch an SQLite file to WAL mode permanently.

    The change needs exclusive access, for which SQLite's busy timeout does not wait: two runs that start at
    once on a new file would fail, so it is retried.
    """
    until = time.monotonic() + wait_s
    while database.is_sqlite and not database.is_memory:
        try:
            with database.apart() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        except _Locked:
            if time.monotonic() >= until:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def open_to_write(url: str | None, wait_s: float, *, makes: bool = True) -> Database:
    """Return the database at an address; create the file only if it `makes` one."""
    database = Database(address(url, os.environ), wait_s)
    if not makes:
        _must_be_there(database)
    elif database.file is not None:
        with system_errors(f"store {database.name}: its folder", "one to write", Unusable):
            _keep_to_owner(database.file)
    return database


def _keep_to_owner(file: Path) -> None:
    """Make the file of a store readable for its owner only; SQLite gives its other files the same mode."""
    make_folder(file.parent)
    if file == default_path(os.environ):
        close_to_others(file.parent)
    if not file.exists():
        make_file(file)
    elif file == default_path(os.environ):
        close_to_others(file)


def there() -> bool:
    """Return whether the store's file exists; True for a database on a server."""
    database = Database(address(None, os.environ), 0.0)
    file = database.file
    database.close()
    return not database.is_memory and (file is None or file.exists())


def open_to_read(url: str | None, wait_s: float) -> Database:
    """Return a database that must exist.

    A reader of a WAL file writes beside it, to announce its snapshot. If it may not, the file is opened
    anew for each transaction: as immutable unless a log shows a writer, which may come and go.
    """
    database = Database(address(url, os.environ), wait_s)
    file = database.file
    _must_be_there(database)
    if file is None or _may_write(file.parent):
        return database
    database.close()
    return Database(database.url, wait_s, opens_afresh=True)


def not_writable() -> Path | None:
    """Return the file or folder that a run would need to write and may not; None if there is none.

    Nothing is changed. A read-only mount counts; a database on a server is not asked.
    """
    database = Database(address(None, os.environ), 0.0)
    file = database.file
    database.close()
    if file is None:
        return None
    needed = (file, file.parent, *(file.with_name(f"{file.name}{end}") for end in ("-wal", "-shm")))
    if not os.access(file, os.F_OK):
        needed = (next(each for each in file.absolute().parents if os.access(each, os.F_OK)),)
    return next((each for each in needed if os.access(each, os.F_OK) and not _may_write(each)), None)


def _must_be_there(database: Database) -> None:
    if database.is_memory or (database.file is not None and not database.file.exists()):
        raise Unusable(f"store {database.name}: saw nothing there, needed the store of an earlier run")


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _without_driver(url: URL, error: Exception) -> str:
    if not isinstance(error, ImportError):
        return f"saw {text_of(error)}, needed an address that SQLAlchemy knows"
    if url.get_backend_name() != "postgresql":
        return f"saw the database {url.drivername}, needed the path of an SQLite file, or postgresql://..."
    return (
        f"saw no driver for {url.drivername} ({text_of(error)}), needed its package "
        "(pip install 'psycopg[binary]')"
    )
