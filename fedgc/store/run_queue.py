"""The queue of runs: entries in the store, which `fedgc serve --queue` takes one after another.

The entry with the highest priority is taken first; of equal ones, the oldest. Taking an entry and recording
who took it are one transaction, so that two servers never start the same run. An entry whose server has ended
before its run was over is "interrupted": it is taken first, and its run is resumed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, case, delete, func, insert, select, update

from fedgc.errors import Unusable
from fedgc.store.columns import is_mapping, mapping_in
from fedgc.store.engine import Database
from fedgc.store.liveness import ended
from fedgc.store.plausible import text
from fedgc.store.tables import Queued

WAITING: Final = "waiting"
RUNNING: Final = "running"
INTERRUPTED: Final = "interrupted"
AGAIN: Final = "is resumed first at the next start of `fedgc serve --queue`"
GOING: Final = (WAITING, RUNNING, INTERRUPTED)
LONGEST_REASON: Final = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """A run in the queue; its settings are those given, over those of the app in its folder."""

    id: int
    run: str
    folder: str
    settings: Mapping[str, Any]
    priority: int
    state: str  # waiting, running, interrupted, completed, failed or stopped
    reason: str
    added: float
    began: float | None
    ended: float | None
    process: Mapping[str, Any]  # that serves it, as `liveness` names one
    damaged: bool  # its settings cannot be read


class RunQueue:
    """The entries of the queue in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, run: str, folder: str, settings: Mapping[str, Any], priority: int, now: float) -> int:
        """Add a run; return the number of its entry. Refuse a run that is in the queue already."""
        row = {"run": run, "folder": folder, "settings": json.dumps(dict(settings)), "priority": priority}
        fresh = {"state": WAITING, "reason": "", "added": now, "process": "{}"}
        same = (Queued.run == run, Queued.state.in_(GOING))
        with self._database.writing() as connection:
            before = connection.scalar(select(Queued.id).where(*same))
            if before is not None:
                raise Unusable(
                    f"run {run}: saw it in the queue already, as entry {before}, needed a new name"
                )
            return connection.execute(insert(Queued).values(**row, **fresh).returning(Queued.id)).scalar_one()

    def take(self, process: Mapping[str, Any], now: float) -> Entry | None:
        """Return the entry to run next, and record the process that serves it: a begun one first.

        Raises:
            Unusable: Another process on this machine serves the queue.
        """
        with self._database.writing() as connection:
            found = next(iter(_entries(connection, finished=0)), None)
            if found is None:
                return None
            if found.state == RUNNING and dict(found.process) != dict(process) and ended(found.process) == "":
                raise Unusable(
                    f"queue: saw process {found.process['pid']} serving run {found.run}, needed one server "
                    "for each store"
                )
            took = {"state": RUNNING, "process": json.dumps(dict(process)), "began": found.began or now}
            connection.execute(update(Queued).where(Queued.id == found.id).values(**took))
            return next(each for each in _entries(connection, finished=0) if each.id == found.id)

    def interrupt(self, number: int) -> None:
        """Record that the server of an entry ends before its run is over."""
        with self._database.writing() as connection:
            left = update(Queued).where(Queued.id == number).values(state=INTERRUPTED, process="{}")
            connection.execute(left)

    def finish(self, number: int, state: str, reason: str, now: float) -> None:
        """Record how the run of an entry ended."""
        over = {"state": state, "reason": text(reason, LONGEST_REASON), "ended": now}
        with self._database.writing() as connection:
            connection.execute(update(Queued).where(Queued.id == number).values(**over))

    def remove(self, number: int) -> Entry:
        """Remove an entry and return it; refuse one whose server lives."""
        with self._database.writing() as connection:
            lines = connection.execute(select(Queued.__table__).where(Queued.id == number)).mappings()
            found = next(map(_entry, lines), None)
            if found is None:
                raise Unusable(f"queue: saw no entry {number}, needed one of `fedgc queue list`")
            if found.state == RUNNING and ended(found.process) == "":
                raise Unusable(
                    f"queue: saw entry {number} running, needed one that is not: stop its run by `flwr stop`"
                )
            connection.execute(delete(Queued).where(Queued.id == number))
            return found

    def entries(self, finished: int = 20) -> tuple[Entry, ...]:
        """Return the entries in the order in which they run, then so many finished ones, newest first."""
        with self._database.reading() as connection:
            return _entries(connection, finished)


def queue_marks(connection: Connection) -> tuple[int, ...]:
    """Return numbers that change when the queue does, or when a process that serves an entry ends."""
    left = func.count(case((Queued.state == INTERRUPTED, 1)))
    counts = (func.count(), func.count(Queued.began), func.count(Queued.ended), left, func.max(Queued.id))
    serving = connection.scalars(select(Queued.process).where(Queued.state == RUNNING))
    gone = sum(bool(ended(mapping_in(process))) for process in serving)
    return (*(each or 0 for each in connection.execute(select(*counts)).one()), gone)


def _entries(connection: Connection, finished: int) -> tuple[Entry, ...]:
    of_queue, going = select(Queued.__table__), Queued.state.in_(GOING)
    first = case((Queued.state == WAITING, 1), else_=0)
    ordered = of_queue.where(going).order_by(first, Queued.priority.desc(), Queued.id)
    over = of_queue.where(~going).order_by(Queued.ended.desc(), Queued.id.desc()).limit(finished)
    return tuple(_entry(line) for chosen in (ordered, over) for line in connection.execute(chosen).mappings())


def _entry(line: RowMapping) -> Entry:
    read: dict[str, Any] = {name: mapping_in(line[name]) for name in ("settings", "process")}
    if line["state"] == INTERRUPTED or (line["state"] == RUNNING and ended(read["process"])):
        read |= {"state": INTERRUPTED, "reason": AGAIN}
    return Entry(**{**line, **read}, damaged=not is_mapping(line["settings"]))
