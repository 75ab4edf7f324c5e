"""The exact sum over all chunks (gradient coding), as terms that are owed, open, added or missing.

    the sum of all chunk updates = sum over columns j, chunks c of  R_j (U_jc . update_c)

An update is cut into `blocks` pieces. Client j mixes chunk c with U_jc, one factor for each piece; R_j, one
factor for each piece too, is the codeword's weight in each block of the sum. Column j is client j's codeword
(attempt 0) or, once that is lost, the repairs of others (attempt 1 and up). A term (j, c) is always in
exactly one state: owed by a client; open (not yet requested, as no client has finished chunk c); added; or
missing for good.

Index w is a client, c a chunk, as in the plan.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from fedgc import messages
from fedgc.codecs import Wire
from fedgc.codes import Coefficients, Solution, repair
from fedgc.messages import Add, Mix, Refuse, Repair, Reveal
from fedgc.round.plan import Plan

Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Part:
    """The content of one awaited vector: these terms of one column."""

    column: int
    terms: Coefficients


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost for each client to finish one more chunk, and to send a codeword, in seconds."""

    chunk_s: Sequence[float]
    upload_s: Sequence[float]

    @classmethod
    def even(cls, clients_w: int) -> "Costs":
        """Return equal costs, for when nothing is known: the client with the least to do is chosen."""
        return cls((1.0,) * clients_w, (0.0,) * clients_w)


