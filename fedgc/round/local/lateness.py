"""Late updates: how long a round still waits once most updates have come.

A round of local work asks every client for its update, and no client can send for another. Once more updates
have come than are owed, the usual time is known. A client that has not begun to send is late after `PATIENCE`
times as long as the slowest of the others took, and the time that it is known to need itself: for its upload
and for the step that it is in. The round ends when all that is owed is late; until then a late update counts.

A client that has offered its update is not late. Its bytes are in the hands of the link, which lets uploads
take turns and gives up one that stalls (`links.grace-s`). Nothing here extends the upload deadline.

Index w is a client, as in the plan. Times are the caller's.
"""

import math
from collections.abc import Collection, Set
from typing import Final

from fedgc.round.local.quorum import is_quorum
from fedgc.round.local.reports import StepReports

PATIENCE: Final = 4.0
SOON: Final = 1.5  # times as long as the slowest of the quorum: such an update is still awaited
DEAF_S: Final = 60.0  # of a client that answers messages: Flower starts a process for each


class UpdateLateness:
    """Tracks when updates were requested, and how long those that came took."""

    def __init__(self, reports: StepReports) -> None:
        self._reports, self._roster = reports, reports.roster
        self._begun: float | None = None  # when the updates were requested
        self._since: dict[int, float] = {}  # of clients that came back, or reported, since then
        self._offered: set[int] = set()
        self._came = 0
        self._slowest_s = 0.0  # from the request to the last update
        self._last = -1  # of those that were owed, the one that was late last

    def offered(self, w: int) -> None:
        """Note that a client has begun to send."""
        self._offered.add(w)

    def again(self, w: int, now: float) -> None:
        """Restart the time of a client that was away, or that has just ended its step."""
        self._since[w] = now
        self._offered.discard(w)

    def until(self, owing: Collection[int], came: Set[int], now: float, later: int = 0) -> float:
        """Return when all updates that are owed are late; `came` are the clients whose ones are in the sum.

        The time may be too early, but only if it is after `now`: then there is another look at it. `later`
        ones may come as well of clients that are behind, or train on.
        """
        if self._begun is None:
            self._begun = now
        if len(came) > self._came:
            self._came, self._slowest_s = len(came), now - self._begun
        if self._roster.plan.counts_late:
            return self._enough_at(owing, came, later)
        if not self._roster.plan.gives_up_late or len(came) <= len(owing):
            return math.inf
        if not self._offered.isdisjoint(owing):
            return math.inf
        if self._last not in owing or self._due(self._last) <= now:  # else others are late after it
            self._last = max(owing, key=self._due)
        return self._due(self._last)

    def _enough_at(self, owing: Collection[int], came: Set[int], later: int) -> float:
        """Return until when to wait for updates that count in a later round as well.

        There is a quorum of the clients in this round, and one of all, also of those that are behind: few
        quick clients make no model alone (`Plan.fewest`). With groups by speed, a quorum of a group is
        enough. Then updates that are due soon are awaited.
        """
        roster, plan, staying = self._roster, self._roster.plan, self._reports.staying
        counted = roster.counted
        own = 0 if plan.groups else math.ceil(plan.quorum * len(staying - counted))
        if owing and len(came) < own:
            return math.inf
        if (owing or later) and not is_quorum(plan, staying | roster.behind | counted, counted | came):
            return math.inf
        begun, upload_s = self._begun or 0.0, roster.upload_s
        latest = begun + SOON * self._slowest_s
        is_near = any(self._since.get(w, begun) + upload_s[w] <= latest for w in owing)
        return latest if is_near else -math.inf

    def is_overdue(self, w: int, now: float) -> bool:
        """Whether a client has had the time that it would have without an offer."""
        return self._begun is not None and self._due(w) <= now

    def waited_s(self, w: int, now: float) -> float:
        """Return how long the round has waited for a client."""
        return now - self._since.get(w, self._begun or now)

    def is_excused(self, w: int) -> bool:
        """Whether a client that hears commands has nothing to send yet: its model is still in transit."""
        client, state = self._roster.plan.clients[w], self._reports.clients.get(w)
        loads = client in self._roster.loading and client not in self._roster.deaf
        return loads and (state is None or not state.steps)

    def _due(self, w: int) -> float:
        since = self._since.get(w, self._begun or 0.0)
        if self.is_excused(w):
            return since
        plan = self._roster.plan
        least_s = max(plan.late_s, DEAF_S if plan.clients[w] in self._roster.deaf else 0.0)
        return since + max(least_s, PATIENCE * self._slowest_s) + self._roster.upload_s[w] + self._step_s(w)

    def _step_s(self, w: int) -> float:
        """Return the time of a step, after which a client answers; if it is unknown, that of the round."""
        roster, state = self._roster, self._reports.clients.get(w)
        if state is not None and state.report is not None and state.report.steps:
            return state.report.seconds / state.report.steps
        return roster.plan.step_s[w] if roster.plan.measured else (self._begun or 0.0) - roster.started_at
