"""Clients whose work in a round no longer counts: lost, started again without it, or failed."""

from dataclasses import dataclass

from fedgc.messages import Failed, Joined, Lost
from fedgc.round.deadline import WorkingDeadline
from fedgc.round.departures import Departures
from fedgc.round.roster import Roster
from fedgc.round.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Dropouts:
    """Takes the work of clients out of a round, in every state."""

    roster: Roster
    scheduler: Scheduler
    deadline: WorkingDeadline
    departures: Departures

    def lost(self, event: Lost) -> int | None:
        """Remove a client; return its number if it was live."""
        w = self.roster.leave(event.client)
        if w is not None:
            self.scheduler.lost(w)
            self.roster.statistics.failure[w] = self.departures.failure(w)
        return w

    def restarted(self, event: Joined) -> int | None:
        """Forget the work of a client whose process was started again; return its number."""
        w = self.roster.w.get(event.client)
        if w is None or w not in self.roster.live:
            return None
        self.scheduler.lost(w)
        self.deadline.back(event.client)
        self.departures.back(w)
        return w

    def failed(self, event: Failed) -> str:
        """Mark what a client reports as failed; return why that changes nothing, if so."""
        why_not = self.roster.here(event)
        if why_not:
            return why_not
        w = self.roster.w[event.client]
        why_not = self.scheduler.failed(w, event)
        if not why_not:
            self.roster.statistics.failure[w] = event.reason
        return why_not
