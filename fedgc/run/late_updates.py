"""Updates that come after their round, and count in a later one (`aggregation.late-updates = count`).

A round ends when a quorum of its clients has sent its updates. Each other one goes on as if the round were
open: it trains, or sends. It is asked for its update when it has reached its target, or when a later round
collects and it has trained for as long as its model and its update travel. The update enters the sum of the
round in which it comes, and the client gets the newest model. No client waits for a slow link, as in FedBuff
(Nguyen et al., arXiv 2106.06639). An update weighs

    the client's weight * min(MOST, sqrt(1 + models since the one that it trained from))

FedBuff divides by that root. But a client whose update comes seldom has little influence already, and data
that only such clients hold would be learned late. `python -m benchmarks groups` measures it.

With shared momentum, the client's next steps follow the mean step between the model that it had and the
newest one (`Work.before`). A client counts at most once in a round. Its work is lost if its process is
started again.
"""

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from fedgc.messages import (
    Add,
    Close,
    Codeword,
    Command,
    Event,
    Failed,
    Joined,
    Leaving,
    Loaded,
    Lost,
    Offered,
    Progress,
    Report,
)
from fedgc.round.local.aggregator import WeightedMean
from fedgc.round.machine import Round
from fedgc.round.roster import LateUpdate

MOST: Final = 2.0  # times the weight of an update in its own round
TOO_LATE: Final = "its update came too late for any round"


class Answer(NamedTuple):
    """The commands that follow from an event of a client, and whether it can work again after them."""

    client: str
    commands: Sequence[Command] = ()
    is_free: bool = False

    @property
    def is_counted(self) -> bool:
        """Whether its update is in the sum."""
        return any(isinstance(each, Add) for each in self.commands)


@dataclass(slots=True)
class _Late:
    """The round whose update a client owes, and until when it may send it."""

    round: Round
    mean: WeightedMean
    until: float

    @property
    def number(self) -> int:
        """The number of the round."""
        return self.round.assignment.number

    @property
    def version(self) -> int:
        """The model that the client trains from."""
        return self.round.assignment.version

    def factor(self, version: int) -> float:
        """Return how many times its weight an update counts for the model after this one."""
        return min(MOST, math.sqrt(1 + version - self.version))


