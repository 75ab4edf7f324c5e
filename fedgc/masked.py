"""The sum under masks: who is in it, who has signed that, and what takes the masks off.

A collection like those of `collect`, with two steps more. Once every vector that can be had is in the sum

    agree    fixes the survivors, if there are enough: each signs that set, once and for all
    unlock   T signatures make each survivor give its shares of the masks that are left
    uncover  T shares of each secret give the masks; nothing else was ever known here

A vector that was lost is left out and its pairwise masks are rebuilt, so nobody else is asked for it. What
fails before shares were asked for burns the exchange: its keys are never used again, and nothing of it was
learned. Once they were asked for, institutions may have given them, and those mask no other update of this
model: shares are asked for only where enough are there, and then whoever is away may still come back.

Index w is a device, as in the plan. May import: plan, secagg, messages, errors.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fedgc.errors import BadMessage, NotRecoverable, Refused
from fedgc.messages import Add, Reveal, Ring, Survivors, Uncover, Unmask
from fedgc.plan import Plan
from fedgc.secagg import Exchange, letters


class MaskedSum:
    """The vectors of one exchange: owed, in the sum, or lost."""

    def __init__(
        self, plan: Plan, number: int, exchange: Exchange, member: Mapping[int, int], holds: Mapping[int, int]
    ) -> None:
        """`member` is each worker's number in the federation, `holds` how much those have who are asked."""
        self._plan = plan
        self._number = number
        self._exchange = exchange
        quantiser = exchange.federation.quantiser
        self._ring: Final = Ring(quantiser.words(exchange.size), quantiser.ring)
        self._member: Final = dict(member)
        self._holds = {worker: amount for worker, amount in holds.items() if worker in member}
        self._owing = set(self._holds)
        self._added: set[int] = set()
        self._unable: set[int] = set()  # who said that it cannot answer, and has not come back since
        self._agree = b""
        self._unlock = b""

    # ---- vectors

    def needed(self) -> tuple[Reveal, ...]:
        """Return the request to every member of the exchange that has work to send."""
        return tuple(self._reveal(worker) for worker in sorted(self._owing))

    def accept(self, worker: int, attempt: int) -> Add | str:
        """Take the vector into the sum; a second one, or one of a device that was given up, is refused."""
        if attempt or worker not in self._owing:
            return f"vector of attempt {attempt} is not owed: in the sum, given up, or never asked for"
        self._owing.discard(worker)
        self._added.add(worker)
        return Add(self._plan.devices[worker], self._number, attempt, (1.0,))

    def lost(self, worker: int) -> None:
        """Leave the worker's vector out; should it come now, it stays masked for good."""
        self._owing.discard(worker)

    def ask_again(self, worker: int) -> tuple[Reveal | Survivors | Unmask, ...]:
        """Return once more what a worker that is back has not answered."""
        device = self._plan.devices[worker]
        self._unable.discard(worker)
        if worker in self._owing:
            return (self._reveal(worker),)
        if worker not in self._added or self.opened or not self._agree:
            return ()
        if self._unlock:
            return (Unmask(device, self._number, self._unlock),)
        return (Survivors(device, self._number, self._agree),)

    def give_up(self) -> None:
        """Wait for no vector any more."""
        self._owing.clear()

    @property
    def owing(self) -> tuple[int, ...]:
        """Workers that still owe a vector."""
        return tuple(sorted(self._owing))

    @property
    def complete(self) -> bool:
        """Whether no vector is awaited any more."""
        return not self._owing

    @property
    def workers(self) -> Sequence[int]:
        """Workers whose vectors are in the sum."""
        return sorted(self._added)

    @property
    def counted(self) -> Mapping[int, int]:
        """How much of each worker's work is in the sum, as far as it has told; something at least."""
        return {worker: max(1, self._holds[worker]) for worker in self.workers}

    @property
    def weight(self) -> float:
        """The sum is a mean by itself: weights are inside."""
        return 1.0

    # ---- what unmasks it

    def agree(self) -> tuple[Survivors, ...]:
        """Fix the survivors; raise NotRecoverable where they are too few."""
        self._exchange, letter = self._exchange.agree([self._member[worker] for worker in self._added])
        self._agree = letter.pack()
        return tuple(Survivors(device, self._number, self._agree) for device in self._devices())

    def sign(self, worker: int, signature: bytes) -> str:
        """Take a survivor's signature; return why not."""
        return self._try(worker, lambda member: self._exchange.sign(member, signature))

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
        able = [worker for worker in self._added - self._unable if worker in there]
        return len(able) >= self._exchange.federation.threshold

    def unlock(self) -> tuple[Unmask, ...]:
        """Ask the survivors for their shares; all get the same letter."""
        self._unlock = self._exchange.unlock().pack()
        return tuple(Unmask(device, self._number, self._unlock) for device in self._devices())

    def open(self, worker: int, letter: bytes) -> str:
        """Take a survivor's shares; return why not. A false share names who gave it."""

        def opened(member: int) -> Exchange:
            shares = letters.Opened.unpack(letter)
            if shares.member != member:
                raise BadMessage(f"shares: saw those of member {shares.member}, needed {member}")
            return self._exchange.open(shares)

        return self._try(worker, opened)

    @property
    def opened(self) -> bool:
        """Whether enough shares are here."""
        return len(self._exchange.opened) >= self._exchange.federation.threshold

    def uncover(self) -> Uncover:
        """Return the masks left in the sum; raise NotRecoverable where a secret is not as promised."""
        return Uncover(self._number, tuple((mask.key, mask.minus) for mask in self._exchange.masks()))

    def cannot(self, worker: int) -> None:
        """A survivor will not answer what it was asked; its vector stays in the sum."""
        self._unable.add(worker)

    def can_still(self, there: Sequence[int]) -> bool:
        """Whether enough survivors can still answer, with those who have; shares of those who come back."""
        done = self._exchange.opened if self.asked else self._exchange.signatures
        willing = self._added - self._unable
        able = {self._member[worker] for worker in willing if self.asked or worker in there}
        return len(able | set(done)) >= self._exchange.federation.threshold

    # ---- small print

    def _devices(self) -> list[str]:
        return [self._plan.devices[worker] for worker in self.workers]

    def _reveal(self, worker: int) -> Reveal:
        return Reveal(self._plan.devices[worker], self._number, 0, "masked", None, ring=self._ring)

    def _try(self, worker: int, step: Callable[[int], Exchange]) -> str:
        member = self._member.get(worker)
        if member is None:
            return "it is not in this exchange"
        try:
            self._exchange = step(member)
        except (Refused, NotRecoverable) as error:
            return str(error)
        return ""
