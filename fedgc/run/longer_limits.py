"""Time limits that become longer after a round that ended at them without any result.

Automatic limits follow from measurements, of this run or of earlier ones. Clients may be much slower now: on
other machines, with a larger model. Then a round ends before anything is finished, nothing is measured in it,
and the next one would end alike. So the limit that ended it is four times as long in the next round, up to an
hour. Unless it has waited for `FIRST_DEADLINE_S`, the round does not count as one that gave nothing. Clients
go on with their steps. A limit is the plan's own again once a round keeps to it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from fedgc.config import AUTO, RunConfig
from fedgc.messages import SUMMED
from fedgc.round.collecting import NO_UPDATE
from fedgc.round.limits import FIRST_DEADLINE_S
from fedgc.round.machine import Round
from fedgc.round.plan import Plan
from fedgc.run.rows import NOTHING

LONGEST_S: Final = 3600.0
GROWTH: Final = 4.0  # a round ends once its work is done, so a limit that is too long costs little


class Ended(NamedTuple):
    """Which limits ended a round that gave nothing, in words, and whether one may have been too short."""

    words: str = ""
    was_short: bool = False


class _Limit:
    """One limit: how many times as long as planned it is."""

    def __init__(self, what: str, setting: str, *, is_open: bool) -> None:
        self._what, self._setting, self._is_open = what, setting, is_open
        self.times = 1.0

    def of(self, planned_s: float) -> float:
        """Return the limit of a round."""
        return min(planned_s * self.times, max(planned_s, LONGEST_S))

    def grown(self, used_s: float) -> Ended:
        """Make the limit longer, if it is automatic, after a round with a limit of `used_s`."""
        words = f"{self._what} within {used_s:.0f} s"
        if not self._is_open:
            return Ended(f"{words} ({self._setting})")
        if used_s >= LONGEST_S:
            return Ended(f"{words}, the longest time that a round waits unless {self._setting} is set")
        self.times *= GROWTH
        return Ended(f"{words}; the next round waits longer", used_s < FIRST_DEADLINE_S)


class LongerLimits:
    """The limits of a run's rounds: for the model, for work, and for uploads."""

    def __init__(self, config: RunConfig) -> None:
        """Limits that the user has set stay as they are."""
        work_s, upload_s = config.deadline_s, config.upload_deadline_s
        self._model = _Limit("clients did not get the model", "timing.deadline-s", is_open=True)
        self._work = _Limit("nothing was finished", "timing.deadline-s", is_open=work_s == AUTO)
        self._upload = _Limit("no update came", "timing.upload-deadline-s", is_open=upload_s == AUTO)
        self._version, self._have_it = -1, frozenset[str]()  # the clients that have this model

    def applied(self, plan: Plan, upload_s: float) -> Plan:
        """Return the plan with the limits of the next round; `upload_s` is that of uploads by speed."""
        limits = self._work.of(plan.deadline_s), self._upload.of(upload_s)
        if limits == (plan.deadline_s, plan.upload_deadline_s):
            return plan
        return replace(plan, deadline_s=limits[0], upload_deadline_s=limits[1])

    def model_s(self, planned_s: float) -> float:
        """Return the limit for sending the model in the next round."""
        return self._model.of(planned_s)

    def closed(self, over: Round) -> Ended:
        """Learn from a closed round; return which limits ended it without a result."""
        if over.outcome in SUMMED:
            self._keep_those_needed(over)
        if over.outcome not in NOTHING:
            return Ended()
        ended = list(self._reached(over))
        return Ended("; ".join(each.words for each in ended), any(each.was_short for each in ended))

    def _keep_those_needed(self, over: Round) -> None:
        collecting_s = over.closed_at - over.started_at - over.working_s
        if over.working_s * self._work.times <= over.roster.limit_s:
            self._work.times = 1.0
        if collecting_s * self._upload.times <= over.plan.upload_deadline_s:
            self._upload.times = 1.0
        if not over.loading:
            self._model.times = 1.0

    def _reached(self, over: Round) -> Iterator[Ended]:
        """Make each limit longer at which the round ended, with a client that it could have waited for.

        A client that gets work again from the model that it has says nothing of the model.
        """
        statistics, live, version = over.statistics, over.roster.live, over.assignment.version
        had_it = self._have_it if version == self._version else frozenset()
        loading = {over.roster.w[client] for client in over.loading - had_it} & live
        ready = live - loading
        self._version, self._have_it = version, had_it | {over.plan.clients[w] for w in ready}
        healthy = {w for w in ready if not statistics.failure[w] and not statistics.refused[w]}
        if loading and over.working_s >= over.assignment.model_limit_s:
            yield self._model.grown(over.assignment.model_limit_s)
        if healthy and over.working_s >= over.roster.limit_s and not any(statistics.finished):
            yield self._work.grown(over.roster.limit_s)
        if any(statistics.failure[w] == NO_UPDATE for w in ready):
            yield self._upload.grown(over.plan.upload_deadline_s)
