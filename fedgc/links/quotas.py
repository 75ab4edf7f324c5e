"""What one client may make the server do: limits of its lines, joins and refusals, and growing pauses.

Each limit is a token bucket: a rate, and a burst that an honest client may have saved up. A client beyond a
limit is excluded: it is lost to the run, and is admitted again after a pause that doubles each time. A client
is known by its key, so the limits hold over all sessions and links of a run.

The rates are far above what honest clients need. Measured (4 clients, a linear model, two cores): local work
with rounds of 66 ms, 150 lines and 5.5 kB a second; coded work with 64 or 1000 chunks, at most 275 lines and
100 kB in one second. A line takes the server about 70 us, so 5000 of them take a third of a core.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from fedgc.errors import NotAdmitted

LINES_PER_S: Final = 5000.0  # the setting's default: 18 times the measured peak
BYTES_PER_S: Final = 4e6  # the setting's default: 40 times the measured peak
BURST_S: Final = 10.0  # of either rate: all that a client says while its stream is broken, sent at once
LEAST_BURST_BYTES: Final = 40e6  # more than a session keeps for a peer that is away
JOINS_PER_S: Final = 0.5  # 30 a minute; an honest client joins once a session
MOST_JOINS: Final = 30.0  # in a burst: sessions that break again and again
REFUSALS_PER_S: Final = 1.0  # lines and vectors that a link cannot use; an honest client sends none
MOST_REFUSALS: Final = 100.0
MOST_CHUNKS: Final = 20_000  # that a client announces; a plan of more takes seconds
FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 300.0
CALM_S: Final = 1800.0  # after which a client starts again with the first pause


class Bucket:
    """Tokens that come at a constant rate, up to a burst.

    >>> bucket = Bucket(2.0, 3.0)
    >>> bucket.take(3.0, 0.0), bucket.take(1.0, 0.0), bucket.take(1.0, 0.5)
    (True, False, True)
    """

    __slots__ = ("_burst", "_left", "_per_s", "_since")

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst, self._left, self._since = per_s, burst, burst, 0.0

    def take(self, amount: float, now: float) -> bool:
        """Take so many tokens; return whether they were there."""
        if now > self._since:
            self._left = min(self._burst, self._left + (now - self._since) * self._per_s)
            self._since = now
        if amount > self._left:
            return False
        self._left -= amount
        return True


class Spent(NamedTuple):
    """What a client made the server do at once."""

    lines: int = 0
    size_bytes: int = 0
    joins: int = 0
    chunks: int = 0  # announced in a join
    refusals: int = 0


@dataclass(frozen=True, slots=True)
class Pause:
    """The exclusion of one client."""

    until: float
    pause_s: float
    reason: str


class _Account:
    """The buckets of one client."""

    def __init__(self, lines_per_s: float, bytes_per_s: float) -> None:
        burst_bytes = max(LEAST_BURST_BYTES, BURST_S * bytes_per_s)
        self._lines = _limit(lines_per_s, BURST_S * lines_per_s, "lines")
        self._bytes = _limit(bytes_per_s, burst_bytes, "bytes of lines")
        self._joins = _limit(JOINS_PER_S, MOST_JOINS, "joins")
        self._refusals = _limit(REFUSALS_PER_S, MOST_REFUSALS, "messages to refuse")

    def spend(self, spent: Spent, now: float) -> str:
        """Return the limit that this exceeds, or an empty string."""
        if spent.chunks > MOST_CHUNKS:
            return f"it announced {spent.chunks} chunks, needed at most {MOST_CHUNKS}"
        for amount, (bucket, needed) in (
            (spent.lines, self._lines),
            (spent.size_bytes, self._bytes),
            (spent.joins, self._joins),
            (spent.refusals, self._refusals),
        ):
            if amount and not bucket.take(amount, now):
                return needed
        return ""


def _limit(per_s: float, burst: float, what: str) -> tuple[Bucket, str]:
    rate = f"{per_s:g} {what} a second" if per_s >= 1 else f"{60 * per_s:g} {what} a minute"
    return Bucket(per_s, burst), f"it sent more than {rate}, and more than {burst:g} at once"


def _ignored(client: str, pause: Pause) -> None:
    """Nobody else needs to know of the clients that are excluded."""


class Quotas:
    """The limits of all clients of one run, on all of its links; thread-safe."""

    def __init__(self, lines_per_s: float = LINES_PER_S, bytes_per_s: float = BYTES_PER_S) -> None:
        self._rates = lines_per_s, bytes_per_s
        self._accounts: dict[str, _Account] = {}
        self._pauses: dict[str, Pause] = {}
        self._lock = threading.Lock()
        self.told: Callable[[str, Pause], None] = _ignored  # what clients are excluded

    def spend(self, client: str, spent: Spent, now: float) -> str:
        """Return the limit that a client now exceeds; empty if it may do this."""
        with self._lock:
            account = self._accounts.get(client)
            if account is None:
                account = self._accounts[client] = _Account(*self._rates)
            return account.spend(spent, now)

    def exclude(self, client: str, reason: str, now: float) -> float:
        """Exclude a client; return for how long. Its buckets are full when it is back."""
        with self._lock:
            before = self._pauses.get(client)
            pause_s = FIRST_PAUSE_S
            if before is not None and now < before.until + CALM_S:
                pause_s = min(2 * before.pause_s, LONGEST_PAUSE_S)
            pause = Pause(now + pause_s, pause_s, reason)
            self._set(client, pause)
        self.told(client, pause)
        return pause_s

    def note(self, client: str, pause: Pause) -> None:
        """Note that another process of this server has excluded a client; it may be told again."""
        with self._lock:
            before = self._pauses.get(client)
            if before is None or before.until < pause.until:
                self._set(client, pause)

    def _set(self, client: str, pause: Pause) -> None:
        self._pauses[client] = pause
        self._accounts.pop(client, None)

    def pauses(self) -> dict[str, Pause]:
        """Return the last exclusion of each client; the next one is longer for those that are over, too."""
        with self._lock:
            return dict(self._pauses)

    def check(self, client: str, now: float) -> None:
        """Raise NotAdmitted while a client is excluded."""
        with self._lock:
            pause = self._pauses.get(client)
        if pause is not None and now < pause.until:
            raise NotAdmitted(
                f"client {client} is excluded for {pause.until - now:.0f} s more: {pause.reason}"
            )
