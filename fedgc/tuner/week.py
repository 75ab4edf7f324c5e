"""The expected seconds of a round over a week in which clients may train in certain hours only.

At each time of the week some clients may train, and a round of these takes T(them) seconds, replayed as for
one client less in `advice`. The seconds of the week over its number of rounds are the expected seconds of a
round, closed hours included. Hours repeat every week.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

WEEK_S: Final = 7 * 86_400.0
MOST_SETS: Final = 24  # sets of clients that are replayed; of more, one of each size
Windows = Mapping[
    str, Sequence[tuple[float, float]]
]  # from and until when, in seconds since any Thursday 00:00


@dataclass(frozen=True, slots=True)
class Week:
    """The expected seconds of a round (infinite: there is none), and the hours without a client."""

    round_s: float
    idle_h: float


def over_week(clients: Sequence[str], windows: Windows, round_s: Callable[[tuple[int, ...]], float]) -> Week:
    """Return the expected week; `round_s` gives the seconds of a round of the clients with these indices.

    >>> day, night = [(0, 43_200)], [(43_200, 86_400)]
    >>> over_week(["a", "b"], {"a": day, "b": night}, lambda present: 10.0)
    Week(round_s=70.0, idle_h=144.0)
    """
    open_s: dict[tuple[int, ...], float] = {}
    edges = {at % WEEK_S for each in windows.values() for window in each for at in window}
    for begin, end in pairwise(sorted({0.0, *edges, WEEK_S})):
        present = tuple(w for w, client in enumerate(clients) if _may(windows.get(client), begin))
        open_s[present] = open_s.get(present, 0.0) + end - begin
    idle_s = open_s.pop((), 0.0)
    alike = len(open_s) > MOST_SETS
    found: dict[object, float] = {}
    rounds = 0.0
    for present, seconds in open_s.items():
        key = len(present) if alike else present
        if key not in found:
            found[key] = round_s(present)
        rounds += seconds / found[key]
    return Week(WEEK_S / rounds if rounds else float("inf"), idle_s / 3600)


def _may(windows: Sequence[tuple[float, float]] | None, at: float) -> bool:
    """Whether a client with these windows may train at this time; without any it always may."""
    return windows is None or any((at - begin) % WEEK_S < end - begin for begin, end in windows)
