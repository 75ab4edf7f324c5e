"""Stalled clients: those that make no progress while others do.

A round's deadline makes sure that it ends, and is generous where nothing was measured. So that one client
that never delivers does not hold every round to its deadline, a round counts on a client only as long as it
makes progress. For a unit (a chunk; in local work all of its steps) it has `PATIENCE` times as long as it is
known to need, or, if that is longer or nothing is known of it, as the slowest unit of this round took. A
client that reports again is counted on again.

If no other client has reported in this round, or if all of them stall, nothing is concluded: they may be slow
to start, or have been suspended together. If the user has set the deadline (`timing.deadline-s`), that is how
long a round waits.

Index w is a client, as in the plan.
"""

import math
from collections.abc import Callable, Container, Set
from typing import Final

from fedgc.round.roster import Roster

PATIENCE: Final = 8.0
LEAST_S: Final = 30.0  # for a client that hears commands while it works
DEAF_S: Final = 120.0  # for one that answers messages: Flower starts a process for each


class StalledClients:
    """Tracks when each client that has work made progress."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._since: dict[int, float] = {}  # of clients with work that are counted on
        self._deaf: set[int] = set()
        self._stalled: dict[int, float] = {}  # with the time of their last progress
        self._longest_s = 0.0  # a unit in this round
        self._heard: set[int] = set()  # clients that have made progress in this round
        self.look_at = math.inf  # when a client may be stalled

    def began(self, w: int, now: float, *, live: bool) -> None:
        """Note that a client has been given work."""
        self._awake(w)
        self._since[w] = now
        (self._deaf.discard if live else self._deaf.add)(w)
        self.look_at = now if self._heard else math.inf

    def progressed(self, w: int, now: float) -> bool:
        """Note a client's progress; return whether it was stalled."""
        since = self._since.get(w, self._stalled.get(w, now))
        self._longest_s = max(self._longest_s, now - since)
        if not self._heard:
            self.look_at = now
        self._heard.add(w)
        self._since[w] = now
        return self._awake(w)

    def gone(self, w: int) -> None:
        """Forget a client that is lost, was started again or has failed."""
        self._since.pop(w, None)
        self._awake(w)

    def _awake(self, w: int) -> bool:
        """Call a client stalled no longer; return whether it was."""
        was_stalled = self._stalled.pop(w, None) is not None
        if was_stalled:
            self._roster.statistics.failure[w] = ""
        return was_stalled

    @property
    def clients(self) -> Set[int]:
        """The clients that are not counted on."""
        return self._stalled.keys()

    def found(self, now: float, loading: Container[str], units: Callable[[int], int]) -> list[int]:
        """Return the clients that are now stalled, of those with `units` left to do."""
        if not self._roster.plan.gives_up_stalled:
            self.look_at = math.inf
        if now < self.look_at:
            return []
        due = {w: self._due(w, loading, units(w)) for w in self._since if self._heard - {w} and units(w)}
        found = [w for w, at in due.items() if at <= now]
        if len(found) == len(self._since):
            self.look_at = now + LEAST_S
            return []
        for w in found:
            since = self._since.pop(w)
            self._stalled[w] = since
            self._roster.statistics.awaited.add(w)
            self._roster.statistics.failure[w] = f"no progress for {now - since:.0f} s"
        self.look_at = min((at for w, at in due.items() if w not in found), default=math.inf)
        return found

    def _due(self, w: int, loading: Container[str], units: int) -> float:
        roster = self._roster
        known_s = roster.assignment.target * roster.plan.step_s[w] if roster.plan.measured else 0.0
        unit_s = max(known_s, self._longest_s)
        since = max(self._since[w], roster.model_at.get(w, 0.0))
        if roster.plan.clients[w] in loading:
            since += roster.assignment.model_limit_s
        if w in self._deaf:
            return since + max(DEAF_S, PATIENCE * unit_s * units)
        return since + max(LEAST_S, PATIENCE * unit_s)
