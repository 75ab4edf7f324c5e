"""The sum under masks: who is in it, who has signed that, and what takes the masks off.

A collection like those of `collect`, with two steps more. Once every vector that can be had is in the sum

    agree    fixes the survivors, if there are enough: each signs that set, once and for all
    unlock   T signatures make each survivor give its shares of the masks that are left
    uncover  T shares of each secret give the masks; nothing else was ever known here

A vector that was lost is left out and its pairwise masks are rebuilt, so nobody else is asked for it. What
fails before shares were asked for burns the exchange: its keys are never used again, and nothing of it was
learned. Once they were asked for, sites may have given them, and those mask no other update of this
model: shares are asked for only where enough are there, and then whoever is away may still come back.

Index w is a client, as in the plan. May import: plan, secagg, messages, errors.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fedgc.errors import BadMessage, NotRecoverable, Refused
from fedgc.messages import Add, Reveal, Ring, Survivors, Uncover, Unmask
from fedgc.round.plan import Plan
from fedgc.secagg import Exchange, packets


class MaskedSum:
    """The vectors of one exchange: owed, in the sum, or lost."""

    def __init__(
        self, plan: Plan, number: int, exchange: Exchange, member: Mapping[int, int], holds: Mapping[int, int]
    ) -> None:
        """`member` is each client's number in the federation, `holds` how much those have who are asked."""
        self._plan = plan
        self._number = number
        self._exchange = exchange
        quantizer = exchange.federation.quantizer
        self._ring: Final = Ring(quantizer.words(exchange.size), quantizer.ring)
        self._member: Final = dict(member)
        self._holds = {w: amount for w, amount in holds.items() if w in member}
        self._owing = set(self._holds)
        self._added: set[int] = set()
        self._unable: set[int] = set()  # who said that it cannot answer, and has not come back since
        self._agree = b""
        self._unlock = b""

    # ---- vectors

    def needed(self) -> tuple[Reveal, ...]:
        """Return the request to every member of the exchange that has work to send."""
        return tuple(self._reveal(w) for w in sorted(self._owing))

    def accept(self, w: int, attempt: int) -> Add | str:
        """Take the vector into the sum; a second one, or one of a client that was given up, is refused."""
        if attempt or w not in self._owing:
            return f"vector of attempt {attempt} is not owed: in the sum, given up, or never asked for"
        self._owing.discard(w)
        self._added.add(w)
        return Add(self._plan.clients[w], self._number, attempt, (1.0,))

    def lost(self, w: int) -> None:
        """Leave the client's vector out; should it come now, it stays masked for good."""
        self._owing.discard(w)

    def ask_again(self, w: int) -> tuple[Reveal | Survivors | Unmask, ...]:
        """Return once more what a client that is back has not answered."""
        client = self._plan.clients[w]
        self._unable.discard(w)
        if w in self._owing:
            return (self._reveal(w),)
        if w not in self._added or self.opened or not self._agree:
            return ()
        if self._unlock:
            return (Unmask(client, self._number, self._unlock),)
        return (Survivors(client, self._number, self._agree),)

    def give_up(self) -> None:
        """Wait for no vector any more."""
        self._owing.clear()

    @property
    def owing(self) -> tuple[int, ...]:
        """Clients that still owe a vector."""
        return tuple(sorted(self._owing))

    @property
    def complete(self) -> bool:
        """Whether no vector is awaited any more."""
        return not self._owing

    @property
    def clients_w(self) -> Sequence[int]:
        """Clients whose vectors are in the sum."""
        return sorted(self._added)

    @property
    def counted(self) -> Mapping[int, int]:
        """How much of each client's work is in the sum, as far as it has told; something at least."""
        return {w: max(1, self._holds[w]) for w in self.clients_w}

    @property
    def weight(self) -> float:
        """The sum is a mean by itself: weights are inside."""
        return 1.0

    # ---- what unmasks it

    def agree(self) -> tuple[Survivors, ...]:
        """Fix the survivors; raise NotRecoverable where they are too few."""
        self._exchange, packet = self._exchange.agree([self._member[w] for w in self._added])
        self._agree = packet.pack()
        return tuple(Survivors(client, self._number, self._agree) for client in self._clients())

    def sign(self, w: int, signature: bytes) -> str:
        """Take a survivor's signature; return why not."""
        return self._try(w, lambda member: self._exchange.sign(member, signature))

    @property
    def asked(self) -> bool:
        """Whether shares were asked for."""
        return bool(self._unlock)

    @property
    def signed(self) -> bool:
        """Whether enough have signed."""
        return len(self._exchange.signatures) >= self._exchange.federation.threshold

    def can_open(self, there: Sequence[int]) -> bool:
        """Whether enough survivors are there to give their shares."""
        able = [w for w in self._added - self._unable if w in there]
        return len(able) >= self._exchange.federation.threshold

    def unlock(self) -> tuple[Unmask, ...]:
        """Ask the survivors for their shares; all get the same packet."""
        self._unlock = self._exchange.unlock().pack()
        return tuple(Unmask(client, self._number, self._unlock) for client in self._clients())

    def open(self, w: int, packet: bytes) -> str:
        """Take a survivor's shares; return why not. A false share names who gave it."""

        def opened(member: int) -> Exchange:
            shares = packets.Opened.unpack(packet)
            if shares.member != member:
                raise BadMessage(f"shares: saw those of member {shares.member}, needed {member}")
            return self._exchange.open(shares)

        return self._try(w, opened)

    @property
    def opened(self) -> bool:
        """Whether enough shares are here."""
        return len(self._exchange.opened) >= self._exchange.federation.threshold

    def uncover(self) -> Uncover:
        """Return the masks left in the sum; raise NotRecoverable where a secret is not as promised."""
        return Uncover(self._number, tuple((mask.key, mask.minus) for mask in self._exchange.masks()))

    def cannot(self, w: int) -> None:
        """A survivor will not answer what it was asked; its vector stays in the sum."""
        self._unable.add(w)

    def can_still(self, there: Sequence[int]) -> bool:
        """Whether enough survivors can still answer, with those who have; shares of those who come back."""
        done = self._exchange.opened if self.asked else self._exchange.signatures
        willing = self._added - self._unable
        able = {self._member[w] for w in willing if self.asked or w in there}
        return len(able | set(done)) >= self._exchange.federation.threshold

    # ---- small print

    def _clients(self) -> list[str]:
        return [self._plan.clients[w] for w in self.clients_w]

    def _reveal(self, w: int) -> Reveal:
        return Reveal(self._plan.clients[w], self._number, 0, "masked", None, ring=self._ring)

    def _try(self, w: int, step: Callable[[int], Exchange]) -> str:
        member = self._member.get(w)
        if member is None:
            return "it is not in this exchange"
        try:
            self._exchange = step(member)
        except (Refused, NotRecoverable) as error:
            return str(error)
        return ""
