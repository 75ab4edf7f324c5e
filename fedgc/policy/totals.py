"""What a site has spent: bytes and exchanges of the present day, privacy of all runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from fedgc.secagg.privacy import epsilon_of


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of an audit log. `day` is the date, in the site's zone, that bytes and exchanges belong to.

    `privacy` has for each run the sum of 1 / noise^2 over its releases. Releases of the Gaussian mechanism
    compose by that sum (Dong, Roth, Su 2022).
    """

    day: str = ""
    bytes: int = 0
    exchanges: int = 0
    privacy: Mapping[str, float] = field(default_factory=dict)

    def on(self, day: str) -> "Totals":
        """Return the totals of this day: a new day begins at 0."""
        return self if self.day == day else replace(self, day=day, bytes=0, exchanges=0)

    def spent(self, day: str, run: str, size_bytes: int, exchanges: int, noise: float) -> "Totals":
        """Return the totals after so many bytes and exchanges of a run; `noise` 0: without privacy."""
        today = self.on(day)
        charged = self.privacy
        if exchanges and noise:
            charged = {**self.privacy, run: self.privacy.get(run, 0.0) + exchanges / noise**2}
        return Totals(day, today.bytes + size_bytes, today.exchanges + exchanges, charged)

    def epsilon(self, delta: float, run: str = "", more: float = 0.0) -> float:
        """Return the epsilon of all runs, of which `run` spends `more` in total, if it has not spent more."""
        before = self.privacy.get(run, 0.0)
        total = sum(self.privacy.values()) - before + max(before, more)
        return epsilon_of(total, delta)


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
