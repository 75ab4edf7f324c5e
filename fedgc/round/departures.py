"""Clients that leave during a round: what they have is collected while they are there.

A client that was asked to end (SIGTERM, a notice of its cloud) reports what it has and says `Leaving`. Any
amount of work counts, so the round may collect early: it brings its working deadline forward to the last
moment at which the client can still send its vector, and exchanges even if the gate would skip. A round that
ends earlier by itself is not changed.

This costs one exchange for each departure, and less if several clients leave at once: the round waits until
the first of them has to go. `Assignment.forced_from` bounds it further, whatever clients say: exchanges are
forced at least some seconds apart, and a client whose round is skipped meanwhile loses the work of these
seconds.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fedgc.gates import Decision, Reports
from fedgc.messages import Leaving
from fedgc.round.deadline import WorkingDeadline, upload_margin_s
from fedgc.round.roster import Roster

LEFT: Final = "left"
MOST_OF_GRACE: Final = 0.5  # the largest share of a client's grace time that is kept for its upload


class Departures:
    """Brings the working deadline forward for clients that leave with something to hand in."""

    def __init__(self, roster: Roster, deadline: WorkingDeadline) -> None:
        self._roster, self._deadline = roster, deadline
        self.forced = False  # an exchange was made for a client that leaves
        self._leaving: set[int] = set()

    def note(self, w: int) -> None:
        """Note that a client leaves, with or without something to hand in."""
        self._leaving.add(w)

    def back(self, w: int) -> None:
        """Note that a client that had said that it leaves is there again."""
        self._leaving.discard(w)

    def failure(self, w: int) -> str:
        """Return what becomes of a client that is lost, for its row."""
        return LEFT if w in self._leaving else "lost"

    def leaves(self, event: Leaving, w: int) -> None:
        """Collect before this client has to go, unless an exchange was forced a short time ago.

        A client that hears nothing between its messages is asked at once: each message takes seconds.
        """
        latest = event.now + event.grace_s - self._margin_s(event, w)
        wanted = event.now if event.client in self._roster.deaf else latest
        at = max(wanted, self._roster.assignment.forced_from)
        if at <= latest:
            self._deadline.leaving(event.client, at)

    def decided(self, decide: Callable[[Reports], Decision], reports: Reports, now: float) -> Decision:
        """Return the gate's decision; a round in which a client leaves is exchanged, if that may be now."""
        decision, too_soon = decide(reports), now < self._roster.assignment.forced_from
        if decision.sync or too_soon or not self._deadline.hurried:
            return decision
        self.forced = True
        decision = decide(replace(reports, forced=self.reason))  # so that the gate knows of it
        return replace(decision, sync=True, reason=self.reason)

    @property
    def reason(self) -> str:
        """Why an exchange is forced; empty if nobody leaves with something to hand in."""
        leaving = self._deadline.hurried
        if not leaving:
            return ""
        others = f" and {len(leaving) - 1} more are" if len(leaving) > 1 else " is"
        return f"client {leaving[0]}{others} leaving"

    def _margin_s(self, event: Leaving, w: int) -> float:
        most_s = MOST_OF_GRACE * event.grace_s
        if event.client in self._roster.deaf:
            return most_s
        return min(most_s, upload_margin_s(self._roster.upload_s[w]))