class CodedSum:
    """The state of every (column, chunk) term of one solution; `wire` is the format of its numbers."""

    def __init__(self, plan: Plan, solution: Solution, number: int, wire: Wire = Wire.FLOAT32) -> None:
        self._plan = plan
        self._number_c = [chunk.number for chunk in plan.chunks]
        self._solution = solution
        self._number = number
        self._wire: messages.Wire = wire.value
        self._attempt = 0
        # the awaited vectors, by client and attempt
        self.owed = {(w, 0): Part(w, solution.coefficients(w)) for w in sorted(solution.needed)}
        self._open: dict[int, Coefficients] = {}
        self._doubted: dict[int, Part] = {}  # late codewords: they count if they come first
        self._overtaken: set[tuple[int, int]] = set()  # vectors that are not awaited any more
        self.came_too_late: set[int] = set()  # clients whose vector came after its replacement
        self._asked: dict[int, set[int]] = {}  # the clients asked to finish a chunk
        self.added: list[tuple[int, Part]] = []  # (sender, content)
        self.summed: set[int] = set()  # numbers of the chunks with a part in the sum
        self.missing: list[tuple[int, int]] = []  # (column, chunk) terms that no client can send

    @property
    def complete(self) -> bool:
        """Whether nothing is owed and nothing is open."""
        return not self.owed and not self._open

    @property
    def owing(self) -> tuple[int, ...]:
        """Clients that still owe a vector."""
        return tuple(dict.fromkeys(w for w, _ in self.owed))

    @property
    def open(self) -> bool:
        """Whether a term must still be requested."""
        return bool(self._open)

    @property
    def wanted(self) -> frozenset[int]:
        """The chunks that need one more replica."""
        return frozenset(chain.from_iterable(terms.chunks for terms in self._open.values()))

    @property
    def counted(self) -> Mapping[int, int]:
        """How many chunks of each client are in the sum."""
        chunks: dict[int, Collection[int]] = {}
        for w, part in self.added:
            before, sent = chunks.get(w), part.terms.chunks
            chunks[w] = sent if before is None else {*before, *sent}
        return {w: len(each) for w, each in chunks.items()}

    @property
    def weight(self) -> float:
        """The samples that the sum stands for, by which it is divided.

        Missing chunks are completed, except those that a single client holds: they are left out of the mean.
        So are, without blocks, those whose vectors were lost.
        """
        weight = self._plan.samples * self._solution.coverage
        if self._solution.blocks > 1:
            return weight
        return weight - math.fsum(
            self._plan.chunks[c].samples * float(self._solution.column(column)[0]) * self._row(column, c)[0]
            for column, c in self.missing
        )

    def needed(self) -> tuple[Reveal, ...]:
        """Return the first request to every client whose codeword is needed."""
        return tuple(self._reveal(w, part) for (w, _), part in self.owed.items())

    def awaited(self, w: int, attempt: int) -> Part | None:
        """Return the content of a vector that would be taken into the sum."""
        return self.owed.get((w, attempt)) or (None if attempt else self._doubted.get(w))

    def accept(self, w: int, attempt: int) -> Add | Refuse | str:
        """Take the vector into the sum; refuse a second one, or one that repairs have replaced."""
        part = self.owed.pop((w, attempt), None)
        if part is None and attempt == 0:
            part = self._after_all(w)
        if part is None and (w, attempt) in self._overtaken:
            self.came_too_late.add(w)
            return Refuse(self._plan.clients[w], self._number, "others were quicker")
        if part is None:
            return f"codeword of attempt {attempt} is not owed: in the sum, repaired, or never asked for"
        self._overtaken.discard((w, attempt))
        self.added.append((w, part))
        self.summed.update(self._numbers(part))
        weights = tuple(self._solution.column(part.column).tolist())
        return Add(self._plan.clients[w], self._number, attempt, weights)

    def others_s(self, key: tuple[int, int], done_wc: Bool, able_wc: Bool, costs: Costs) -> float:
        """Return when other clients could deliver these terms, from finished or still unfinished chunks."""
        part, sending_s = self.owed[key], np.array(self._sending_s(costs))
        shared = repair(part.column, part.terms, done_wc, cost=sending_s.tolist())
        lacking = list(shared.missing.chunks)
        made_wc = np.where(able_wc[:, lacking], (sending_s + costs.chunk_s)[:, None], math.inf)
        made_s: list[float] = made_wc.min(axis=0).tolist()
        return max([*(float(sending_s[each.helper]) for each in shared.parts), *made_s])

    def doubt(self, key: tuple[int, int]) -> None:
        """Open the terms of a late vector.

        A codeword still counts if it comes before any part of its replacement.
        """
        part = self.owed[key]
        self._reopen([key])
        self._overtaken.add(key)
        if key == (part.column, 0) and part.terms == self._solution.coefficients(part.column):
            self._doubted[part.column] = part

    def lost(self, w: int) -> None:
        """Open every term that this client owed; from now on its vectors are refused."""
        self._doubted.pop(w, None)
        self._overtaken = {key for key in self._overtaken if key[0] != w}
        self._forget_asked(w)
        self._reopen([key for key in self.owed if key[0] == w])

    def ask_again(self, w: int, kept_c: Bool) -> tuple[Reveal | Repair, ...]:
        """Return the requests again that a client can still fulfil, and open the others."""
        self._forget_asked(w)
        mine = [key for key in self.owed if key[0] == w]
        doubted = self._doubted.get(w)
        if doubted and not kept_c[list(doubted.terms.chunks)].all():
            del self._doubted[w]
        able = [key for key in mine if kept_c[list(self.owed[key].terms.chunks)].all()]
        self._reopen([key for key in mine if key not in able])
        return tuple(self._request(key) for key in able)

    def mend(
        self,
        done_wc: Bool,
        able_wc: Bool,
        coming: Set[int] = frozenset(),
        costs: Costs | None = None,
    ) -> tuple[tuple[Repair, ...], tuple[tuple[int, int], ...]]:
        """Return repairs for the open terms, and the (client, chunk) pairs to finish for the rest.

        `able_wc` are the replicas that can be requested, `coming` the chunks that arrive without a request. A
        term that can come in neither way goes to `missing`. The cheapest clients are chosen.
        """
        costs = costs or Costs.even(len(done_wc))
        repairs: list[Repair] = []
        takes: list[tuple[int, int]] = []
        for column, terms in list(self._open.items()):
            shared = repair(column, terms, done_wc, cost=self._sending_s(costs))
            repairs += [self._ask(part.helper, Part(column, part.coefficients)) for part in shared.parts]
            waiting = [
                at
                for at, c in enumerate(shared.missing.chunks)
                if (self._can_come(c, able_wc, takes, costs) or c in coming)
            ]
            self.missing += [(column, c) for at, c in enumerate(shared.missing.chunks) if at not in waiting]
            self._open[column] = shared.missing.at(waiting)
            if not waiting:
                del self._open[column]
        return tuple(repairs), tuple(takes)

    def ask_for(self, chunks: Sequence[int], able_wc: Bool, costs: Costs) -> list[tuple[int, int]]:
        """Return which client finishes which of these chunks, if none was asked before."""
        takes: list[tuple[int, int]] = []
        for chunk in chunks:
            self._can_come(chunk, able_wc, takes, costs)
        return takes

    def give_up(self) -> None:
        """Mark all open and owed terms as missing: nothing more will come."""
        self._reopen(list(self.owed))
        self.missing += [(column, c) for column, terms in self._open.items() for c in terms.chunks]
        self._open.clear()

    def missing_error(self) -> float:
        """Return the relative error of the missing terms, if chunk updates were uncorrelated."""
        lost = 0.0
        for column, chunk in self.missing:
            row_squares = math.fsum(u * u for u in self._row(column, chunk))
            squares = float(np.sum(np.square(self._solution.column(column)))) * row_squares
            lost += squares * self._plan.chunks[chunk].samples ** 2
        every = math.fsum(chunk.samples**2 for chunk in self._plan.chunks)
        return math.sqrt(lost / self._solution.blocks / every)

    def _row(self, column: int, chunk: int) -> tuple[float, ...]:
        """Return the factors with which a column's codeword has this chunk."""
        terms = self._solution.coefficients(column)
        return terms.matrix[terms.chunks.index(chunk)]

    def _after_all(self, w: int) -> Part | None:
        """Return the late codeword, if nothing of its column is in the sum or missing."""
        part = self._doubted.pop(w, None)
        used = {part.column for _, part in self.added} | {column for column, _ in self.missing}
        if part is None or w in used:
            return None
        self._overtaken |= {key for key, each in self.owed.items() if each.column == w}
        self.owed = {key: each for key, each in self.owed.items() if each.column != w}
        self._open.pop(w, None)
        return part

    def _can_come(self, chunk: int, able_wc: Bool, takes: list[tuple[int, int]], costs: Costs) -> bool:
        """Whether a client can still finish this chunk; the first time, choose one and ask it."""
        if any(able_wc[w, chunk] for w in self._asked.get(chunk, ())):
            return True  # the usual answer, as this is called for every replica
        able: list[int] = np.flatnonzero(able_wc[:, chunk]).tolist()
        if not able:
            return False
        burden, sending_s = Counter(chain.from_iterable(self._asked.values())), self._sending_s(costs)
        chosen = min(able, key=lambda v: (1 + burden[v]) * costs.chunk_s[v] + sending_s[v])
        self._asked.setdefault(chunk, set()).add(chosen)
        takes.append((chosen, chunk))
        return True

    def _sending_s(self, costs: Costs) -> list[float]:
        """Return when each client would have sent one more vector, after those that it owes."""
        owing = Counter(w for w, _ in self.owed)
        return [(1 + owing[w]) * seconds for w, seconds in enumerate(costs.upload_s)]

    def _forget_asked(self, w: int) -> None:
        for asked in self._asked.values():
            asked.discard(w)

    def _reopen(self, keys: Sequence[tuple[int, int]]) -> None:
        for key in keys:
            part = self.owed.pop(key)
            before = self._open.get(part.column, Coefficients((), ()))
            self._open[part.column] = Coefficients(
                before.chunks + part.terms.chunks, before.matrix + part.terms.matrix
            )

    def _ask(self, helper: int, part: Part) -> Repair:
        self._attempt += 1
        self.owed[helper, self._attempt] = part
        return self._repair(helper, self._attempt, part)

    def _request(self, key: tuple[int, int]) -> Reveal | Repair:
        w, attempt = key
        part = self.owed[key]
        return self._repair(w, attempt, part) if attempt else self._reveal(w, part)

    def _reveal(self, w: int, part: Part) -> Reveal:
        return Reveal(self._plan.clients[w], self._number, 0, "coded", self._mix(part), self._wire)

    def _repair(self, helper: int, attempt: int, part: Part) -> Repair:
        clients = self._plan.clients
        return Repair(
            clients[helper], self._number, attempt, clients[part.column], self._mix(part), self._wire
        )

    def _mix(self, part: Part) -> Mix:
        return Mix(self._numbers(part), part.terms.matrix)

    def _numbers(self, part: Part) -> tuple[int, ...]:
        return tuple(map(self._number_c.__getitem__, part.terms.chunks))
