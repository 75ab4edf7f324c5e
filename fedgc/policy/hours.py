"""The hours of a week in which a site may train."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar
from zoneinfo import ZoneInfo

from fedgc.errors import Unusable

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY: Final = 24 * 60  # minutes
WEEK: Final = 7 * DAY
MOST_SPANS: Final = 63  # a client announces at most 64 of seven days, in which one window can be cut in two
WINDOW: Final = re.compile(r"(?:(\w{3})(?:-(\w{3}))? )?(\d\d):(\d\d)-(\d\d):(\d\d)")
NEEDS: Final = "windows such as 'Mon-Fri 20:00-06:00', 'Sat 00:00-24:00' or '22:00-05:00'"

T = TypeVar("T", int, float)
Span = tuple[int, int]  # minutes from Monday 00:00; the end may lie in the next week


@dataclass(frozen=True, slots=True)
class Hours:
    """Windows of a week, in the time of a zone.

    >>> night = Hours.of("Europe/Berlin", ["Mon-Fri 20:00-06:00"])
    >>> night.opens_s(1_700_000_000.0), night.closes_s(1_700_000_000.0)  # a Tuesday, 23:13
    (0.0, 24400.0)
    """

    zone: ZoneInfo
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, zone: str, windows: Sequence[str]) -> "Hours":
        """Read windows; raise Unusable if one is malformed or has no length, or if there are too many."""
        spans = sorted(span for window in windows for span in _spans(window))
        if not spans:
            raise Unusable(f"saw {list(windows)}, so training is never allowed; needed {NEEDS}")
        merged = _merged(spans)
        if len(merged) > MOST_SPANS:
            raise Unusable(f"saw {len(merged)} windows in a week, needed at most {MOST_SPANS}")
        return cls(zone_of(zone), merged)

    def closes_s(self, now: float) -> float:
        """Return the seconds until the present window closes: 0 outside, infinite if none ever closes."""
        if self._always:
            return float("inf")
        return max((end - now for begin, end in self._around(now) if begin <= now < end), default=0.0)

    def opens_s(self, now: float) -> float:
        """Return the seconds until the next window opens; 0 inside one."""
        if self._always or self.closes_s(now) > 0:
            return 0.0
        return min(begin - now for begin, _ in self._around(now) if begin > now)

    def week(self, now: float) -> tuple[tuple[float, float], ...]:
        """Return the windows of the next seven days: the seconds from now at which they open and close.

        >>> Hours.of("UTC", ["Mon 20:00-22:00"]).week(4 * 86_400.0 + 21 * 3600)  # a Monday, 21:00
        ((0.0, 3600.0), (601200.0, 604800.0))
        """
        if self._always:
            return ((0.0, 60.0 * WEEK),)
        cut = ((max(0.0, begin - now), min(60.0 * WEEK, end - now)) for begin, end in self._around(now))
        return tuple((opens_s, closes_s) for opens_s, closes_s in cut if opens_s < closes_s)

    @property
    def _always(self) -> bool:
        return any(end - begin >= WEEK for begin, end in self.spans)

    def _around(self, now: float) -> list[tuple[float, float]]:
        """Return the windows of this week and its neighbors in order, in seconds since 1970."""
        today = datetime.fromtimestamp(now, self.zone).replace(tzinfo=None)
        midnight = today.replace(hour=0, minute=0, second=0, microsecond=0)
        monday = midnight - timedelta(days=today.weekday())
        times = (
            (self._at(monday, week * WEEK + begin, begins=True), self._at(monday, week * WEEK + end))
            for week in (-1, 0, 1)
            for begin, end in self.spans
        )
        return _joined(sorted(each for each in times if each[0] < each[1]))

    def _at(self, monday: datetime, minutes: int, *, begins: bool = False) -> float:
        """Return when a window begins or ends, so that it is never open outside of its hours.

        Clocks that are set back show a time twice: a window begins with the second and ends with the first. A
        time that clocks skip is that at which they are set forward.
        """
        local = (monday + timedelta(minutes=minutes)).replace(tzinfo=self.zone)
        first, second = local.timestamp(), local.replace(fold=1).timestamp()
        if first > second:
            return _jump(self.zone, second, first)
        return second if begins else first


def _jump(zone: ZoneInfo, before: float, after: float) -> float:
    """Return the second between two times at which clocks are set forward."""
    offset = datetime.fromtimestamp(before, zone).utcoffset()
    while after - before > 1:
        middle = (before + after) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone by its name in the IANA database."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise Unusable(f"saw {name!r}, needed a time zone of the IANA database, as Europe/Berlin") from error


def _spans(window: str) -> Iterator[Span]:
    found = WINDOW.fullmatch(window.strip())
    if found is None:
        raise Unusable(f"saw {window!r}, needed {NEEDS}")
    first, last, *clock = found.groups()
    days = range(7) if first is None else _days(window, first, last or first)
    begin, end = (60 * int(clock[at]) + int(clock[at + 1]) for at in (0, 2))
    if max(int(clock[1]), int(clock[3])) > 59 or begin >= DAY or end > DAY:
        raise Unusable(f"saw {window!r}, needed times from 00:00 to 24:00")
    if begin == end:
        raise Unusable(f"saw {window!r}, a window that never opens; needed {NEEDS}")
    for day in days:
        yield day * DAY + begin, day * DAY + end + (DAY if end < begin else 0)


def _days(window: str, first: str, last: str) -> Sequence[int]:
    if first not in DAYS or last not in DAYS:
        raise Unusable(f"saw {window!r}, needed days of {', '.join(DAYS)}")
    begin, end = DAYS.index(first), DAYS.index(last)
    return [day % 7 for day in range(begin, (end if end >= begin else end + 7) + 1)]


def _joined(spans: Sequence[tuple[T, T]]) -> list[tuple[T, T]]:
    """Return sorted spans with those joined that touch."""
    joined: list[tuple[T, T]] = []
    for begin, end in spans:
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def _merged(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return sorted spans with those joined that touch, also over the end of the week."""
    merged = _joined(spans)
    while len(merged) > 1 and merged[-1][1] >= merged[0][0] + WEEK:
        _, end = merged.pop(0)
        merged[-1] = merged[-1][0], max(merged[-1][1], end + WEEK)
    return tuple(merged)