class LateUpdates:
    """Owns the clients that are behind, and what has come of them for the next model."""

    def __init__(self) -> None:
        self._counted: dict[str, LateUpdate] = {}  # of updates in the sum for the next model
        self._late: Final[dict[str, _Late]] = {}
        self._had: Final[dict[str, int]] = {}  # the model of a client that was late, until it has a newer one
        self._current: Round | None = None

    @property
    def clients(self) -> AbstractSet[str]:
        """The clients that are behind: they take part in no round until their update is here."""
        return self._late.keys()

    @property
    def next_tick(self) -> float:
        """When the next of them is given up."""
        return min((late.until for late in self._late.values()), default=math.inf)

    def dropped(self) -> list[Command]:
        """Let all clients discard their work: the run goes back to an earlier model."""
        return [each for client in sorted(self._late) for each in self._freed(client).commands]

    def oldest(self, version: int) -> int:
        """Return the oldest model from which an update may come; without any, this one."""
        return min((late.version for late in self._late.values()), default=version)

    def begun(self, current: Round) -> None:
        """Tell a new round which updates are in its sum already, and which may come."""
        self._current, roster = current, current.roster
        roster.behind = {roster.w[client] for client in self._late if client in roster.w}
        roster.before.update(self._had)
        for client, update in self._counted.items():
            roster.counts(client, update)

    def ended(self, over: Round, *, synced: bool) -> list[Command]:
        """Take over the clients that a round leaves behind, and ask those that have done their steps."""
        self._current = None
        if synced:
            self._counted = {}
        for client in over.roster.given:
            self._had.pop(client, None)
        mean = over.collecting.aggregator if over.collecting is not None else None
        if not isinstance(mean, WeightedMean):
            return []
        limit_s = over.assignment.model_limit_s + over.roster.limit_s + over.plan.upload_deadline_s
        asked: list[Command] = []
        for client in sorted(over.behind):
            self._late[client] = late = _Late(over, mean, over.closed_at + limit_s)
            asked += self._asked_if_done(late, client)
        return asked

    def _asked_if_done(self, late: _Late, client: str) -> Sequence[Command]:
        w = late.round.roster.w[client]
        report = late.mean.reports.clients[w].report if w in late.mean.trains_on else None
        is_done = report is not None and report.steps >= late.round.assignment.target
        return [late.mean.ask_later(w)] if is_done else ()

    def since(self, client: str) -> float | None:
        """Return since when a client that is behind has trained, at the earliest."""
        late = self._late.get(client)
        return None if late is None else late.round.started_at

    def lost(self, client: str) -> None:
        """Forget a client that is gone, or whose process was started again."""
        late = self._late.pop(client, None)
        if late is None or self._current is None:
            return
        roster, w = self._current.roster, late.round.roster.w[client]
        roster.behind.discard(roster.w.get(client, -1))
        if client not in self._counted:
            state = late.mean.reports.clients.get(w)
            roster.discards(client, state.steps if state is not None else 0)

    def asked(self, now: float) -> list[Command]:
        """Return requests to those that have trained for long enough, when a round collects."""
        asked: list[Command] = []
        for client, late in self._late.items():
            w = late.round.roster.w[client]
            if w in late.mean.trains_on and late.mean.reports.hands_in(w, now):
                asked.append(late.mean.ask_later(w))
        return asked

    def given_up(self, now: float) -> list[Answer]:
        """Give up the clients whose time is over."""
        return [self._freed(client) for client in [c for c, each in self._late.items() if each.until <= now]]

    def handle(self, event: Event, version: int) -> Answer | None:
        """Return what follows from an event; None if it is of no client that is behind.

        `version` is the newest model.
        """
        late = self._late.get(getattr(event, "client", ""))
        if late is None or isinstance(event, Joined | Lost):
            return None
        match event:
            case Loaded(version=loaded) if loaded == late.version:
                late.mean.reports.loaded(late.round.roster.w[event.client], event.now)
            case Progress() | Report():
                return self._reported(late, event)
            case Codeword():
                return self._received(late, event, version)
            case Failed() if event.round == late.number:
                if self._current is not None:
                    self._current.roster.fails(event.client, event.reason)
                return self._freed(event.client)
            case Leaving():
                return self._leaves(late, event.client)
        return Answer(event.client) if isinstance(event, Loaded | Offered | Failed) else None

    def _reported(self, late: _Late, event: Progress | Report) -> Answer:
        """Enter a report; ask for the update of a client that is at its target."""
        w = late.round.roster.w[event.client]
        refused = late.mean.heard(event)
        if refused or not isinstance(event, Report) or event.round != late.number:
            return Answer(event.client, refused)
        if w in late.mean.trains_on:
            return Answer(event.client, self._asked_if_done(late, event.client))
        return Answer(event.client) if event.steps else self._freed(event.client)

    def _received(self, late: _Late, event: Codeword, version: int) -> Answer:
        """Take an update into the open sum, unless one of the same client is in it."""
        roster = late.round.roster
        w = roster.w[event.client]
        report = late.mean.reports.clients[w].report
        if event.round != late.number or report is None:
            return Answer(
                event.client, roster.refuse(event, f"an update that was not asked for in round {late.number}")
            )
        answer = late.mean.accept(w, event.attempt, event.norm)
        if not isinstance(answer, Add):
            return Answer(event.client, roster.refuse(event, str(answer)))
        is_cut = answer.weights[0] < late.mean.reports.weight(w)  # by `aggregation.largest-share`
        weight = answer.weights[0] * (1.0 if is_cut else late.factor(version))
        self._counted[event.client] = update = LateUpdate(
            report.steps, report.seconds, weight, late.mean.reports.numbers(w)
        )
        if self._current is not None:
            self._current.roster.comes(event.client, update)
        add = replace(answer, weights=(weight,), late_from=late.version)
        return Answer(event.client, [add, *self._freed(event.client).commands], is_free=True)

    def _leaves(self, late: _Late, client: str) -> Answer:
        """Ask a client that leaves for what it has."""
        w = late.round.roster.w[client]
        if w not in late.mean.trains_on:
            return Answer(client)
        return (
            Answer(client, [late.mean.ask_later(w)])
            if late.mean.reports.clients[w].report
            else self._freed(client)
        )

    def _freed(self, client: str) -> Answer:
        """Let a client discard its work: its update is in the sum, or will not come."""
        late = self._late[client]
        self._had[client] = late.version
        if self._current is not None:
            self._current.roster.before[client] = late.version
        self.lost(client)
        return Answer(client, [Close(client, late.number, "synced", frees=True)], is_free=True)
