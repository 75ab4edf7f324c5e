"""What is collected at the end of a round, and how each part of it finds its way into the sum once.

A `Collection` knows which vectors are owed, accepts each of them once, and says what to do when one is
lost. The round drives it; the three kinds of work differ in nothing else. `CodedSum` is the one for coded
work:

    the sum of all chunk updates = sum over columns j, chunks c of  R_j (U_jc . update_c)

where column j is worker j's codeword, or, once that is lost, the repairs that stand in for it. A term
(j, c) is at any time in exactly one place: owed by some worker, open (nobody has been asked yet, because
nobody has finished chunk c so far), added, or missing for good. That is the invariant that the tests hold.

May import: plan, codes, messages.
"""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedgc import messages
from fedgc.codes import Coefficients, Solution, Wire, repair
from fedgc.messages import Add, Mix, Repair, Reveal
from fedgc.plan import Plan

Bool = NDArray[np.bool_]


class Collection(Protocol):
    """What the round needs of any kind of work."""

    def needed(self) -> tuple[Reveal, ...]:
        """Return who is to send what."""

    def accept(self, worker: int, attempt: int) -> Add | str:
        """Take this vector into the sum, or return why not."""

    def lost(self, worker: int) -> None:
        """What this worker owed will not come."""

    @property
    def complete(self) -> bool:
        """Whether nothing is owed and nothing is open."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one awaited vector holds: these terms of one column."""

    column: int
    terms: Coefficients


