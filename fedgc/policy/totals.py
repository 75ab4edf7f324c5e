"""What a site has spent: bytes and exchanges of the present day, privacy of all runs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from fedgc.secagg.renyi import Release, epsilon_of_releases, with_release

DAYS_KEPT: Final = 7  # before the present one


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of an audit log. `day` is the date, in the site's zone, that bytes and exchanges belong to.

    `earlier` has the bytes and exchanges of the days before, so that a clock that is set back, as that of a
    machine that has just started, gives no day twice. `privacy` has for each account the sum of 1 / noise^2
    over its exchanges with noise, and `steps` its local steps with noise for records, as rows of noise,
    sampling rate and number. The account of a masked run is its descriptor, which declares the exchanges of
    all of its runs; that of any other run, and in lines of earlier versions, is the run.
    """

    day: str = ""
    bytes: int = 0
    exchanges: int = 0
    privacy: Mapping[str, float] = field(default_factory=dict)
    steps: Mapping[str, list[list[float]]] = field(default_factory=dict)
    earlier: Mapping[str, list[int]] = field(default_factory=dict, compare=False)  # heads may lack it

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Totals":
        """Return totals that were kept; raise TypeError or AttributeError if they are of another form."""
        found = cls(**values)
        days, rows = [*found.earlier.values()], [row for each in found.steps.values() for row in each]
        counts = [found.bytes, found.exchanges, *(each for day in days for each in day)]
        numbers = [*found.privacy.values(), *(each for row in rows for each in row)]
        if not (
            isinstance(found.day, str)
            and all(type(each) is int for each in counts)
            and all(type(each) in (int, float) for each in numbers)
            and all(len(day) == 2 for day in days)
            and all(len(row) == 3 for row in rows)
        ):
            raise TypeError("totals of another type")
        if not all(_is_spent(each) for each in found.privacy.values()) or not all(map(_is_release, rows)):
            raise ValueError("privacy that no run can have spent")
        return found

    def on(self, day: str) -> "Totals":
        """Return the totals of this day: a new day begins at 0."""
        if self.day == day:
            return self
        known = {**self.earlier, self.day: [self.bytes, self.exchanges]}
        size_bytes, exchanges = known.pop(day, (0, 0))
        kept = dict([each for each in known.items() if each[0]][-DAYS_KEPT:])
        return replace(self, day=day, bytes=size_bytes, exchanges=exchanges, earlier=kept)

    def spent(
        self,
        day: str,
        account: str,
        size_bytes: int,
        exchanges: int,
        noise: float,
        steps: Iterable[Release] = (),
    ) -> "Totals":
        """Return the totals after so many bytes, exchanges and steps; `noise` 0: without privacy."""
        if not _is_spent(noise) or not all(map(_is_release, steps := tuple(steps))):
            raise ValueError(f"noise {noise} or steps {steps}, which no run can have")
        today = self.on(day)
        charged = self.privacy
        if exchanges and noise:
            charged = {**self.privacy, account: self.privacy.get(account, 0.0) + exchanges / noise**2}
        known = self.steps
        for step in steps:
            rows = with_release(map(_release, known.get(account, ())), step)
            known = {**known, account: [list(row) for row in rows]}
        return replace(
            today,
            bytes=today.bytes + size_bytes,
            exchanges=today.exchanges + exchanges,
            privacy=charged,
            steps=known,
        )

    def epsilon(
        self, delta: float, account: str = "", more: float = 0.0, steps: Iterable[Release] = ()
    ) -> float:
        """Return the epsilon of all runs and of these steps.

        `account` spends `more` in total by its exchanges, if it has not spent more.
        """
        before = self.privacy.get(account, 0.0)
        total = sum(self.privacy.values()) - before + max(before, more)
        exchanges = [(total**-0.5, 1.0, 1)] if total else []
        kept = [_release(row) for rows in self.steps.values() for row in rows]
        return epsilon_of_releases([*exchanges, *kept, *steps], delta)


def _is_spent(number: float) -> bool:
    """Whether a number can be noise, or a sum of 1 / noise^2: NaN would hide all that is spent."""
    return 0 <= number < math.inf


def _is_release(row: Sequence[float]) -> bool:
    noise, rate, count = row
    return 0 < noise < math.inf and 0 < rate <= 1 and count >= 0


def _release(row: Sequence[float]) -> Release:
    """Return a row of steps, as JSON has it."""
    noise, rate, count = row
    return noise, rate, int(count)


def day_of(now: float, zone: ZoneInfo) -> str:
    """Return the date at this time.

    >>> day_of(1_700_000_000.0, ZoneInfo("Asia/Tokyo"))
    '2023-11-15'
    """
    return datetime.fromtimestamp(now, zone).date().isoformat()


def midnight_s(now: float, zone: ZoneInfo) -> float:
    """Return the seconds until the next day begins.

    >>> midnight_s(1_700_000_000.0, ZoneInfo("UTC"))
    6400.0
    """
    today = datetime.fromtimestamp(now, zone).replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0)
    return (today + timedelta(days=1)).replace(tzinfo=zone).timestamp() - now
