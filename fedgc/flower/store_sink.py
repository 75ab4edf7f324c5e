"""The sink that writes a run's history to the store and to JSON lines.

The driver uses a monotonic clock and the store seconds since 1970. The sink adds their present difference,
which grows while the machine is suspended.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from threading import RLock
from typing import Final

from fedgc.config import RunConfig
from fedgc.datastore.manifest import CHUNK_NAME
from fedgc.errors import FedgcError, words_of
from fedgc.flower.json_lines import Lines
from fedgc.flower.preconditions import NOT_KEPT
from fedgc.flower.sink import Data, Live, LiveClient, Sink, Windows
from fedgc.history import BestModel, RoundRow
from fedgc.store.liveness import SERVER, SUPERLINK, this_process
from fedgc.store.reading import BEST, HOURS, USED
from fedgc.store.records import (
    Appended,
    Audited,
    Begun,
    Decided,
    Ended,
    Evaluated,
    Plain,
    Present,
    Record,
    Scored,
    Seen,
)
from fedgc.store.writer import Keeper

AUDITED: Final = 100  # recorded events of one kind and client in a run, so that no client floods the store


@dataclass(frozen=True, slots=True)
class Past:
    """The settings of a run before it is resumed, and in words those that the resume changes.

    `more` is recorded with the settings that it has now.
    """

    settings: Mapping[str, Plain] = field(default_factory=dict)
    changes: str = ""
    more: Mapping[str, Plain] = field(default_factory=dict)


class StoreSink(Sink):
    """Turns the driver's calls into records of one run."""

    def __init__(
        self,
        keeper: Keeper,
        run: str,
        wall: Callable[[], float],
        clock: Callable[[], float],
        lines: Lines,
        superlink: str = "",
    ) -> None:
        """`wall` gives seconds since 1970, `clock` is the driver's; `superlink` is in the live state."""
        self._keeper = keeper
        self._lines = lines
        self._run = run
        self._wall, self._clock = wall, clock
        # identifies a server that was killed, and whose clients are busy
        self._process = {SERVER: this_process().words(), SUPERLINK: superlink}
        self._seen: dict[str, tuple[str, str]] = {}
        self._announced: Counter[str] = Counter()  # hours, by client
        self._used: set[str] = set()  # chunks, of site data and others
        self._past = Past()
        self._ended = self._has_rounds = False
        self._early = ""  # why the run is complete before its last round
        self._lacking = ""  # describes the work missing in the last round's sum
        self._audits: Counter[tuple[str, str]] = Counter()
        self._audits_lock = RLock()  # a signal handler may call `stopped` inside `audited`

    @contextmanager
    def recorded(self, config: RunConfig, past: Past | None = None) -> Iterator[None]:
        """Record the begin and the end of the run.

        A resume that fails or is stopped before its first round is over leaves the settings of the `past` to
        the next one.
        """
        self._past = past or Past()
        settings = {**config.table(), **self._past.more}
        self._put(Begun(self._wall(), self._run, settings, self._past.changes))
        self._put(Present(self._wall(), self._run, self._process))
        try:
            yield
            self._end("completed", self._early or self._lacking)
        except FedgcError as error:
            self._end("failed", str(error))
            raise
        except Exception as error:  # any error is recorded as the reason
            self._end("failed", f"the server ended in mid-run: {words_of(error)}")
            raise
        finally:
            self._end("failed", "the server ended in mid-run")
            self._keeper.close()

    @property
    def _offset_s(self) -> float:
        """What converts the driver's clock to seconds since 1970."""
        return self._wall() - self._clock()

    def _put(self, record: Record) -> None:
        self._keeper.put(record)
        self._lines.tell(record)

    def _end(self, state: str, reason: str) -> None:
        if not self._ended:
            self._ended = True
            self._sum_up()
            settings: Mapping[str, Plain] = {}
            if state != "completed" and self._past.changes and not self._has_rounds:
                settings = self._past.settings
                reason = f"{reason}; {NOT_KEPT}: {self._past.changes}"
            self._put(Ended(self._wall(), self._run, state, reason, settings))

    def stopped(self, reason: str) -> None:
        """Record that the run was stopped."""
        self._end("stopped", reason)

    def append(self, row: RoundRow) -> None:
        """Record a round's row."""
        self._has_rounds = self._has_rounds or row.outcome != "stopped"
        cause = row.left_out or ("" if row.counted_samples else _fault_of(row))
        why = f" ({cause})" if cause else ""
        self._lacking = f"{row.lacking} in the last round{why}" if row.lacking else ""
        row = replace(row, started=row.started + self._offset_s)
        self._put(Appended(self._wall(), self._run, row))

    def present(self, live: Live) -> None:
        """Replace the run's live state, and record clients whose name or link has changed."""
        for each in live.clients:
            if self._seen.get(each.client) != (each.name, each.link):
                self._seen[each.client] = each.name, each.link
                self._put(Seen(self._wall(), each.client, each.name, link=each.link))
        offset_s = self._offset_s
        until = live.until + offset_s if live.until is not None else None
        live = replace(live, since=live.since + offset_s, until=until)
        state = {
            **_fields(live),
            "clients": [_fields(each) | _hours(each, offset_s) for each in live.clients],
            "data": _fields(live.data),
        }
        self._put(Present(self._wall(), self._run, state | self._process))

    def evaluated(self, round_: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of the model after a round."""
        self._put(Evaluated(self._wall(), self._run, round_, metrics))

    def scored(self, round_: int, client: str, samples: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of the model after a round on the data of one client."""
        self._put(Scored(self._wall(), self._run, round_, client, samples, metrics))

    def improved(self, best: BestModel) -> None:
        """Record the best model so far."""
        self._put(Decided(self._wall(), self._run, best.round, BEST, asdict(best), str(best)))

    def ended_early(self, reason: str) -> None:
        """Keep the reason for the end of the run."""
        self._early = reason

    def chose(self, round_: int, basis: Mapping[str, object], reason: str) -> None:
        """Record a plan and its basis."""
        self._put(Decided(self._wall(), self._run, round_, "plan", basis, reason))

    def assigned(self, round_: int, chunks: Sequence[str]) -> None:
        """Record which chunks of site data the run uses, each once."""
        fresh = set(chunks) - self._used
        self._used |= fresh
        if new := sorted(filter(CHUNK_NAME.fullmatch, fresh)):
            about = f"first used {len(new)} chunks of site data"
            self._put(Decided(self._wall(), self._run, round_, USED, {USED: new}, about))

    def has_hours(self, round_: int, client: str, windows: Windows) -> None:
        """Record when a client may train, without windows at any time; each announcement, up to a limit."""
        if not windows and not self._announced[client]:
            return  # it never had hours
        self._announced[client] += 1
        if self._announced[client] <= AUDITED:
            offset_s = self._offset_s
            times = [[opens + offset_s, ends + offset_s] for opens, ends in windows]
            hours = sum(ends - opens for opens, ends in windows) / 3600
            may = f"{hours:.0f} h a week" if windows else "at any time"
            about = f"client {self._seen.get(client, (client,))[0]} may train {may}"
            self._put(
                Decided(self._wall(), self._run, round_, HOURS, {"client": client, HOURS: times}, about)
            )

    def audited(self, kind: str, who: str, what: str) -> None:
        """Record a security event: a join, a refusal, or the use of a key."""
        with self._audits_lock:
            self._audits[kind, who] += 1
            count = self._audits[kind, who]
        if count <= AUDITED:
            self._put(Audited(self._wall(), kind, who, what, self._run))

    def _sum_up(self) -> None:
        """Record the total count of security events beyond the limit."""
        with self._audits_lock:
            many = [(each, count) for each, count in self._audits.items() if count > AUDITED]
        for (kind, who), count in many:
            what = f"{count} times in this run, {AUDITED} of them on record"
            self._put(Audited(self._wall(), kind, who, what, self._run))


def _hours(client: LiveClient, offset_s: float) -> dict[str, object]:
    return {} if client.closes is None else {"closes": client.closes + offset_s}


def _fields(value: Live | LiveClient | Data) -> dict[str, object]:
    """Return the fields of a value; unlike `asdict` it copies nothing."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _fault_of(row: RoundRow) -> str:
    """Return why a round gave nothing."""
    return row.reason or next((each.failure for each in row.clients if each.failure), "")
