"""The sink that keeps: a run's history, put into the store beside the training.

The driver's clock is its own; the store wants seconds since 1970, and gets them by one offset that is
taken when the sink is made.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from threading import Lock
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import FedgcError
from fedgc.flower.json_lines import Lines
from fedgc.flower.sink import Live, Sink
from fedgc.history import RoundRow
from fedgc.store.records import Appended, Audited, Begun, Decided, Ended, Evaluated, Present, Record, Seen
from fedgc.store.standing import SERVER, this_process
from fedgc.store.writer import Keeper

AUDITED: Final = 100  # of one kind and one client in a run: nobody fills the record by being refused


class KeptSink(Sink):
    """Turns what the driver says into records of one run."""

    def __init__(
        self, keeper: Keeper, run: str, wall: Callable[[], float], offset_s: float, lines: Lines
    ) -> None:
        """`offset_s` is what the driver's clock lacks to seconds since 1970."""
        self._keeper = keeper
        self._lines = lines
        self._run = run
        self._wall = wall
        self._offset_s = offset_s
        self._process = {SERVER: this_process().words()}  # by which a server that was killed is known
        self._seen: dict[str, tuple[str, str]] = {}
        self._ended = False
        self._lacking = ""  # what the last round's sum did not count, in words
        self._audits: Counter[tuple[str, str]] = Counter()
        self._audits_lock = Lock()

    @contextmanager
    def recorded(self, config: RunConfig) -> Iterator[None]:
        """Record the run's begin, and how it ended."""
        self._put(Begun(self._wall(), self._run, config.table()))
        self._put(Present(self._wall(), self._run, self._process))
        try:
            yield
            self._end("completed", self._lacking)
        except FedgcError as error:
            self._end("failed", str(error))
            raise
        except Exception as error:  # whatever it was, it is the reason
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            self._end("failed", f"the server ended in mid-run: {said}")
            raise
        finally:
            self._end("failed", "the server ended in mid-run")
            self._keeper.close()

    def _put(self, record: Record) -> None:
        self._keeper.put(record)
        self._lines.tell(record)

    def _end(self, state: str, reason: str) -> None:
        if not self._ended:
            self._ended = True
            self._sum_up()
            self._put(Ended(self._wall(), self._run, state, reason))

    def stopped(self, reason: str) -> None:
        """Keep that the run was stopped."""
        self._end("stopped", reason)

    def append(self, row: RoundRow) -> None:
        """Keep a round's row."""
        why = f" ({row.left_out})" if row.left_out else ""
        self._lacking = f"{row.lacking} in the last round{why}" if row.lacking else ""
        row = replace(row, started=row.started + self._offset_s)
        self._put(Appended(self._wall(), self._run, row))

    def present(self, live: Live) -> None:
        """Keep how things stand, over what was there, and the clients whose name or link is new."""
        for each in live.clients:
            if self._seen.get(each.client) != (each.name, each.link):
                self._seen[each.client] = each.name, each.link
                self._put(Seen(self._wall(), each.client, each.name, link=each.link))
        self._put(Present(self._wall(), self._run, asdict(live) | self._process))

    def evaluated(self, round_: int, metrics: Mapping[str, float]) -> None:
        """Keep what the model was worth after a round."""
        self._put(Evaluated(self._wall(), self._run, round_, metrics))

    def chose(self, round_: int, basis: Mapping[str, object], reason: str) -> None:
        """Keep a plan, with what it was made from."""
        self._put(Decided(self._wall(), self._run, round_, "plan", basis, reason))

    def audited(self, kind: str, who: str, what: str) -> None:
        """Put on record who joined, what was refused, which keys are in use."""
        with self._audits_lock:
            self._audits[kind, who] += 1
            count = self._audits[kind, who]
        if count <= AUDITED:
            self._put(Audited(self._wall(), kind, who, what, self._run))

    def _sum_up(self) -> None:
        """Say how often it was, where not all of it is on record."""
        with self._audits_lock:
            many = [(each, count) for each, count in self._audits.items() if count > AUDITED]
        for (kind, who), count in many:
            what = f"{count} times in this run, {AUDITED} of them on record"
            self._put(Audited(self._wall(), kind, who, what, self._run))
