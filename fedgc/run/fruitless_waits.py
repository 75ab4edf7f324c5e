"""Clients that several rounds in a row wait for and that give nothing: they are excluded for a while.

Such a round ends without the client's work, later than it could have. One of them may be chance. So a client
is excluded after `MOST_ROUNDS` in a row that took `LEAST_S` together; one that was only slow to start has
begun by then. The time does not matter for a client that reported work in each of them: it had begun. Once
such a client was excluded, the first round in which it does so again excludes it, until it has given
something. A client that sends at least `LEAST_BYTES_S`, of which nothing is refused, is on a slow uplink,
which the limits of a round learn.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from fedgc.history import ClientRow, RoundRow

MOST_ROUNDS: Final = 3
LEAST_S: Final = 60.0
LEAST_BYTES_S: Final = 1_000.0


@dataclass(frozen=True, slots=True)
class _Streak:
    rounds: int = 0
    seconds: float = 0.0
    worked: bool = True  # in each of them

    @property
    def is_over(self) -> bool:
        """Whether these are too many."""
        return self.rounds >= MOST_ROUNDS and (self.worked or self.seconds >= LEAST_S)


class FruitlessWaits:
    """Counts, for each client, the last rounds that waited for it."""

    def __init__(self) -> None:
        self._streaks: dict[str, _Streak] = {}
        self._again: set[str] = set()  # clients that gave nothing since they were excluded

    def excluded(self, row: RoundRow, awaited: Collection[str]) -> dict[str, str]:
        """Return the clients to exclude after a round, and why; `awaited` are those it waited for."""
        seconds = row.working_s + row.collecting_s
        found = {}
        for each in row.clients:
            before = self._streaks.pop(each.client, _Streak())
            if _gave(each, row):
                self._again.discard(each.client)
                continue
            if each.client not in awaited:
                continue
            worked = before.worked and each.finished > 0
            streak = _Streak(before.rounds + 1, before.seconds + seconds, worked)
            if streak.is_over or (streak.worked and each.client in self._again):
                why = f" ({each.failure})" if each.failure else ""
                found[each.client] = f"{_counted(streak.rounds)}, and it gave nothing{why}"
                self._again.add(each.client)
            else:
                self._streaks[each.client] = streak
        return found


def _counted(rounds: int) -> str:
    if rounds == 1:
        return "a round waited for it again"
    return f"in {rounds} rounds in a row the others waited for it"


def _gave(client: ClientRow, row: RoundRow) -> bool:
    """Whether a client's work is in the sum, or is on its way."""
    if client.refused and not client.counted:
        return False
    return bool(client.counted) or client.up_bytes >= LEAST_BYTES_S * max(1.0, row.collecting_s)
