"""The deadline of the working phase, which counts from when clients have the model.

The deadline waits for the model of clients that are present at the start, but at most
`Assignment.model_limit_s`. A client that joins later does not move the deadline. A client that is leaving
brings it forward, so that what it has is collected while it is there. So does one whose hours end.
"""

from collections.abc import Iterable, Sequence, Set
from typing import Final

from fedgc.messages import Command, Take, Work
from fedgc.round.roster import Roster

LEAST_MARGIN_S: Final = 2.0  # for the request to travel, and for an upload on an uplink of unknown speed
UPLOADS: Final = 2.0  # how many times the expected time an upload may take


def upload_margin_s(upload_s: float) -> float:
    """Return how long before a client goes its upload has to begin."""
    return max(LEAST_MARGIN_S, UPLOADS * upload_s)


class WorkingDeadline:
    """Tracks models in transit, and the deadline that follows."""

    def __init__(self, roster: Roster) -> None:
        self.at = 0.0  # the end of the working phase
        self.loading: Final = roster.loading
        self._roster = roster
        self._since = 0.0  # the start of the round, or of the last extension
        self._awaited: set[str] = set()  # clients that the deadline waits for
        self._loaded_at = 0.0  # when the last of them had the model
        self._closing: dict[str, float] = {}  # clients whose hours end, and by when to collect
        self._leaving: dict[str, float] = {}  # clients that hand in before they end, and by when to collect

    def start(self, now: float, present: Iterable[str]) -> None:
        """Start the clock."""
        self._loaded_at = self._since = now
        here = set(present)
        self._awaited = self.loading & here
        for client, closes in self._roster.assignment.closes.items():
            w = self._roster.w.get(client)
            at = closes if w is None else closes - upload_margin_s(self._roster.upload_s[w])
            if client in here and at > now:
                self._closing[client] = at
        self._set()

    def sent(self, given: Sequence[Command]) -> None:
        """Note the clients that are sent the model."""
        self.loading.update(each.client for each in given if isinstance(each, Work))

    def extend(self, now: float) -> None:
        """Count anew from now on, unless a client is leaving or its hours end."""
        self._loaded_at = self._since = now
        self._set()

    def loaded(self, client: str, now: float) -> None:
        """Note that a client has the model."""
        if client in self._awaited:
            self._loaded_at = now
        self._came(client)

    def leaving(self, client: str, at: float) -> None:
        """Collect at this time at the latest, while this client is still there."""
        self._leaving[client] = at
        self._set()

    def gone(self, client: str) -> None:
        """Wait for nothing of this client any more: neither for its model nor for what it hands in."""
        self._leaving.pop(client, None)
        self._closing.pop(client, None)
        self._came(client)

    def back(self, client: str) -> None:
        """Wait for nothing of the process that this client had before."""
        self._leaving.pop(client, None)
        self._came(client)

    @property
    def hurried(self) -> tuple[str, ...]:
        """The leaving clients for which the deadline was brought forward."""
        return tuple(self._leaving)

    def is_hurried(self, now: float) -> bool:
        """Whether the deadline is over because a client is leaving."""
        return any(at <= now for at in self._leaving.values())

    def _came(self, client: str) -> None:
        self.loading.discard(client)
        self._awaited.discard(client)
        self._set()

    def _set(self) -> None:
        limit_s = self._roster.limit_s
        latest = self._since + self._roster.assignment.model_limit_s + limit_s
        at = latest if self._awaited else min(latest, self._loaded_at + limit_s)
        self.at = min(at, *self._leaving.values(), *self._closing.values(), at)


def trains(given: Sequence[Command], kept: Set[int] = frozenset()) -> bool:
    """Whether a client has to train before it can send, although it has `kept` these chunks."""
    return any(
        isinstance(each, Take) or (isinstance(each, Work) and set(each.order) - kept) for each in given
    )
