"""The effort of sites whose vectors are summed under masks: any effort's work, another sum.

Who works on what, when there is enough, whether more is worth waiting for: all that is the effort inside,
`chunks` or `attendance`, as without masks. What differs is what is told and what is collected:

*   Each client is told of the exchange together with its work, so that its masks grow while it trains.
*   A site decodes, averages and weighs by itself; nobody else has what it would have sent, so
    nothing is repaired, and one that is lost is left out. One that is back when its vector is in the sum gets
    no work, but it may sign and give its shares.
*   Of losses nothing is known here, and of norms only what the gate needs.

May import: masked, effort, keying, gate, messages.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from fedgc.gates import Reports
from fedgc.messages import Command, Failed, Joined, Progress, Report
from fedgc.round.masked.aggregator import MaskedSum
from fedgc.round.masked.key_agreement import MaskedExchange
from fedgc.round.scheduler import Roster, Scheduler


class MaskedScheduler:
    """An effort, and one exchange in which its clients are."""

    solution = None  # a site decodes by itself
    losses: Sequence[float] = ()

    def __init__(self, inner: Scheduler, roster: Roster, exchange: MaskedExchange) -> None:
        self._inner = inner
        self._roster = roster
        self._exchange_drawn = exchange
        self._member: Final = {
            w: exchange.member[client] for client, w in roster.w.items() if client in exchange.member
        }
        self._back: set[int] = set()  # clients that are back and owe no vector: they are on no other books
        self._lacking: dict[int, set[int]] = {}  # chunks that are not in the vector of each who was asked
        self.sum: MaskedSum | None = None

    # ---- who is there

    def begin(self, present: Sequence[Joined]) -> list[Command]:
        """Give everybody its work."""
        return self.give(present, self._roster.assignment.carried)

    def give(self, present: Sequence[Joined], carried: Collection[str] = ()) -> list[Command]:
        """Give work, and tell of the exchange that it is for."""
        given: list[Command] = []
        for event in present:
            given += [*self._inner.give([event], carried), *self._told(event.client)]
        return given

    def _told(self, client: str) -> tuple[Command, ...]:
        return self._exchange_drawn.begin(client, self._roster.assignment.number)

    def lost(self, w: int) -> bool:
        """Take a client off the books."""
        was_back = w in self._back
        self._back.discard(w)
        return self._inner.lost(w) or was_back

    def struck(self, w: int, event: Failed) -> str:
        """Take off the books what a client cannot give."""
        return self._inner.struck(w, event)

    @property
    def live(self) -> Sequence[int]:
        """The clients on the books."""
        return sorted(self._back.union(self._inner.live))

    # ---- working

    def heard(self, event: Progress | Report) -> list[Command]:
        """Take a report of work in."""
        return self._inner.heard(event)

    def stirred(self) -> list[Command]:
        """Hand out anew what is wanted still."""
        return self._inner.stirred()

    @property
    def hopeless(self) -> bool:
        """Whether nobody is left who could give anything."""
        return self._inner.hopeless

    @property
    def ready(self) -> bool:
        """Whether there is enough to ask the gate."""
        return self._inner.ready

    @property
    def some(self) -> bool:
        """Whether there is anything to collect at all."""
        return self._inner.some

    def reports(self) -> Reports:
        """Return what the gate may look at."""
        return self._inner.reports()

    def more(self, now: float) -> list[Command] | None:
        """Return what is to be done before an exchange."""
        return self._inner.more(now)

    @property
    def look_again(self) -> float:
        """When `more` may change its mind."""
        return self._inner.look_again

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return what a person watches."""
        return self._inner.progress

    @property
    def covered(self) -> int:
        """The chunks that are done."""
        return self._inner.covered

    @property
    def reached(self) -> Mapping[str, int]:
        """What clients have told of their steps."""
        return self._inner.reached

    @property
    def common_steps(self) -> float:
        """The steps that all were asked for: how many each did is not told."""
        return float(self._roster.assignment.target)

    @property
    def covered_s(self) -> Sequence[float]:
        """When all chunks had 1, 2, ... copies."""
        return self._inner.covered_s

    @property
    def next_orders(self) -> Mapping[str, tuple[int, ...]]:
        """How clients that are alone with a chunk go on in the next round."""
        return self._inner.next_orders

    # ---- collecting

    @property
    def holds(self) -> Mapping[int, int]:
        """How much of its work each client could send now."""
        return self._inner.holds

    def lacks(self, clients_w: Collection[int]) -> tuple[int, ...]:
        """Return the chunks that are in none of these clients' work."""
        return self._inner.lacks(clients_w)

    def collect(self) -> MaskedSum:
        """Ask every site in the exchange for what it has."""
        plan, number = self._roster.plan, self._roster.assignment.number
        holds, finished = self._inner.holds, self._roster.statistics.finished
        for w, amount in holds.items():  # local work says at the end how much there is to be sent
            finished[w] = max(finished[w], amount)
        self.sum = MaskedSum(plan, number, self._exchange_drawn.exchange, self._member, holds)
        self._lacking = {w: set(self._inner.lacks([w])) for w in self.sum.owing}
        return self.sum

    def heard_late(self, event: Progress | Report) -> list[Command]:  # noqa: ARG002  what was asked for counts
        """What comes now is not in the vector that was asked for."""
        return []

    def returned(self, event: Joined) -> list[Command]:
        """Give its work again to a site that owes its vector, or ask for what it has not answered."""
        w = self._roster.w.get(event.client)
        if w is None or self.sum is None:
            return []
        if w not in self.sum.owing:
            self._back.add(w)
            return list(self.sum.ask_again(w))
        return [*self.give([event]), *self.sum.ask_again(w)]

    def without(self, w: int) -> None:
        """Leave the site out."""
        if self.sum is not None:
            self.sum.lost(w)

    def too_slow(self, w: int) -> None:
        """Wait for this site no more."""
        self._inner.too_slow(w)

    def meanwhile(self) -> list[Command]:
        """Nothing: nobody can stand in for another."""
        return []

    def mend(self) -> list[Command]:
        """Nobody has what another would have sent."""
        return []

    def hurry(self, now: float) -> list[Command]:  # noqa: ARG002  under masks nobody stands in
        """Nobody has what another would have sent."""
        return []

    @property
    def hurry_at(self) -> float:
        """So there is nothing to ask at any time."""
        return math.inf

    def unsent_s(self, now: float) -> Mapping[int, float]:  # noqa: ARG002  nobody is late
        """Nobody is late before the deadline."""
        return {}

    def missing(self) -> tuple[tuple[int, ...], float | None]:
        """Return the chunks that are in no vector of the sum; what that does, nobody can tell."""
        in_none = [self._lacking[w] for w in (self.sum.clients_w if self.sum else ())]
        return tuple(sorted(set.intersection(*in_none))) if in_none else (), None
