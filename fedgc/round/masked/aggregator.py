"""Secure aggregation (after Bonawitz et al. 2017 and Bell et al. 2020): a sum of masked vectors.

`MaskedAggregator` works with either kind of work. Once every available vector is in the sum

    agree    fixes the survivors, if there are enough: each signs that set, once and for all
    unlock   T signatures make each survivor give its shares of the remaining masks
    uncover  T shares of each secret give the masks; the server learns nothing else

A lost vector is left out and its pairwise masks are rebuilt, so no other client is asked for it. An exchange
that fails before shares were requested is void: its keys are never used again, and the server has learned
nothing. After that request sites may have given shares, and will not mask another update of this model: so
shares are requested only if enough sites are present, and an absent site may still come back.

Index w is a client, as in the plan.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from fedgc.errors import BadMessage, NotRecoverable, Refused, printable
from fedgc.messages import Add, Command, Joined, Reveal, Ring, Survivors, Uncover, Unmask
from fedgc.round.aggregator import JUST_WAIT, Aggregator, Result, Wait
from fedgc.round.masked.key_agreement import MaskedExchange
from fedgc.round.roster import Roster
from fedgc.round.scheduler import Holding, Scheduler
from fedgc.secagg import Exchange, packets


class MaskedAggregator(Aggregator):
    """The vectors of one exchange: owed, in the sum, or lost."""

    def __init__(self, roster: Roster, scheduler: Scheduler, exchange: MaskedExchange) -> None:
        """`scheduler` belongs to the work whose updates are masked."""
        self._roster: Final = roster
        self._scheduler: Final = scheduler
        self._begin: Final = exchange.begin
        self._exchange = exchange.exchange
        quantizer = self._exchange.federation.quantizer
        self._ring: Final = Ring(quantizer.words(self._exchange.size), quantizer.ring)
        self._member: Final = {
            w: exchange.member[client] for client, w in roster.w.items() if client in exchange.member
        }
        self._holds: Mapping[int, Holding] = {}
        self._owing: set[int] = set()
        self._added: set[int] = set()
        self._unable: set[int] = set()  # clients that cannot answer, until they come back
        self._agree = b""
        self._unlock = b""

    # ---- vectors

    def collect(self) -> None:
        """Fix the finished work: every member of the exchange with work owes a vector."""
        holds, finished = self._scheduler.holds, self._roster.statistics.finished
        for w, held in holds.items():  # local work reports its steps only at the end
            finished[w] = max(finished[w], held.amount)
        self._holds = {w: held for w, held in holds.items() if w in self._member}
        self._owing = set(self._holds)

    def ask(self) -> Sequence[Command]:
        """Return the request to every client that owes a vector."""
        return [self._reveal(w) for w in sorted(self._owing)]

    def accept(self, w: int, attempt: int, norm: float = 0.0) -> Add | str:  # noqa: ARG002  it is masked
        """Take the vector into the sum; refuse a second one, or one of a client that was given up."""
        if attempt or w not in self._owing:
            return f"vector of attempt {attempt} is not owed: in the sum, given up, or never asked for"
        self._owing.discard(w)
        self._added.add(w)
        return Add(self._roster.plan.clients[w], self._roster.assignment.number, attempt, (1.0,))

    def returned(self, event: Joined) -> Sequence[Command]:
        """Give a client that owes its vector its work again, or repeat an unanswered request."""
        w, number = self._roster.w[event.client], self._roster.assignment.number
        if w not in self._owing:
            return self.ask_again(w)
        return [*self._scheduler.give([event]), *self._begin(event.client, number), *self.ask_again(w)]

    def ask_again(self, w: int) -> tuple[Reveal | Survivors | Unmask, ...]:
        """Repeat what a returning client has not answered."""
        client, number = self._roster.plan.clients[w], self._roster.assignment.number
        self._unable.discard(w)
        if w in self._owing:
            return (self._reveal(w),)
        if w not in self._added or self.opened or not self._agree:
            return ()
        if self._unlock:
            return (Unmask(client, number, self._unlock),)
        return (Survivors(client, number, self._agree),)

    def lost(self, w: int, *, gone: bool = True) -> None:  # noqa: ARG002  either way it sends no vector
        """Leave the client's vector out; a late one stays masked."""
        self._owing.discard(w)

    def restarted(self, w: int) -> None:
        """Still wait for the vector: a site keeps its masks, and maybe its work."""

    @property
    def owing(self) -> Collection[int]:
        """The clients whose vector is awaited."""
        return self._owing

    def expire(self, *, final: bool) -> Sequence[int]:  # noqa: ARG002  nothing else can come
        """Leave out the clients that owe a vector, and return them."""
        late = sorted(self._owing)
        self._owing.clear()
        return late

    def wait(self, now: float) -> Wait | None:  # noqa: ARG002  no client can send for another
        """Wait for vectors that are owed."""
        return JUST_WAIT if self._owing else None

    def result(self, now: float) -> Result:  # noqa: ARG002  the time changes nothing
        """Return the result: the sum is already a mean, as clients weight their vectors."""
        clients_w = self.clients_w
        known = {chunk for w in clients_w for chunk in self._holds[w].chunks}
        numbers = [chunk.number for chunk in self._roster.plan.chunks] if clients_w else []
        return Result(
            weight=1.0,
            counted={w: max(1, self._holds[w].amount) for w in clients_w},
            missing=tuple(sorted(set(numbers) - known)),
            steps=float(self._roster.assignment.target),
        )

    @property
    def clients_w(self) -> Sequence[int]:
        """The clients whose vectors are in the sum."""
        return sorted(self._added)

    # ---- unmasking

    def agree(self) -> tuple[Survivors, ...]:
        """Fix the survivors; raise NotRecoverable if they are too few."""
        self._exchange, packet = self._exchange.agree([self._member[w] for w in self._added])
        self._agree = packet.pack()
        return tuple(
            Survivors(client, self._roster.assignment.number, self._agree) for client in self._clients()
        )

    def sign(self, w: int, signature: bytes) -> str:
        """Enter a survivor's signature; return why it is refused, if so."""
        return self._try(w, lambda member: self._exchange.sign(member, signature))

    @property
    def signed(self) -> bool:
        """Whether enough have signed."""
        return len(self._exchange.signatures) >= self._exchange.federation.threshold

    def can_open(self, there: Collection[int]) -> bool:
        """Whether enough survivors are present to give their shares."""
        return self._exchange.can_open([self._member[w] for w in self._added - self._unable if w in there])

    def unlock(self) -> tuple[Unmask, ...]:
        """Ask the survivors for their shares; all get the same packet."""
        self._unlock = self._exchange.unlock().pack()
        return tuple(
            Unmask(client, self._roster.assignment.number, self._unlock) for client in self._clients()
        )

    def open(self, w: int, packet: bytes) -> str:
        """Enter a survivor's shares; return why they are refused, which identifies false shares."""

        def opened(member: int) -> Exchange:
            shares = packets.Opened.unpack(packet)
            if shares.member != member:
                raise BadMessage(f"shares: saw those of member {shares.member}, needed {member}")
            return self._exchange.open(shares)

        return self._try(w, opened)

    @property
    def opened(self) -> bool:
        """Whether enough shares have arrived."""
        return self._exchange.is_open

    def uncover(self) -> Uncover:
        """Return the masks left in the sum; raise NotRecoverable if a secret does not match."""
        return Uncover(
            self._roster.assignment.number, tuple((mask.key, mask.minus) for mask in self._exchange.masks())
        )

    @property
    def unanswered(self) -> Collection[int]:
        """The survivors whose signature or shares are awaited."""
        done = self._exchange.opened if self._unlock else self._exchange.signatures
        return [w for w in self._added - self._unable if self._member[w] not in done]

    def cannot(self, w: int) -> None:
        """Note that a survivor will not answer; its vector stays in the sum."""
        self._unable.add(w)

    def can_still(self, there: Collection[int]) -> bool:
        """Whether enough survivors have answered or still can; shares may come from returning clients."""
        done = self._exchange.opened if self._unlock else self._exchange.signatures
        willing = self._added - self._unable
        able = {self._member[w] for w in willing if self._unlock or w in there}
        return self._exchange.can_open(able | set(done))

    def _clients(self) -> list[str]:
        return [self._roster.plan.clients[w] for w in self.clients_w]

    def _reveal(self, w: int) -> Reveal:
        plan, number = self._roster.plan, self._roster.assignment.number
        return Reveal(plan.clients[w], number, 0, "masked", None, ring=self._ring)

    def _try(self, w: int, step: Callable[[int], Exchange]) -> str:
        member = self._member.get(w)
        if member is None:
            return "it is not in this exchange"
        try:
            self._exchange = step(member)
        except (Refused, NotRecoverable) as error:
            return printable(error)
        return ""
