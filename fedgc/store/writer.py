"""The keeper: queues records at once and writes them in a thread, so the store never blocks a run.

`put` only queues. One thread writes the records in order, all that wait in one transaction. When the store
cannot be written (locked, full, gone), waiting and newer records go to a spool file until the store works
again. If that file cannot be written either, they wait in memory, up to a limit; beyond that the oldest are
dropped, counted and reported. A record with content that the store refuses is reported and dropped: a retry
would not help, and others wait behind it.

Of the state of the current round only the newest record waits, and none is spooled.
"""

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Final, Self

from fedgc.errors import EdgeFailed, Unusable
from fedgc.store.database import Store
from fedgc.store.records import Present, Record
from fedgc.store.spool import Aside, Entry

BULK: Final = 512  # records in one transaction
BURST: Final = 32_768  # records that wait for a store that works: each client that joins makes two
LIMIT: Final = 1024  # records that wait in memory while nothing can be written
RETRY_S: Final = 2.0


class Keeper:
    """Writes records to the store that `opening` returns, from a thread of its own.

    `tell` is called from that thread, with one line, when the store fails, when it works again, and when
    something was dropped. Records that an earlier process left in the file `aside` are written first.
    """

    def __init__(
        self, opening: Callable[[], Store], aside: Path, tell: Callable[[str], None], retry_s: float = RETRY_S
    ) -> None:
        self._opening = opening
        self._tell = tell
        self._retry_s = retry_s
        self._aside = Aside(aside)
        self._store: Store | None = None
        self._trouble = self._aside_trouble = ""
        self._token = secrets.token_hex(8)  # distinguishes the stamps of this process from all others
        self._numbers = count(1)
        self._waiting: deque[Entry] = deque()
        self._current: tuple[Entry, ...] = ()  # those of them that are being written; none if from the file
        self._alone = 0  # so many records are written alone, as one of them is refused
        self._lost = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="fedgc-store", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def trouble(self) -> str:
        """Why the store cannot be written now, and how many records wait; empty if it works."""
        with self._changed:
            waits = self._aside.count + len(self._waiting)
            why = "; ".join(filter(None, (self._trouble, self._aside_trouble)))
            return f"{why}; {waits} records wait, {self._lost} are lost" if why else ""

    def put(self, record: Record) -> None:
        """Queue a record; never waits for the store.

        A signal handler may call it inside another call. So the queue is changed in place, by single steps.
        """
        with self._changed:
            if isinstance(record, Present):
                for index, (earlier, _) in reversed(tuple(enumerate(self._waiting))):
                    if isinstance(earlier, Present):
                        del self._waiting[index]
                        break  # there is never another one
            self._waiting.append((record, f"{self._token}-{next(self._numbers)}"))
            self._drop_oldest()
            self._changed.notify_all()

    def _drop_oldest(self) -> None:
        while len(self._waiting) > (LIMIT if self._aside_trouble else BURST):
            self._waiting.popleft()
            self._lost += 1

    def flush(self, timeout_s: float) -> bool:
        """Wait until all records are on the disk, in the store or the spool; return whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout_s)

    def settled(self, timeout_s: float) -> bool:
        """Wait until all records, spooled ones too, are in the store; return whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._aside.count, timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Write or spool the waiting records, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    # ---- the thread

    def _work(self) -> None:
        while self._something_waits():
            closing = self._closing
            try:
                self._write_some()
            except (EdgeFailed, Unusable) as error:
                self._failed(str(error))
                if closing:
                    break
                self._pause()
            except Exception as error:  # one bad record must not block the others
                self._refused(error)
        if self._waiting:
            self._tell(f"{len(self._waiting)} records are lost: {self.trouble}")
        elif self._aside.count:
            self._tell(
                f"{self._aside.count} records wait in {self._aside.path} for the next run of this name"
            )
        if self._store is not None:
            self._store.close()

    def _something_waits(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._aside.count or self._closing)
            return bool(self._waiting or self._aside.count)

    def _write_some(self) -> None:
        self._current = ()
        entries: tuple[Entry, ...]
        if self._aside.count:
            entries = (self._aside.first(),)
        else:
            with self._changed:
                entries = self._current = tuple(islice(self._waiting, 1 if self._alone else BULK))
        if self._store is None:
            self._store = self._opening()
        self._store.write_all(entries)
        self._alone = max(0, self._alone - 1)
        self._done()
        if self._trouble:
            self._trouble = self._aside_trouble = ""
            lost = f", {self._lost} records were lost" if self._lost else ""
            self._tell(f"the store is back: what waited is being written{lost}")

    def _refused(self, error: Exception) -> None:
        """Leave the current record out; of several, find the one that is refused."""
        self._alone = len(self._current) if len(self._current) > 1 else 0
        if not self._alone:
            self._done()
            self._tell(f"the store left a record out: {error}")

    def _done(self) -> None:
        """Remove the current records."""
        written = set(map(id, self._current))
        with self._changed:
            if not written:
                self._aside.drop()
            while self._waiting and id(self._waiting[0]) in written:  # `put` may have taken some out
                self._waiting.popleft()
            self._changed.notify_all()

    def _failed(self, why: str) -> None:
        if not self._trouble:
            self._tell(f"{why}; the run goes on, its rows are kept in {self._aside.path}")
        self._trouble = why
        self._put_aside()

    def _put_aside(self) -> bool:
        with self._changed:
            entries = list(self._waiting)
        cache_files = [each for each in entries if not isinstance(each[0], Present)]
        try:
            if cache_files:
                self._aside.add(cache_files)
        except EdgeFailed as error:
            if not self._aside_trouble:
                self._tell(f"{error}; the newest {LIMIT} records wait in memory")
            with self._changed:
                self._aside_trouble = str(error)
                self._drop_oldest()
            return False
        gone = set(map(id, entries))
        with self._changed:
            self._waiting = deque(each for each in self._waiting if id(each) not in gone)
            self._changed.notify_all()
        return True

    def _pause(self) -> None:
        """Leave the store alone for a while; new records are spooled at once."""
        until = time.monotonic() + self._retry_s
        while not self._closing and (left := until - time.monotonic()) > 0:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._waiting, left)
            if not self._put_aside():
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, max(until - time.monotonic(), 0.0))