class CodedSum:
    """Every (column, chunk) term of one solution, and where it is; `wire` is how its numbers travel."""

    def __init__(self, plan: Plan, solution: Solution, number: int, wire: Wire = Wire.FLOAT32) -> None:
        self._plan = plan
        self._solution = solution
        self._number = number
        self._wire: messages.Wire = wire.value
        self._attempt = 0
        self._owed = {(w, 0): Part(w, solution.coefficients(w)) for w in sorted(solution.needed)}
        self._open: dict[int, Coefficients] = {}
        self._asked: set[tuple[int, int]] = set()
        self.added: list[tuple[int, Part]] = []  # (who sent it, what it was)
        self.missing: list[tuple[int, int]] = []  # (column, chunk) terms that nobody can send

    @property
    def complete(self) -> bool:
        """Whether nothing is owed and nothing is open."""
        return not self._owed and not self._open

    @property
    def owing(self) -> tuple[int, ...]:
        """Workers that still owe a vector."""
        return tuple(dict.fromkeys(worker for worker, _ in self._owed))

    def needed(self) -> tuple[Reveal, ...]:
        """Return the first request to every worker whose codeword is needed."""
        return tuple(self._reveal(worker, part) for (worker, _), part in self._owed.items())

    def accept(self, worker: int, attempt: int) -> Add | str:
        """Take the vector into the sum; a second one, or one that repairs stand in for, is refused."""
        part = self._owed.pop((worker, attempt), None)
        if part is None:
            return f"codeword of attempt {attempt} is not owed: in the sum, repaired, or never asked for"
        self.added.append((worker, part))
        weights = tuple(map(float, self._solution.column(part.column)))
        return Add(self._plan.devices[worker], self._number, attempt, weights)

    def lost(self, worker: int) -> None:
        """Open every term that this worker owed; from now on its vectors are refused."""
        self._asked = {each for each in self._asked if each[0] != worker}
        self._reopen([key for key in self._owed if key[0] == worker])

    def ask_again(self, worker: int, kept_c: Bool) -> tuple[Reveal | Repair, ...]:
        """Return once more the requests of what a worker can still send, and open what it cannot."""
        self._asked = {each for each in self._asked if each[0] != worker}
        mine = [key for key in self._owed if key[0] == worker]
        able = [key for key in mine if kept_c[list(self._owed[key].terms.chunks)].all()]
        self._reopen([key for key in mine if key not in able])
        return tuple(self._request(key) for key in able)

    def mend(
        self, done_wc: Bool, able_wc: Bool, coming: Set[int] = frozenset()
    ) -> tuple[tuple[Repair, ...], tuple[tuple[int, int], ...]]:
        """Return repairs for the open terms, and the (worker, chunk) that must be finished for the rest.

        `able_wc` are the copies that can be asked for, `coming` chunks are on their way unasked. A term that
        can come in neither way goes to `missing`.
        """
        repairs: list[Repair] = []
        takes: list[tuple[int, int]] = []
        for column, terms in list(self._open.items()):
            shared = repair(column, terms, done_wc)
            repairs += [self._ask(part.helper, Part(column, part.coefficients)) for part in shared.parts]
            waiting = [
                at
                for at, c in enumerate(shared.missing.chunks)
                if (self._can_come(c, able_wc, takes) or c in coming)
            ]
            self.missing += [(column, c) for at, c in enumerate(shared.missing.chunks) if at not in waiting]
            self._open[column] = _choose(shared.missing, waiting)
            if not waiting:
                del self._open[column]
        return tuple(repairs), tuple(takes)

    def give_up(self) -> None:
        """Nothing more will come: what is open or owed is missing."""
        self._reopen(list(self._owed))
        self.missing += [(column, c) for column, terms in self._open.items() for c in terms.chunks]
        self._open.clear()

    def missing_error(self) -> float:
        """Return the relative error that the missing terms cause, if chunk updates were uncorrelated."""
        lost = 0.0
        for column, chunk in self.missing:
            terms = self._solution.coefficients(column)
            row = terms.matrix[terms.chunks.index(chunk)]
            lost += float(np.sum(np.square(self._solution.column(column)))) * math.fsum(u * u for u in row)
        return math.sqrt(lost / self._solution.blocks / len(self._plan.chunks))

    # ---- small print

    def _can_come(self, chunk: int, able_wc: Bool, takes: list[tuple[int, int]]) -> bool:
        """Whether a worker can still finish this chunk; the first time, choose one and ask it to."""
        able: list[int] = np.flatnonzero(able_wc[:, chunk]).tolist()
        if not able:
            return False
        if not any((worker, chunk) in self._asked for worker in able):
            burden = [sum(1 for worker, _ in self._asked if worker == candidate) for candidate in able]
            chosen = able[int(np.argmin(burden))]
            self._asked.add((chosen, chunk))
            takes.append((chosen, chunk))
        return True

    def _reopen(self, keys: Sequence[tuple[int, int]]) -> None:
        for key in keys:
            part = self._owed.pop(key)
            before = self._open.get(part.column, Coefficients((), ()))
            self._open[part.column] = Coefficients(
                before.chunks + part.terms.chunks, before.matrix + part.terms.matrix
            )

    def _ask(self, helper: int, part: Part) -> Repair:
        self._attempt += 1
        self._owed[helper, self._attempt] = part
        return self._repair(helper, self._attempt, part)

    def _request(self, key: tuple[int, int]) -> Reveal | Repair:
        worker, attempt = key
        part = self._owed[key]
        return self._repair(worker, attempt, part) if attempt else self._reveal(worker, part)

    def _reveal(self, worker: int, part: Part) -> Reveal:
        return Reveal(self._plan.devices[worker], self._number, 0, "coded", self._mix(part), self._wire)

    def _repair(self, helper: int, attempt: int, part: Part) -> Repair:
        devices = self._plan.devices
        return Repair(
            devices[helper], self._number, attempt, devices[part.column], self._mix(part), self._wire
        )

    def _mix(self, part: Part) -> Mix:
        numbers = tuple(self._plan.chunks[c].number for c in part.terms.chunks)
        return Mix(numbers, part.terms.matrix)


def _choose(terms: Coefficients, places: Sequence[int]) -> Coefficients:
    return Coefficients(tuple(terms.chunks[at] for at in places), tuple(terms.matrix[at] for at in places))
