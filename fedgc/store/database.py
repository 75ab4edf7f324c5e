"""The store: one object over one database; `write` takes records, the other methods return values.

`Store.open` finds the database (the address given, else FEDGC_DB, else the default file), migrates its schema
and refuses a foreign one. A store may be used from several threads, and several stores, in several processes,
may write one database.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Self

from fedgc.errors import Unusable
from fedgc.history import BestModel, ClientRow, Score, Speeds
from fedgc.store import migrate, reading, records, upkeep, views, watching
from fedgc.store import speed_history as pace
from fedgc.store.engine import Database, open_to_read, open_to_write, use_wal
from fedgc.store.records import Record
from fedgc.store.run_queue import RunQueue
from fedgc.store.writing import write


class Store:
    """The history of all clients and runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        wait_s: float = 5.0,
        reads_only: bool = False,
        makes: bool = True,
        older: bool = False,
    ) -> Self:
        """Open the store; create it if it is missing and it `makes` one, which `reads_only` excludes.

        With `reads_only`, one of an `older` schema can only be copied. A foreign database is not changed.
        """
        database = open_to_read(url, wait_s) if reads_only else open_to_write(url, wait_s, makes=makes)
        try:
            if reads_only:
                _must_be_current(database, older=older)
            else:
                missing = migrate.behind(database)
                use_wal(database, wait_s)
                if missing:
                    migrate.upgrade(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    @property
    def name(self) -> str:
        """The address, without its password."""
        return self._database.name

    @property
    def queue(self) -> RunQueue:
        """The queue of runs."""
        return RunQueue(self._database)

    def write(self, record: Record, stamp: str | None = None) -> None:
        """Write a record durably. A stamp that was written before is ignored."""
        self.write_all([(record, stamp)])

    def write_all(self, entries: Iterable[tuple[Record, str | None]]) -> None:
        """Write records and their stamps durably, all of them or none."""
        with self._database.writing() as connection:
            write(connection, entries)

    def speeds(self, task: str | None = None) -> Speeds:
        """Return the recent speeds of clients at a task (None: the task of the newest run)."""
        with self._database.reading() as connection:
            return pace.speeds(connection, task)

    def paces(self, task: str | None = None) -> tuple[views.MeasuredSpeeds, ...]:
        """Return every client at a task: speed, trend, totals."""
        with self._database.reading() as connection:
            return pace.paces(connection, task)

    def runs(self, limit: int = 20) -> tuple[views.Run, ...]:
        """Return the newest runs, newest first."""
        with self._database.reading() as connection:
            return reading.runs(connection, limit)

    def run(self, key: str = reading.LATEST) -> views.Run:
        """Return a run."""
        with self._database.reading() as connection:
            return reading.run(connection, key)

    def rounds(
        self, run: str = reading.LATEST, after: int = -1, limit: int = 1_000_000
    ) -> tuple[views.Round, ...]:
        """Return rounds of a run in order, after round `after`."""
        with self._database.reading() as connection:
            return reading.rounds(connection, run, after, limit)

    def client_rows(self, run: str, round_number: int) -> tuple[ClientRow, ...]:
        """Return the client rows of a round; empty if they were folded."""
        with self._database.reading() as connection:
            return reading.client_rows(connection, run, round_number)

    def client_history(self, run: str, client: str, after: int = -1) -> tuple[tuple[int, ClientRow], ...]:
        """Return (round, row) of one client in a run."""
        with self._database.reading() as connection:
            return reading.client_history(connection, run, client, after)

    def clients(self) -> tuple[views.Client, ...]:
        """Return every client, in the order first seen."""
        with self._database.reading() as connection:
            return reading.clients(connection)

    def took_part(self, run: str = reading.LATEST) -> frozenset[str]:
        """Return the clients that had a part in a round of this run."""
        with self._database.reading() as connection:
            return reading.took_part(connection, run)

    def decisions(
        self, run: str = reading.LATEST, limit: int = 1_000_000, what: str | None = None
    ) -> tuple[records.Decided, ...]:
        """Return the last decisions of a run, oldest first; of one kind (`what`), or of all."""
        with self._database.reading() as connection:
            return reading.decisions(connection, run, limit, what)

    def scores(self, run: str = reading.LATEST) -> tuple[Score, ...]:
        """Return the figures of every client for the models of all rounds (0: the initial model)."""
        with self._database.reading() as connection:
            return reading.scores(connection, run)

    def last_scores(self, run: str = reading.LATEST) -> tuple[Score, ...]:
        """Return the newest figures of every client that has scored one of the newest models of a run."""
        with self._database.reading() as connection:
            return reading.last_scores(connection, run)

    def best(self, run: str = reading.LATEST) -> BestModel | None:
        """Return the best model of a run so far, if it is chosen by a figure."""
        with self._database.reading() as connection:
            return reading.best(connection, run)

    def used_chunks(self) -> Mapping[str, Collection[str]]:
        """Return the chunks of site data that each run has used."""
        with self._database.reading() as connection:
            return reading.used_chunks(connection)

    def audited(self, run: str | None = None, limit: int = 1000) -> tuple[records.Audited, ...]:
        """Return the last audit entries, oldest first."""
        with self._database.reading() as connection:
            return reading.audited(connection, run, limit)

    def pulse(self, run: str = reading.LATEST) -> views.Pulse:
        """Return values that change when a run has news."""
        with self._database.reading() as connection:
            return watching.pulse(connection, run)

    def stretches(self, run: str = reading.LATEST, most: int = 240) -> tuple[views.Stretch, ...]:
        """Return the rounds of a run, summed into at most `most` stretches."""
        with self._database.reading() as connection:
            return watching.stretches(connection, run, most)

    def lately(self, run: str, rounds: int) -> tuple[views.Lately, ...]:
        """Return the total of each client over the newest rounds of a run."""
        with self._database.reading() as connection:
            return watching.lately(connection, run, rounds)

    def strips(self, run: str, clients: Collection[str], rounds: int) -> tuple[tuple[int, ClientRow], ...]:
        """Return (round, row) of these clients in the newest rounds of a run, oldest first."""
        with self._database.reading() as connection:
            return watching.strips(connection, run, clients, rounds)

    def faults(self, run: str, rounds: int, limit: int = 100) -> tuple[tuple[int, ClientRow], ...]:
        """Return (round, row) of failures and refusals in the newest rounds of a run, newest first."""
        with self._database.reading() as connection:
            return watching.faults(connection, run, rounds, limit)

    def client_rounds(self, run: str, first: int, last: int) -> tuple[tuple[int, ClientRow], ...]:
        """Return (round, row) of every client in the rounds from `first` to `last`."""
        with self._database.reading() as connection:
            return watching.client_rounds(connection, run, first, last)

    def fold(self, keep_rounds: int) -> int:
        """Fold the client rows of all but the newest rounds; return the number of folded rows."""
        return upkeep.fold(self._database, keep_rounds)

    def check(self) -> views.Health:
        """Look for damage, and count the rows."""
        return upkeep.check(self._database)

    def backup(self, path: Path) -> None:
        """Copy the store to a new file while it is in use."""
        upkeep.backup(self._database, path)

    def vacuum(self) -> None:
        """Return unused space to the disk."""
        upkeep.vacuum(self._database)


def _must_be_current(database: Database, *, older: bool) -> None:
    if migrate.behind(database) and not older:
        raise Unusable(
            f"store {database.name}: saw an older schema or none, needed this one: "
            "a run brings it up to date, and so does `fedgc store check`; `fedgc store backup` copies it"
        )
