"""Members that were asked for keys and gave none: when one that comes back is worth a new set-up.

A set-up waits for each member that it asks, and takes what is left of the epoch before. So a member that
joins again in each round and never answers, or whose client ends at each `Open`, would delay every round.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

FIRST_PAUSE_S: Final = 120.0
LONGEST_PAUSE_S: Final = 3600.0


@dataclass(slots=True)
class MissedSetUps:
    """The set-ups in a row that each member has missed; after two it pauses, each time twice as long.

    >>> missed = MissedSetUps()
    >>> for now in (60.0, 180.0):
    ...     missed.ended({0, 1, 2}, {0, 1}, now)
    ...     print(missed.pauses(2, now + 1.0), missed.pauses(2, now + 121.0), missed.pauses(0, now))
    False False False
    True False False
    """

    _missed: dict[int, tuple[int, float]] = field(default_factory=dict)  # how many, and when the pause ends

    def ended(self, asked: Collection[int], came: Collection[int], now: float) -> None:
        """Note a set-up: the members that were asked, and those that have keys now."""
        for member in asked:
            count = 0 if member in came else self._missed.get(member, (0, 0.0))[0] + 1
            pause_s = min(FIRST_PAUSE_S * 2.0 ** min(count - 2, 10), LONGEST_PAUSE_S) if count > 1 else 0.0
            self._missed[member] = count, now + pause_s

    def pauses(self, member: int, now: float) -> bool:
        """Whether this member begins no set-up by coming back; one that begins otherwise asks it too."""
        return now < self._missed.get(member, (0, now))[1]
