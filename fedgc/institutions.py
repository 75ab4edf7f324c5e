"""The effort of institutions whose vectors are summed under masks: any effort's work, another sum.

Who works on what, when there is enough, whether more is worth waiting for: all that is the effort inside,
`chunks` or `attendance`, as without masks. What differs is what is told and what is collected:

*   Each device is told of the exchange together with its work, so that its masks grow while it trains.
*   An institution decodes, averages and weighs by itself; nobody else has what it would have sent, so
    nothing is repaired, and one that is lost is left out. One that is back when its vector is in the sum gets
    no work, but it may sign and give its shares.
*   Of losses nothing is known here, and of norms only what the gate needs.

May import: masked, effort, keying, gate, messages.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from fedgc.effort import Effort, Roll
from fedgc.gate import Reports
from fedgc.keying import Drawn
from fedgc.masked import MaskedSum
from fedgc.messages import Codeword, Command, Failed, Fold, Joined, Pressed, Progress, Report


class Institutions:
    """An effort, and one exchange in which its devices are."""

    solution = None  # an institution decodes by itself
    losses: Sequence[float] = ()

    def __init__(self, inner: Effort, roll: Roll, drawn: Drawn) -> None:
        self._inner = inner
        self._roll = roll
        self._drawn = drawn
        self._member: Final = {
            worker: drawn.member[device] for device, worker in roll.worker.items() if device in drawn.member
        }
        self._back: set[int] = set()  # devices that are back and owe no vector: they are on no other books
        self._lacking: dict[int, set[int]] = {}  # chunks that are not in the vector of each who was asked
        self.sum: MaskedSum | None = None

    # ---- who is there

    def begin(self, present: Sequence[Joined]) -> list[Command]:
        """Give everybody its work; nothing is foreseen where nobody sends a codeword."""
        return self.give(present, self._roll.assignment.carried)

    def give(self, present: Sequence[Joined], carried: Collection[str] = ()) -> list[Command]:
        """Give work, and tell of the exchange that it is for."""
        given: list[Command] = []
        for event in present:
            given += [*self._inner.give([event], carried), *self._told(event.device)]
        return given

    def _told(self, device: str) -> tuple[Command, ...]:
        return self._drawn.begin(device, self._roll.assignment.number)

    def lost(self, worker: int) -> bool:
        """Take a device off the books."""
        was_back = worker in self._back
        self._back.discard(worker)
        return self._inner.lost(worker) or was_back

    def struck(self, worker: int, event: Failed) -> str:
        """Take off the books what a device cannot give."""
        return self._inner.struck(worker, event)

    @property
    def live(self) -> Sequence[int]:
        """The devices on the books."""
        return sorted(self._back.union(self._inner.live))

    # ---- working

    def heard(self, event: Progress | Report) -> list[Command]:
        """Take a report of work in."""
        return self._inner.heard(event)

    def pressed(self, event: Pressed, *, certain: bool) -> list[Command]:  # noqa: ARG002  nothing is folded
        """Nothing of masked work is folded: a device that is short of room gives up what does not fit."""
        return [Fold(event.device, self._roll.assignment.number, None)]

    def stirred(self) -> list[Command]:
        """Hand out anew what is wanted still."""
        return self._inner.stirred()

    def came_ahead(self, event: Codeword) -> str:  # noqa: ARG002  none can
        """Nobody sends a vector before it is asked."""
        return "Codeword is not expected while working"

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
        """What devices have told of their steps."""
        return self._inner.reached

    @property
    def common_steps(self) -> float:
        """The steps that all were asked for: how many each did is not told."""
        return float(self._roll.assignment.target)

    @property
    def covered_s(self) -> Sequence[float]:
        """When all chunks had 1, 2, ... copies."""
        return self._inner.covered_s

    @property
    def next_orders(self) -> Mapping[str, tuple[int, ...]]:
        """How devices that are alone with a chunk go on in the next round."""
        return self._inner.next_orders

    # ---- collecting

    @property
    def came(self) -> tuple[int, ...]:
        """Nothing came unasked."""
        return ()

    @property
    def holds(self) -> Mapping[int, int]:
        """How much of its work each device could send now."""
        return self._inner.holds

    def lacks(self, workers: Collection[int]) -> tuple[int, ...]:
        """Return the chunks that are in none of these devices' work."""
        return self._inner.lacks(workers)

    def collect(self) -> MaskedSum:
        """Ask every institution in the exchange for what it has."""
        plan, number = self._roll.plan, self._roll.assignment.number
        holds, finished = self._inner.holds, self._roll.tally.finished
        for worker, amount in holds.items():  # local work says at the end how much there is to be sent
            finished[worker] = max(finished[worker], amount)
        self.sum = MaskedSum(plan, number, self._drawn.exchange, self._member, holds)
        self._lacking = {worker: set(self._inner.lacks([worker])) for worker in self.sum.owing}
        return self.sum

    def heard_late(self, event: Progress | Report) -> list[Command]:  # noqa: ARG002  what was asked for counts
        """What comes now is not in the vector that was asked for."""
        return []

    def returned(self, event: Joined) -> list[Command]:
        """Give its work again to an institution that owes its vector, or ask for what it has not answered."""
        worker = self._roll.worker.get(event.device)
        if worker is None or self.sum is None:
            return []
        if worker not in self.sum.owing:
            self._back.add(worker)
            return list(self.sum.ask_again(worker))
        return [*self.give([event]), *self.sum.ask_again(worker)]

    def without(self, worker: int) -> None:
        """Leave the institution out."""
        if self.sum is not None:
            self.sum.lost(worker)

    def too_slow(self, worker: int) -> None:
        """Wait for this institution no more."""
        self._inner.too_slow(worker)

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
        in_none = [self._lacking[worker] for worker in (self.sum.workers if self.sum else ())]
        return tuple(sorted(set.intersection(*in_none))) if in_none else (), None
